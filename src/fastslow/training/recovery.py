"""What a run does about a step that isn't finite: stop, leave the step out, or go back and then leave it out."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from .finite import TrainingDiverged, broken_gradient, broken_method, broken_output, broken_state

OnNan = Literal["stop", "skip", "rollback"]

_MOST, _WITHIN = 10, 100  # more steps than that left out of so many: the run isn't training any more


class NotFinite(ArithmeticError):
    """A number of a step isn't finite. ``undone``: the step has not changed weights, optimizer or method yet."""

    def __init__(self, what: str, where: str, *, undone: bool) -> None:
        super().__init__(f"{what}, first not finite: {where}")
        self.undone = undone


def look_before_step(model: nn.Module, x: Tensor, loss: float, step: int) -> None:
    """Raise unless loss and gradients are finite: after the backward pass, where the processes of a distributed run
    see the same gradients."""
    where = broken_gradient(model)
    if not math.isfinite(loss):
        first = broken_state(model) or broken_output(model, x) or "the loss itself"
        raise NotFinite(f"the loss is {loss} at step {step}", first, undone=True)
    if where is not None:
        raise NotFinite(f"a gradient is not finite at step {step}", where, undone=True)


def look_after_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Raise unless all that a step has changed is finite: hypernetworks, history, weights, look-ahead."""
    where = broken_method(optimizer) or broken_state(model)
    if where is not None:
        raise NotFinite(f"the update is not finite at step {step}", where, undone=False)


class RollBack(Exception):
    """The run goes back to its last checkpoint, and leaves out ``step`` when it comes there again."""

    def __init__(self, step: int, why: str) -> None:
        super().__init__(why)
        self.step = step


class LeftOut:
    """The steps (1, 2, ...) that a run left out."""

    def __init__(self) -> None:
        self.steps: set[int] = set()

    def add(self, step: int) -> None:
        self.steps.add(step)
        recent = sum(step - _WITHIN < other <= step for other in self.steps)
        if recent > _MOST:
            raise TrainingDiverged(
                f"training diverged: {recent} of the last {_WITHIN} steps before step {step} were not finite and left "
                "out; try a smaller lr"
            )

    def of_epoch(self, epoch: int, steps_per_epoch: int) -> int:
        """How many of epoch 0, 1, 2, ..."""
        return sum((step - 1) // steps_per_epoch == epoch for step in self.steps)


class Buffers:
    """The buffers of a model as they were, such as BatchNorm's statistics: a forward pass changes them."""

    def __init__(self, model: nn.Module) -> None:
        self._kept: list[tuple[Tensor, Tensor]] = [(buffer, buffer.clone()) for buffer in model.buffers()]

    def restore(self) -> None:
        for buffer, kept in self._kept:
            buffer.copy_(kept)
