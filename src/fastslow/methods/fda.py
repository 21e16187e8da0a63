"""FDA-BNN: the sign as a truncated Fourier series in the backward pass, and a small network for what it leaves out.

Xu et al., *Learning Frequency Domain Approximation for Binary Neural Networks* (NeurIPS 2021),
https://arxiv.org/abs/2103.00841. A square wave of frequency w has the series (4/pi) sum_i sin((2i+1) w x)/(2i+1); its
derivative has a closed form:

    d sign(x)/dx := (4w/pi) sum_{i=0..n} cos((2i+1) w x) = (4w/pi) sin(2(n+1) w x) / (2 sin(w x)) for |x| <= 1, else 0,
    w = 0.1,    n = 9 + floor(9 e/E).

The noise adaptation module fits the rest in training: sign(x) + a eta(x), eta(x) = FC2(ReLU(FC1(x))) + 0.1 sin(x),
a = 0.05 (1 + cos(pi e/E)), which ends at 0, so that evaluation goes without. Weights: one filter is one vector x;
inputs: the channels of one position. Scale: mean|W| of a filter, a constant to the gradient.

The official code evaluates only; details of training are those of an independent port.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..layers import BinaryLayer, BinaryLinear
from .surrogate import SignMethod


def fourier(x: Tensor, n: Tensor, omega: float) -> Tensor:
    """The derivative of the series with terms 0..n, in closed form."""
    q = omega * x
    ratio = torch.where(q == 0, n + 1, torch.sin(2 * (n + 1) * q) / (2 * torch.sin(torch.where(q == 0, 1.0, q))))
    return torch.where(x.abs() <= 1, 4 * omega / math.pi * ratio, 0.0).to(x.dtype)


@dataclass(frozen=True, kw_only=True)
class FDA(SignMethod):
    """Frequency domain approximation."""

    name: ClassVar[str] = "fda"
    default_binarizer: ClassVar[str] = "scaled-sign-filter"
    scheduled: ClassVar[bool] = True
    per_epoch: ClassVar[bool] = True

    omega: float = 0.1
    n_start: int = 9
    n_end: int = 18
    noise: float = 0.1  # a at the start; 0 trains without the module
    reduction: int = 64  # the module's hidden units are 1/64 of its inputs, at least one
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.n_start <= self.n_end:
            raise ValueError(f"n_start={self.n_start}, n_end={self.n_end}: give 0 <= n_start <= n_end")
        if not 0 < self.omega < math.pi:
            raise ValueError(f"omega={self.omega}: a frequency above 0 and below pi")
        if self.reduction < 1:
            raise ValueError(f"reduction={self.reduction}: give a whole number of at least 1")

    def terms(self, progress: Tensor) -> Tensor:
        """``n``, at most ``n_end``."""
        return self.n_start + torch.floor((self.n_end - self.n_start) * progress)

    def amplitude(self, progress: Tensor) -> Tensor:
        """``a``, from ``noise`` to 0."""
        # Deviation: the port is one epoch ahead, cos(pi (e + 1)/E).
        return self.noise / 2 * (1 + torch.cos(math.pi * progress))

    def derivative(self, z: Tensor, progress: Tensor) -> Tensor:
        return fourier(z, self.terms(progress), self.omega)

    def input_derivative(self, x: Tensor, progress: Tensor) -> Tensor:
        return self.derivative(x, progress)

    def estimator(self, layer: BinaryLayer, z: Tensor) -> Tensor:
        odd = 2 * torch.arange(int(self.terms(layer._progress)) + 1, device=z.device, dtype=z.dtype) + 1
        waves = torch.sin(self.omega * odd * z.clamp(-1, 1).unsqueeze(-1)) / odd
        return 4 / math.pi * waves.sum(-1)

    # -- the noise adaptation module ------------------------------------------------------------------------------

    def own_state(self, layer: BinaryLayer, w: Tensor) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        sizes = {"w": w[0].numel()}
        if layer.activations is not None:
            sizes["a"] = w.shape[1] * getattr(layer, "groups", 1)
        own = {}
        for part, size in sizes.items() if self.noise else ():
            hidden = max(1, size // self.reduction)
            for name, (rows, columns) in {"fc1": (hidden, size), "fc2": (size, hidden)}.items():
                uniform = torch.rand(rows, columns, generator=generator) * 2 - 1
                own[f"{part}_{name}"] = nn.Parameter((uniform / math.sqrt(columns)).to(w))
        return own

    def adaptation(self, x: Tensor, fc1: Tensor, fc2: Tensor, progress: Tensor) -> Tensor:
        """``a eta(x)`` along the last dimension."""
        return self.amplitude(progress) * (F.linear(F.relu(F.linear(x, fc1)), fc2) + 0.1 * torch.sin(x))

    def forward_weight(self, layer: BinaryLayer) -> Tensor:
        weight = super().forward_weight(layer)
        if not (self.noise and layer.training):
            return weight
        w = layer.weight
        eta = self.adaptation(w.flatten(1), layer.own("w_fc1"), layer.own("w_fc2"), layer._progress)
        return weight + self.scale(layer, w) * eta.view_as(w)

    def binary_input(self, layer: BinaryLayer, x: Tensor) -> Tensor:
        bits = super().binary_input(layer, x)
        if not (self.noise and layer.training):
            return bits
        channel = -1 if isinstance(layer, BinaryLinear) else 1 - layer.weight.dim()
        eta = self.adaptation(x.movedim(channel, -1), layer.own("a_fc1"), layer.own("a_fc2"), layer._progress)
        return bits + eta.movedim(-1, channel)
