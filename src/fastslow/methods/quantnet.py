"""QuantNet: a small differentiable network turns latent weights into nearly binary ones, and no estimator is needed.

Liu et al., *QuantNet: Learning to Quantize by Learning within Fully Differentiable Framework* (ECCV workshops 2020),
https://arxiv.org/abs/2009.04626. From the abstract: a sub-network binarizes full-precision weights directly and trains
with them, exactly differentiated, and the gap between its soft output and the sign is closed during training.

No code is public and we know the details from memory only, so the rest is ours. Weight by weight, one network a layer:

    u = W / RMS(W),    z = u + sum_j b_j tanh(a_j u + c_j),    w = tanh(beta z)  in training,  sign(z)  in evaluation,

b = 0 at the start (z = u), beta log-linear from ``beta_start`` to ``beta_end`` over the training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..binarize import Binarizer, Own
from ..layers import BinaryLayer
from .surrogate import SignMethod


@dataclass(frozen=True, kw_only=True)
class QuantNet(SignMethod):
    """Soft weights from a learned monotone-at-start curve, hardened to signs; gradients are exact throughout."""

    name: ClassVar[str] = "quantnet"
    default_binarizer: ClassVar[str] = "own"
    binarizers: ClassVar[type[Binarizer]] = Own
    activations: ClassVar[tuple[str, ...]] = ()
    scheduled: ClassVar[bool] = True

    hidden: int = 8
    beta_start: float = 1.0
    beta_end: float = 100.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise ValueError(f"hidden={self.hidden}: the sub-network needs at least one hidden unit")
        if not 0 < self.beta_start <= self.beta_end:
            raise ValueError(f"beta_start={self.beta_start}, beta_end={self.beta_end}: give 0 < beta_start <= beta_end")

    def own_state(self, layer: BinaryLayer, w: Tensor) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        a, c = torch.randn(2, self.hidden, generator=generator).to(w)
        return {"a": nn.Parameter(a), "b": nn.Parameter(torch.zeros_like(a)), "c": nn.Parameter(c)}

    def beta(self, progress: Tensor) -> Tensor:
        return self.beta_start * (self.beta_end / self.beta_start) ** progress

    def latent(self, layer: BinaryLayer, w: Tensor) -> Tensor:
        rms = w.detach().square().mean().sqrt()
        u = w / torch.where(rms > 0, rms, torch.ones_like(rms))
        a, b, c = layer.own("a"), layer.own("b"), layer.own("c")
        hidden = torch.tanh(u.unsqueeze(-1) * a + c)
        return u + (hidden * b).sum(-1)

    def scale(self, layer: BinaryLayer, w: Tensor) -> Tensor:
        return w.new_ones(())

    def forward_weight(self, layer: BinaryLayer) -> Tensor:
        if not layer.training:
            return super().forward_weight(layer)
        return torch.tanh(self.beta(layer._progress) * self.latent(layer, layer.weight))

    def derivative(self, z: Tensor, progress: Tensor) -> Tensor:
        """In evaluation mode, should someone ask for a gradient there: that of the soft weight."""
        return self.beta(progress) * (1 - torch.tanh(self.beta(progress) * z).square())

    def estimator(self, layer: BinaryLayer, z: Tensor) -> Tensor:
        return torch.tanh(self.beta(layer._progress) * z)
