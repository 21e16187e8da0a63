"""Mirror descent: move a dual variable, compute with its tanh, and let the tanh become a sign.

Ajanthan et al., *Mirror Descent View for Neural Network Quantization* (AISTATS 2021), https://arxiv.org/abs/1910.08237.
MD-tanh-S, the numerically stable form, with x the latent weight:

    w = tanh(beta x)  in training,  sign(x)  in evaluation,    dL/dx := dL/dw  (no tanh'),    beta *= 1.02.

The base optimizer, published with Adam, steps in x. beta grows 500 times over the training (every 200 of 100k steps).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..binarize import straight_through
from ..layers import BinaryLayer
from .surrogate import SignMethod


@dataclass(frozen=True, kw_only=True)
class Mirror(SignMethod):
    """MD-tanh-S: soft weights that harden. Training starts as the float network does."""

    name: ClassVar[str] = "mirror"
    activations: ClassVar[tuple[str, ...]] = ()
    scheduled: ClassVar[bool] = True

    growth: float = 1.02  # of beta
    increases: int = 500  # over the training

    def __post_init__(self) -> None:
        if self.growth < 1:
            raise ValueError(f"growth={self.growth}: beta must not fall; give at least 1")
        if self.increases < 1:
            raise ValueError(f"increases={self.increases}: give a whole number of at least 1")

    def beta(self, progress: Tensor) -> Tensor:
        """From 1 to ``growth ** increases``."""
        return self.growth ** torch.floor(self.increases * progress + 1e-4)  # progress is in float32

    def forward_weight(self, layer: BinaryLayer) -> Tensor:
        if not layer.training:
            return super().forward_weight(layer)
        x = layer.weight
        return straight_through(self.scale(layer, x) * torch.tanh(self.beta(layer._progress) * x.detach()), x)

    def derivative(self, z: Tensor, progress: Tensor) -> Tensor:
        return torch.ones_like(z)

    def estimator(self, layer: BinaryLayer, z: Tensor) -> Tensor:
        return torch.tanh(self.beta(layer._progress) * z)
