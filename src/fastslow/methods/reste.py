"""ReSTE: a power function stands for the sign in the backward pass, sharpened as far as gradients stay stable.

Wu et al., *Estimator Meets Equilibrium Perspective: A Rectified Straight Through Estimator for Binary Neural Networks
Training* (ICCV 2023), https://arxiv.org/abs/2308.06689.

    Wb = mean|W| sign(W)  (one scale a layer, differentiated),    f(x) = sign(x) |x|^(1/o),
    d sign(x)/dx := (1/o) |x|^((1-o)/o)  for m < |x| <= t;   m^(1/o) / m  for |x| <= m;   0  for |x| > t,
    o = 1 + (1 - cos(pi/2 e/E)) (o_end - 1).

o = 1 is the clipped straight-through estimator. Inputs use the same derivative. Its two indicators, estimating error
and gradient stability, are in :mod:`fastslow.indicators` for every method.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..binarize import Sign
from ..layers import BinaryLayer
from .surrogate import SignMethod


def power(progress: Tensor, o_end: float) -> Tensor:
    """``o``: 1 at the start, ``o_end`` at the end."""
    return 1 + (1 - torch.cos(math.pi / 2 * progress)) * (o_end - 1)


@dataclass(frozen=True, kw_only=True)
class ReSTE(SignMethod):
    """Rectified straight-through estimator."""

    name: ClassVar[str] = "reste"
    default_binarizer: ClassVar[str] = "scaled-sign"
    scheduled: ClassVar[bool] = True
    per_epoch: ClassVar[bool] = True

    o_end: float = 3.0
    m: float = 0.1  # below, the derivative is constant: it would grow without bound
    t: float = 1.5  # beyond, it is zero

    def __post_init__(self) -> None:
        if self.o_end < 1:
            raise ValueError(f"o_end={self.o_end}: 1 is the straight-through estimator, larger is sharper")
        if not 0 < self.m < self.t:
            raise ValueError(f"m={self.m}, t={self.t}: give 0 < m < t")

    def scale(self, layer: BinaryLayer, w: Tensor) -> Tensor:
        assert isinstance(layer.binarizer, Sign)
        return layer.binarizer.scale(w)

    def derivative(self, z: Tensor, progress: Tensor) -> Tensor:
        o = power(progress, self.o_end)
        size = z.abs()
        curve = size.clamp_min(self.m) ** ((1 - o) / o) / o
        flat = self.m ** (1 / o) / self.m
        return torch.where(size <= self.m, flat, torch.where(size <= self.t, curve, 0.0)).to(z.dtype)

    def input_derivative(self, x: Tensor, progress: Tensor) -> Tensor:
        return self.derivative(x, progress)

    def estimator(self, layer: BinaryLayer, z: Tensor) -> Tensor:
        o = power(layer._progress, self.o_end)
        size = z.abs().clamp_max(self.t)
        return z.sign() * torch.where(size <= self.m, size * self.m ** (1 / o) / self.m, size ** (1 / o))
