"""DoReFa-Net: k-bit weights and k-bit activations with straight-through gradients.

Zhou et al., *DoReFa-Net: Training Low Bitwidth Convolutional Neural Networks with Low Bitwidth Gradients* (2016),
https://arxiv.org/abs/1606.06160. With ``quantize_k(x) = round((2^k - 1) x) / (2^k - 1)``:

    weights, k = 1:  Wb = E|W| sign(W),                          dL/dW = dL/dWb
    weights, k > 1:  Wb = 2 quantize_k(A(W)) - 1,                A of Eq. 1, differentiated exactly
    inputs:          ab = quantize_k(clip(a, 0, 1)),             dL/da = dL/dab 1[0 <= a <= 1]

Their quantized gradients, which serve training in hardware, are not part of this. ``ste`` is the variant of the later
papers: tanh pre-processing also at one bit, and no scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..binarize import Binarizer, OriginalDoReFa, straight_through
from ..layers import BinaryLayer
from .base import Method


@dataclass(frozen=True, kw_only=True)
class DoReFaNet(Method):
    """``bits`` of :func:`fastslow.binarize_` are the weights'; the inputs' are a field, used by activations="clip"."""

    name: ClassVar[str] = "dorefa"
    default_binarizer: ClassVar[str] = "dorefa-original"
    binarizers: ClassVar[type[Binarizer]] = OriginalDoReFa
    activations: ClassVar[tuple[str, ...]] = ("clip", "sign")

    activation_bits: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.activation_bits, bool) or not 1 <= self.activation_bits <= 8:
            raise ValueError(f"activation_bits={self.activation_bits!r}: give a whole number from 1 to 8")

    def input_bits(self, activations: str | None) -> int:
        return self.activation_bits if activations == "clip" else super().input_bits(activations)

    def deploy_note(self, layer: BinaryLayer) -> str | None:
        if layer.activations != "clip":
            return None
        return "its inputs are steps from 0 to 1, not signs; train with activations='sign'"

    def binary_input(self, layer: BinaryLayer, x: Tensor) -> Tensor:
        if layer.activations == "sign":
            return super().binary_input(layer, x)
        levels = 2**self.activation_bits - 1
        clipped = x.clamp(0, 1)
        value = torch.round(levels * clipped.detach()) / levels
        return straight_through(value, clipped)
