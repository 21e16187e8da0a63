"""ReCU: pull the tails of the weight distribution in, so that weights that never flip come alive again.

Xu et al., *ReCU: Reviving the Dead Weights in Binary Neural Networks* (ICCV 2021), https://arxiv.org/abs/2103.12369.

    w1 = (W - mean) / (std / (2 sqrt 2)) filter by filter,    z = clamp(w1, -Q, Q),    Q = -E|w1| ln(2 - 2 tau),
    Wb = alpha sign(z),  identity gradient through the sign,    tau = A exp(e/E) + B  from 0.85 to 0.99.

1-bit inputs are divided by their standard deviation, sample by sample, in training (which moves no sign) and use
Bi-Real Net's polynomial, max(0, 2 - 2|x|), backward. E|w1| is taken over the layer. alpha is learned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..binarize import Binarizer, Own, centre, filter_dims, filter_scale
from ..layers import BinaryLayer
from .rbnn import sample_dims
from .surrogate import SignMethod, polynomial, refuse_single_weights


def quantile(progress: Tensor, start: float, end: float) -> Tensor:
    """``tau = A exp(e/E) + B``, from ``start`` to ``end``."""
    a = (end - start) / (math.e - 1)
    return a * torch.exp(progress) + (start - a)


@dataclass(frozen=True, kw_only=True)
class ReCU(SignMethod):
    """Rectified clamp unit."""

    name: ClassVar[str] = "recu"
    default_binarizer: ClassVar[str] = "own"
    binarizers: ClassVar[type[Binarizer]] = Own
    scheduled: ClassVar[bool] = True
    per_epoch: ClassVar[bool] = True

    tau_start: float = 0.85
    tau_end: float = 0.99

    def __post_init__(self) -> None:
        if not 0.5 < self.tau_start <= self.tau_end < 1:
            raise ValueError(f"tau_start={self.tau_start}, tau_end={self.tau_end}: give 0.5 < tau_start <= tau_end < 1")

    def check_layers(self, layers: Mapping[str, nn.Module]) -> None:
        refuse_single_weights(self, layers)

    def own_state(self, layer: BinaryLayer, w: Tensor) -> dict[str, Tensor]:
        # Deviation: the public code draws alpha from [0, 1); this is where BWN, and RBNN's code, start.
        return {"alpha": nn.Parameter(filter_scale(w).clone())}

    def limit(self, w1: Tensor, progress: Tensor) -> Tensor:
        """``Q``, a constant to the gradient."""
        return -w1.detach().abs().mean() * torch.log(2 - 2 * quantile(progress, self.tau_start, self.tau_end))

    def latent(self, layer: BinaryLayer, w: Tensor) -> Tensor:
        w1 = centre(w) / ((w.var(filter_dims(w), keepdim=True) + 1e-5).sqrt() / (2 * math.sqrt(2)))
        q = self.limit(w1, layer._progress)
        return torch.clamp(w1, -q, q)

    def scale(self, layer: BinaryLayer, w: Tensor) -> Tensor:
        return layer.own("alpha")

    def derivative(self, z: Tensor, progress: Tensor) -> Tensor:
        return torch.ones_like(z)

    def estimator(self, layer: BinaryLayer, z: Tensor) -> Tensor:
        return z

    def input_derivative(self, x: Tensor, progress: Tensor) -> Tensor:
        return polynomial(x)

    def binary_input(self, layer: BinaryLayer, x: Tensor) -> Tensor:
        if layer.training:
            x = x / (x.var(sample_dims(layer), keepdim=True) + 1e-5).sqrt()
        return super().binary_input(layer, x)
