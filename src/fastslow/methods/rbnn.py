"""RBNN: rotate the weights towards their signs, epoch by epoch, and sharpen the backward over the training.

Lin et al., *Rotated Binary Neural Network* (NeurIPS 2020), https://arxiv.org/abs/2009.13055. Each standardised filter
is a matrix X_i (a x b, a the largest divisor of its size up to the root). Orthogonal R1, R2, shared by the layer's
filters, are fitted once an epoch in rounds of

    B_i = sign(R1^T X_i R2),
    U S V^T = sum_i B_i R2^T X_i^T,  R1 = V U^T;    U S V^T = sum_i X_i^T R1 B_i,  R2 = U V^T.

The adjustable rotated weight and the training-aware backward:

    z = w + |sin theta| (R1^T X R2 - w),  the rotation held constant,    Wb = alpha sign(z),  alpha, theta learned,
    d sign(z)/dz := k max(0, sqrt(2) t - t^2 |z|),    t = Tmin (Tmax/Tmin)^(e/E),    k = max(1/t, 1).

Inputs are standardised sample by sample, real and 1-bit ones alike; 1-bit ones use k = 1 and max(t, 1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..binarize import Binarizer, Own, filter_scale, sign, standardise
from ..layers import BinaryLayer, BinaryLinear
from .base import Driver, Slot
from .irnet import sharpness
from .surrogate import SignMethod, refuse_single_weights


def matrices(w: Tensor) -> Tensor:
    """The filters as matrices, (filters, a, b)."""
    size = w[0].numel()
    a = next(a for a in range(math.isqrt(size), 0, -1) if size % a == 0)
    return w.reshape(w.shape[0], a, size // a)


def rotate(x: Tensor, r1: Tensor, r2: Tensor) -> Tensor:
    """``R1^T X_i R2``."""
    return r1.T @ x @ r2


def fit_rotations(x: Tensor, r1: Tensor, r2: Tensor, rounds: int) -> tuple[Tensor, Tensor]:
    """Alternate bits, R1 and R2: each part is the best for the other two, so sum_i <B_i, R1^T X_i R2> never falls."""
    for _ in range(rounds):
        bits = sign(rotate(x, r1, r2))
        u, _, vh = torch.linalg.svd((bits @ r2.T @ x.transpose(1, 2)).sum(0))
        r1 = vh.T @ u.T
        u, _, vh = torch.linalg.svd((x.transpose(1, 2) @ r1 @ bits).sum(0))
        r2 = u @ vh
    return r1, r2


def training_aware(x: Tensor, t: Tensor, k: Tensor | float) -> Tensor:
    """``k max(0, sqrt(2) t - t^2 |x|)``."""
    return k * (math.sqrt(2) * t - t * t * x.abs()).clamp_min(0)


@dataclass(frozen=True, kw_only=True)
class RBNN(SignMethod):
    """Rotated binary neural network."""

    name: ClassVar[str] = "rbnn"
    default_binarizer: ClassVar[str] = "own"
    binarizers: ClassVar[type[Binarizer]] = Own
    scheduled: ClassVar[bool] = True
    per_epoch: ClassVar[bool] = True
    needs_epochs: ClassVar[bool] = True

    t_min: float = 0.01
    t_max: float = 10.0
    rounds: int = 3  # of fitting R1 and R2, once an epoch
    standardise: bool = True  # standardise the inputs
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.t_min <= self.t_max:
            raise ValueError(f"t_min={self.t_min}, t_max={self.t_max}: give 0 < t_min <= t_max")
        if self.rounds < 0:
            raise ValueError(f"rounds={self.rounds}: give a whole number, 0 for random rotations that stay")

    def check_layers(self, layers: Mapping[str, nn.Module]) -> None:
        refuse_single_weights(self, layers)

    def own_state(self, layer: BinaryLayer, w: Tensor) -> dict[str, Tensor]:
        x = matrices(standardise(w).float())
        generator = torch.Generator().manual_seed(self.seed)
        random = [torch.randn(n, n, generator=generator, dtype=torch.float32) for n in x.shape[1:]]
        starts = [torch.linalg.qr(each)[0].to(w.device) for each in random]
        r1, r2 = fit_rotations(x, starts[0], starts[1], self.rounds)
        alpha = filter_scale(w).clone()
        # Deviation: the last public version starts at pi/2, where dz/dw = 1 - |sin theta| and d|sin theta| vanish,
        # and weight decay alone sets the weights in motion. An earlier one draws theta as here.
        angle = (torch.rand(alpha.shape, generator=generator) * math.pi / 2).to(w)
        own = {"alpha": nn.Parameter(alpha), "angle": nn.Parameter(angle)}
        return {**own, "r1": r1.to(w.dtype), "r2": r2.to(w.dtype)}

    def latent(self, layer: BinaryLayer, w: Tensor) -> Tensor:
        standard = standardise(w)
        with torch.autocast(w.device.type, enabled=False):  # in bfloat16 the rotation would flip bits
            rotated = rotate(matrices(standard.detach()), layer.own("r1"), layer.own("r2")).reshape(w.shape)
        return standard + layer.own("angle").sin().abs() * (rotated - standard)

    def scale(self, layer: BinaryLayer, w: Tensor) -> Tensor:
        return layer.own("alpha")

    def derivative(self, z: Tensor, progress: Tensor) -> Tensor:
        return training_aware(z, *sharpness(progress, self.t_min, self.t_max))

    def input_derivative(self, x: Tensor, progress: Tensor) -> Tensor:
        t, _ = sharpness(progress, self.t_min, self.t_max)
        return training_aware(x, t.clamp_min(1), 1.0)

    def estimator(self, layer: BinaryLayer, z: Tensor) -> Tensor:
        t, k = sharpness(layer._progress, self.t_min, self.t_max)
        size = (t * z.abs()).clamp_max(math.sqrt(2))
        return z.sign() * k * (math.sqrt(2) * size - size * size / 2)

    def forward_input(self, layer: BinaryLayer, x: Tensor) -> Tensor:
        return super().forward_input(layer, standardise_samples(layer, x) if self.standardise else x)

    def deploy_note(self, layer: BinaryLayer) -> str | None:
        return "the input is standardised sample by sample; train with standardise=False" if self.standardise else None

    def driver(self, slots: list[Slot]) -> RBNNDriver:
        return RBNNDriver(self, slots)


def sample_dims(layer: BinaryLayer) -> tuple[int, ...]:
    """The dimensions of one sample of the layer's input: channels and space, or the features."""
    return (-1,) if isinstance(layer, BinaryLinear) else tuple(range(1 - layer.weight.dim(), 0))


def standardise_samples(layer: BinaryLayer, x: Tensor) -> Tensor:
    """Zero mean and unit variance for each sample."""
    dims = sample_dims(layer)
    centred = x - x.mean(dims, keepdim=True)
    return centred / (x.var(dims, keepdim=True) + 1e-5).sqrt()


class RBNNDriver(Driver):
    """Fits the rotations anew in the first step of an epoch (for epoch 0 they were when the layer became binary)."""

    def __init__(self, method: RBNN, slots: list[Slot]) -> None:
        self.method = method
        self.slots = slots

    @property
    def graph_safe(self) -> bool:
        return True

    def start_epoch(self, epoch: int) -> None:
        for layer in (slot.layer for slot in self.slots if slot.layer.weight.requires_grad):
            x = matrices(standardise(layer.weight.detach()).float())
            r1, r2 = layer.own("r1"), layer.own("r2")
            fitted = fit_rotations(x, r1.float(), r2.float(), self.method.rounds)
            r1.copy_(fitted[0])
            r2.copy_(fitted[1])
