"""When the fused operations are used, and whether one can be trusted on a device."""

from __future__ import annotations

import functools
import importlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger("fastslow")

SWITCH = "FASTSLOW_FUSED"  # the environment variable: 0 leaves everything to torch

LAST = torch.channels_last
_fused: ContextVar[bool] = ContextVar("fused", default=False)


@contextmanager
def fused(wanted: bool = True) -> Iterator[None]:
    """While entered, forward passes of this thread use the fused operations where they can run."""
    token = _fused.set(wanted and os.environ.get(SWITCH, "1") != "0")
    try:
        yield
    finally:
        _fused.reset(token)


def is_fused() -> bool:
    """Whether a ``with fused():`` is entered; never for a compiler, which sees plain torch."""
    return not torch.compiler.is_compiling() and _fused.get()


def on_current_device(x: Tensor) -> bool:
    """Whether a kernel launched now would run where ``x`` is."""
    return x.device.type == "cuda" and x.device.index == torch.cuda.current_device()


def may_round_to_tf32(older: Any, newer: Any) -> bool:
    """Whether torch's own operations may round factors to TF32: then so may ours.

    ``newer`` has the say in torch 2.9 and later, where asking the older name may fail.
    """
    precision = getattr(newer, "fp32_precision", None)
    return bool(older.allow_tf32) if precision is None else precision == "tf32"


def channels_last(x: Tensor) -> bool:
    return x.dim() == 4 and x.is_contiguous(memory_format=LAST)


def ceil(a: int, b: int) -> int:
    return -(-a // b)


def launch(kernel: Any, grid: tuple[int, ...], *tensors: Tensor | float | None, **constants: Any) -> None:
    """Start a Triton kernel, whose parameters a type checker takes for what they are inside it."""
    kernel[grid](*tensors, **constants)


@functools.cache
def trusted(operation: str, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernels of ``ops/<operation>.py`` agree with torch on a small problem, tried once on each device."""
    try:
        with fused(False), torch.autocast(device.type, enabled=False):
            agree = importlib.import_module(f"fastslow.ops.{operation}").agrees(dtype, device)
    except Exception as error:  # Triton isn't there, or whatever a compiler or a driver may raise
        log.warning("the fused %s doesn't run on %s, PyTorch takes its place: %s", operation, device, error)
        return False
    if not agree:
        log.warning("the fused %s computes wrongly on %s: PyTorch takes its place", operation, device)
    return agree
