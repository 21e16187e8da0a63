"""Bop: an optimizer for bits. There is no latent weight; a bit flips when its averaged gradient has pushed long enough.

Helwegen et al., *Latent Weights Do Not Exist: Rethinking Binarized Neural Network Optimization* (NeurIPS 2019),
https://arxiv.org/abs/1906.02107.

    m <- (1 - gamma) m + gamma g,    w <- -w  where |m| > tau and sign(m) = sign(w).

Published for CIFAR-10: gamma 1e-4, times 0.1 after each fifth of the 500 epochs, tau 1e-8. The base optimizer trains
the other parameters and never sees a binary weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..binarize import sign
from ..layers import BinaryLayer
from .base import Driver, Slot
from .surrogate import SignMethod


def flips(w: Tensor, m: Tensor, tau: float) -> Tensor:
    """Which bits flip."""
    return (m.abs() > tau) & (m.sign() == w)


@dataclass(frozen=True, kw_only=True)
class Bop(SignMethod):
    """Binary optimizer. From the first step on ``weight`` holds -1 and +1."""

    name: ClassVar[str] = "bop"
    needs_wrapper: ClassVar[bool] = True
    descends: ClassVar[bool] = True
    scheduled: ClassVar[bool] = True
    per_epoch: ClassVar[bool] = True

    gamma: float = 1e-4  # adaptivity rate
    tau: float = 1e-8  # threshold
    decay: float = 0.1  # of gamma, after each of the equal parts of the training
    parts: int = 5

    def __post_init__(self) -> None:
        if not 0 < self.gamma <= 1:
            raise ValueError(f"gamma={self.gamma}: a rate above 0 and at most 1")
        if self.tau < 0:
            raise ValueError(f"tau={self.tau}: a threshold can't be negative")
        if self.parts < 1:
            raise ValueError(f"parts={self.parts}: give a whole number of at least 1")

    def rate(self, progress: Tensor) -> Tensor:
        """``gamma`` now."""
        return self.gamma * self.decay ** torch.floor(self.parts * progress).clamp_max(self.parts - 1)

    def derivative(self, z: Tensor, progress: Tensor) -> Tensor:
        return torch.ones_like(z)

    def estimator(self, layer: BinaryLayer, z: Tensor) -> Tensor:
        return z

    def driver(self, slots: list[Slot]) -> BopDriver:
        return BopDriver(self, slots)


class BopDriver(Driver):
    """Takes the binary weights' gradients, averages them and flips; leaves the base optimizer the rest."""

    def __init__(self, method: Bop, slots: list[Slot]) -> None:
        self.method = method
        self.slots = slots
        self.momentum = {slot.name: torch.zeros_like(slot.layer.weight, requires_grad=False) for slot in slots}
        self._gradients: list[tuple[Tensor, Tensor]] = []
        self._flipped: Tensor | None = None

    @property
    def graph_safe(self) -> bool:
        return True

    def before_step(self) -> bool:
        flipped: list[Tensor] = []
        for slot in self.slots:
            weight = slot.layer.weight
            if not slot.has_gradient:
                continue
            assert weight.grad is not None
            m = self.momentum[slot.name] = self.momentum[slot.name].to(weight.device)
            m.lerp_(weight.grad.to(m.dtype), self.method.rate(slot.layer._progress).to(m.dtype))
            bits = sign(weight)
            chosen = flips(bits, m, self.method.tau)
            weight.copy_(torch.where(chosen, -bits, bits))
            self._gradients.append((weight, weight.grad))
            weight.grad = None  # not the base optimizer's
            flipped.append(chosen.float().mean())
        self._flipped = torch.stack(flipped).mean() if flipped else None
        return True

    def after_step(self, stepped: bool) -> None:
        for weight, gradient in self._gradients:
            weight.grad = gradient
        self._gradients.clear()

    def metrics(self) -> dict[str, float]:
        return {} if self._flipped is None else {"bop_flips": float(self._flipped)}

    def state_dict(self) -> dict[str, Any]:
        return {"momentum": self.momentum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state.keys() != {"momentum"} or state["momentum"].keys() != self.momentum.keys():
            raise ValueError("the saved state belongs to other layers, or to another method than bop")
        for name, saved in state["momentum"].items():
            self.momentum[name].copy_(saved)
