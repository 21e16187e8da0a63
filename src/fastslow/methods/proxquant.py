"""ProxQuant: train in float, and after every step pull the weights towards -1 and +1, ever harder.

Bai, Wang, Liberty, *ProxQuant: Quantized Neural Networks via Proximal Operators* (ICLR 2019),
https://arxiv.org/abs/1810.00861. The step is the base optimizer's, at the float weight; then the proximal operator of
R(w) = sum min(|w - 1|, |w + 1|) with strength s = eta lambda:

    w <- sign(w) (1 + sign(|w| - 1) max(||w| - 1| - s, 0)),    lambda = 1e-4 e,

and from two thirds of the training on (epoch 200 of 300) the weights are their signs and stand still, while the rest of
the network goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..binarize import sign
from ..layers import BinaryLayer
from .base import Driver, Slot
from .surrogate import SignMethod


def prox(w: Tensor, strength: float | Tensor) -> Tensor:
    """The proximal operator of the W-shaped regulariser."""
    distance = w.abs() - 1
    shrunk = (distance.abs() - strength).clamp_min(0)
    return sign(w) * (1 + distance.sign() * shrunk)


@dataclass(frozen=True, kw_only=True)
class ProxQuant(SignMethod):
    """Float weights in training, their signs in evaluation; the two meet when the weights freeze."""

    name: ClassVar[str] = "proxquant"
    activations: ClassVar[tuple[str, ...]] = ()
    needs_wrapper: ClassVar[bool] = True
    scheduled: ClassVar[bool] = True

    freeze: float = 2 / 3  # share of the training after which the weights are their signs
    lambda_end: float = 0.02  # lambda then; it grows linearly, in the published 300 epochs by 1e-4 each

    def __post_init__(self) -> None:
        if not 0 < self.freeze <= 1:
            raise ValueError(f"freeze={self.freeze}: a share of the training above 0 and at most 1")
        if self.lambda_end < 0:
            raise ValueError(f"lambda_end={self.lambda_end}: a strength can't be negative")

    def strength(self, progress: Tensor) -> Tensor:
        """``lambda`` now."""
        return self.lambda_end * progress / self.freeze

    def forward_weight(self, layer: BinaryLayer) -> Tensor:
        trains = layer.training and layer.weight.requires_grad  # a frozen weight never becomes its signs
        return layer.weight if trains else super().forward_weight(layer)

    def derivative(self, z: Tensor, progress: Tensor) -> Tensor:
        return torch.ones_like(z)

    def estimator(self, layer: BinaryLayer, z: Tensor) -> Tensor:
        return z

    def driver(self, slots: list[Slot]) -> ProxDriver:
        return ProxDriver(self, slots)


class ProxDriver(Driver):
    """The proximal step, and the freeze."""

    def __init__(self, method: ProxQuant, slots: list[Slot]) -> None:
        self.method = method
        self.slots = list({id(slot.layer.weight): slot for slot in slots}.values())  # a tied weight once
        self._frozen = False

    def before_step(self) -> bool:
        self._frozen = float(self.slots[0].layer._progress) >= self.method.freeze - 1e-6  # in float32
        if self._frozen:
            for weight in (slot.layer.weight for slot in self.slots if slot.layer.weight.requires_grad):
                weight.copy_(sign(weight))
                weight.grad = None
        return True

    def after_step(self, stepped: bool) -> None:
        if self._frozen:
            return
        for slot in self.slots:
            weight = slot.layer.weight
            if slot.has_gradient:
                weight.copy_(prox(weight, slot.lr * self.method.strength(slot.layer._progress)))
