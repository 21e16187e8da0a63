"""IR-Net: balanced, standardised weights with a power-of-two scale, and a backward that sharpens over the training.

Qin et al., *Forward and Backward Information Retention for Accurate Binary Neural Networks* (CVPR 2020),
https://arxiv.org/abs/1909.10788. Libra-PB, filter by filter (unbiased std), and EDE, the error decay estimator:

    Ws = (W - mean) / std,    Wb = sign(Ws) 2^s,    s = round(log2(mean|Ws|)),
    d sign(x)/dx := k t (1 - tanh(t x)^2),    t = Tmin (Tmax/Tmin)^(e/E),    k = max(1/t, 1).

Autograd passes mean and std; s is a constant to it. Inputs (``activations="sign"``) use the same k and t. The public
code sets Tmin = 0.1 for real inputs and 0.001 for 1-bit ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..binarize import Binarizer, Own, filter_scale, standardise
from ..layers import BinaryLayer
from .surrogate import SignMethod, refuse_single_weights


def sharpness(progress: Tensor, t_min: float, t_max: float) -> tuple[Tensor, Tensor]:
    """``t``, log-linear from Tmin to Tmax, and ``k = max(1/t, 1)``."""
    t = t_min * (t_max / t_min) ** progress
    return t, (1 / t).clamp_min(1)


def error_decay(x: Tensor, t: Tensor, k: Tensor) -> Tensor:
    """EDE: ``k t (1 - tanh(t x)^2)``, the derivative of ``k tanh(t x)``."""
    return k * t * (1 - torch.tanh(t * x).square())


@dataclass(frozen=True, kw_only=True)
class IRNet(SignMethod):
    """Libra-PB forward, EDE backward."""

    name: ClassVar[str] = "irnet"
    default_binarizer: ClassVar[str] = "own"
    binarizers: ClassVar[type[Binarizer]] = Own
    scheduled: ClassVar[bool] = True
    per_epoch: ClassVar[bool] = True

    t_min: float = 0.1
    t_max: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.t_min <= self.t_max:
            raise ValueError(f"t_min={self.t_min}, t_max={self.t_max}: give 0 < t_min <= t_max")

    def check_layers(self, layers: Mapping[str, nn.Module]) -> None:
        refuse_single_weights(self, layers)

    def latent(self, layer: BinaryLayer, w: Tensor) -> Tensor:
        return standardise(w)

    def scale(self, layer: BinaryLayer, w: Tensor) -> Tensor:
        magnitude = filter_scale(standardise(w.detach()))
        # A filter of equal weights has magnitude 0; it keeps the scale 1.
        return torch.exp2(torch.round(torch.log2(torch.where(magnitude > 0, magnitude, 1.0))))

    def derivative(self, z: Tensor, progress: Tensor) -> Tensor:
        return error_decay(z, *sharpness(progress, self.t_min, self.t_max))

    def input_derivative(self, x: Tensor, progress: Tensor) -> Tensor:
        return self.derivative(x, progress)

    def estimator(self, layer: BinaryLayer, z: Tensor) -> Tensor:
        t, k = sharpness(layer._progress, self.t_min, self.t_max)
        return k * torch.tanh(t * z)
