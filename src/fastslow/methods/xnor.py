"""BWN and XNOR-Net: the sign times the mean magnitude of its filter; XNOR-Net also binarizes the input.

Rastegari, Ordonez, Redmon, Farhadi, *XNOR-Net: ImageNet Classification Using Binary Convolutional Neural Networks*
(ECCV 2016), https://arxiv.org/abs/1603.05279.

    alpha = mean|W| of the filter,    Wb = alpha sign(W),    dL/dW = dL/dWb (1/n + alpha 1[|W| <= 1])
    XNOR:  I * W  ~  (sign(I) * sign(W)) . K alpha,    K = box filter over the channel mean of |I|.

The order of an XNOR block is BatchNorm, sign, convolution, pooling. The authors' public code leaves K out
(``k_map=False``), centres and clips the latent weights (``centre=True``), and multiplies the weight gradient by a
further constant, n (1 - 1/channels), which we don't: it is a learning rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..binarize import Sign, straight_through
from ..layers import BinaryLayer, BinaryLinear
from .base import Driver, Slot
from .surrogate import ClipDriver, SignMethod


@dataclass(frozen=True, kw_only=True)
class BWN(SignMethod):
    """Binary-Weight-Network: real inputs, one scale a filter."""

    name: ClassVar[str] = "bwn"
    default_binarizer: ClassVar[str] = "scaled-sign-filter"
    activations: ClassVar[tuple[str, ...]] = ()

    centre: bool = False  # centre the weights over the input channels and clip them to [-1, 1], after every step

    @property
    def needs_wrapper(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.centre  # nobody else would do it

    def forward_weight(self, layer: BinaryLayer) -> Tensor:
        if not torch.is_grad_enabled():
            return self.evaluation_weight(layer)
        assert isinstance(layer.binarizer, Sign)
        w = layer.weight.detach()
        return straight_through(layer.binarizer.values(w), layer.weight, self.weight_factor(layer, w))

    def weight_factor(self, layer: BinaryLayer, w: Tensor) -> Tensor:
        """``1/n + alpha 1[|W| <= 1]``, n the weights of a filter (of the layer, where alpha is the layer's)."""
        alpha = self.scale(layer, w)
        if layer.binarizer.name == "sign":  # no scale: nothing flows through it
            return self.derivative(w, layer._progress)
        n = w.numel() // alpha.numel()
        return 1 / n + alpha * self.derivative(w, layer._progress)

    def driver(self, slots: list[Slot]) -> Driver:
        return ClipDriver(slots, centre=True) if self.centre else Driver()


@dataclass(frozen=True, kw_only=True)
class XNOR(BWN):
    """XNOR-Net: BWN's weights on the sign of the input, the output scaled by the map K."""

    name: ClassVar[str] = "xnor"
    activations: ClassVar[tuple[str, ...]] = ("sign",)
    default_activations: ClassVar[str | None] = "sign"

    k_map: bool = True  # False drops K, which makes the layer a plain 1-bit product

    def check_layers(self, layers: Mapping[str, nn.Module]) -> None:
        for name, layer in layers.items():
            if self.k_map and getattr(layer, "groups", 1) != 1:
                raise ValueError(
                    f"xnor's map K is one for all channels, and {name!r} has groups={layer.groups}: skip it or "
                    "give k_map=False"
                )

    def deploy_note(self, layer: BinaryLayer) -> str | None:
        if layer.activations is None or not self.k_map:
            return None
        return "the output is scaled by the map K of its real input; train with k_map=False"

    def forward(self, layer: BinaryLayer, x: Tensor) -> Tensor:
        if layer.activations is None or not self.k_map:
            return super().forward(layer, x)
        weight, bias = layer.forward_parameters()
        out = layer.product(self.binary_input(layer, x), weight, None) * self.magnitude(layer, x)
        if bias is None:
            return out
        return out + (bias if isinstance(layer, BinaryLinear) else bias.view(-1, *[1] * (weight.dim() - 2)))

    def magnitude(self, layer: BinaryLayer, x: Tensor) -> Tensor:
        """``K``: the mean |I| over the channels, averaged over the window of the filter."""
        if isinstance(layer, BinaryLinear):
            return x.abs().mean(-1, keepdim=True)
        window = layer.weight.new_ones(1, 1, *layer.weight.shape[2:])
        return layer.product(x.abs().mean(1 - layer.weight.dim(), keepdim=True), window / window.numel(), None)
