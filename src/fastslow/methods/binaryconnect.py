"""BinaryConnect: sign in the forward pass, the unchanged gradient on clipped latent weights.

Courbariaux, Bengio, David, *BinaryConnect: Training Deep Neural Networks with binary weights during propagations*
(NeurIPS 2015), https://arxiv.org/abs/1511.00363.

    Wb = sign(W)                                          deterministic
    Wb = +1 with probability clip((W + 1) / 2, 0, 1)      stochastic, in training only
    dL/dW = dL/dWb,      W <- clip(W, -1, 1) after every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..binarize import straight_through
from ..layers import BinaryLayer
from .base import Slot
from .surrogate import ClipDriver, SignMethod


@dataclass(frozen=True, kw_only=True)
class BinaryConnect(SignMethod):
    """Binary weights, real activations, latent weights kept in [-1, 1]."""

    name: ClassVar[str] = "binaryconnect"
    activations: ClassVar[tuple[str, ...]] = ()
    needs_wrapper: ClassVar[bool] = True  # the clipping

    stochastic: bool = False  # draw the bits in training; evaluation is always deterministic

    def derivative(self, z: Tensor, progress: Tensor) -> Tensor:
        return torch.ones_like(z)

    def estimator(self, layer: BinaryLayer, z: Tensor) -> Tensor:
        return z

    def forward_weight(self, layer: BinaryLayer) -> Tensor:
        if not (self.stochastic and layer.training):
            return super().forward_weight(layer)
        w = layer.weight.detach()
        probability = ((w + 1) / 2).clamp(0, 1)
        bits = torch.where(torch.rand_like(w) < probability, 1.0, -1.0).to(w.dtype)
        return straight_through(bits * self.scale(layer, w), layer.weight)

    def driver(self, slots: list[Slot]) -> ClipDriver:
        return ClipDriver(slots)
