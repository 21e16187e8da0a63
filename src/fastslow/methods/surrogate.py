"""Surrogate gradients: methods that are a transformed weight, a sign with a chosen derivative, and a scale.

    z = latent(W),    Wb = scale * sign(z),    d sign(z) / dz := derivative(z, progress).

Everything outside the sign is differentiated exactly. A published method fills in the three functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..binarize import Binarizer, Sign, sign, straight_through
from ..layers import BinaryLayer
from .base import Driver, Method, Slot


@dataclass(frozen=True, kw_only=True)
class SignMethod(Method):
    """``Wb = scale * sign(latent(W))``. The default derivative is that of the clipped straight-through estimator."""

    default_binarizer: ClassVar[str] = "sign"
    binarizers: ClassVar[type[Binarizer]] = Sign

    def latent(self, layer: BinaryLayer, w: Tensor) -> Tensor:
        return w

    def scale(self, layer: BinaryLayer, w: Tensor) -> Tensor:
        """What multiplies the sign. It takes part in the gradient unless it is detached here."""
        assert isinstance(layer.binarizer, Sign)
        return layer.binarizer.scale(w.detach())

    def derivative(self, z: Tensor, progress: Tensor) -> Tensor:
        """What stands for d sign(z) / dz in the backward pass."""
        return (z.abs() <= 1).to(z.dtype)

    def estimator(self, layer: BinaryLayer, z: Tensor) -> Tensor:
        return z.clamp(-1, 1)

    def forward_weight(self, layer: BinaryLayer) -> Tensor:
        if not torch.is_grad_enabled():
            return self.evaluation_weight(layer)
        w = layer.weight
        z = self.latent(layer, w)
        bits = straight_through(sign(z.detach()), z, self.derivative(z.detach(), layer._progress))
        return self.scale(layer, w) * bits

    def evaluation_weight(self, layer: BinaryLayer) -> Tensor:
        w = layer.weight.detach()
        return self.scale(layer, w).detach() * sign(self.latent(layer, w))


class ClipDriver(Driver):
    """Keeps the latent weights in [-1, 1]: beyond, a gradient of the clipped kind could never bring them back.

    ``centre`` subtracts their mean over the input channels first.
    """

    def __init__(self, slots: list[Slot], centre: bool = False) -> None:
        self.slots = slots
        self.centre = centre

    @property
    def graph_safe(self) -> bool:
        return True

    def after_step(self, stepped: bool) -> None:
        for weight in (slot.layer.weight for slot in self.slots if slot.layer.weight.requires_grad):
            if self.centre:
                weight.sub_(weight.mean(1, keepdim=True))
            weight.clamp_(-1, 1)


def refuse_single_weights(method: Method, layers: Mapping[str, nn.Module]) -> None:
    """For methods that centre each filter: a filter of one weight would always become zero."""
    for name, layer in layers.items():
        weight = layer.weight
        assert isinstance(weight, Tensor)
        if weight.numel() == weight.shape[0]:
            raise ValueError(f"{method.name} centres each filter, and {name!r} has filters of one weight: skip it")


def polynomial(x: Tensor) -> Tensor:
    """Derivative of Bi-Real Net's piecewise polynomial (Liu et al., ECCV 2018): ``max(0, 2 - 2|x|)``."""
    return (2 - 2 * x.abs()).clamp_min(0)
