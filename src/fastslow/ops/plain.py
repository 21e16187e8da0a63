"""Convolutions that know nothing of this library: float layers, and whole float networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from . import switch
from .conv import conv2d


@contextmanager
def fused(wanted: bool = True) -> Iterator[None]:
    """While entered, forward passes of this thread use the fused operations where they can run."""
    with switch.fused(wanted):
        if switch.is_fused():
            with _PlainConvolutions():
                yield
        else:
            yield


class _PlainConvolutions(TorchFunctionMode):
    """What ``nn.Conv2d`` asks torch for, our ``conv2d`` does."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # As nn.Conv2d calls it: all by position, sizes in pairs.
        if func is torch.conv2d and len(args) == 7 and not kwargs and all(isinstance(a, tuple) for a in args[3:6]):
            return conv2d(*args)
        return func(*args, **(kwargs or {}))
