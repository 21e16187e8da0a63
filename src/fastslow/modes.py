"""A model in evaluation mode for a while, and one look at it there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in evaluation mode; afterwards each of its modules is in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@torch.no_grad()
def pass_zeros(model: nn.Module, shape: tuple[int, ...]) -> None:
    """One input of this shape through the model, for what its hooks see, or for what it raises."""
    first = next(model.parameters(), torch.zeros(()))
    with evaluating(model):
        model(torch.zeros(1, *shape, dtype=first.dtype, device=first.device))
