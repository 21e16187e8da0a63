"""Out of memory, said in a way that helps: which settings of the run decide how much it needs."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ..files import how_to_resume
from ..methods import get_method
from .config import RunConfig

# What torch's allocators say; the last is of a size that doesn't even fit into a number.
_SIGNS = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc", "size calculation overflowed")

# Fields of methods that memory grows with.
_SMALLER = ("length", "expand", "d_state", "slow_hidden", "fast_hidden", "hidden")


class OutOfMemory(MemoryError):
    """There isn't as much memory as the run needs, and what to do."""


@functools.cache
def _trim() -> Callable[[int], int] | None:
    """The C library's way to hand freed memory back, where it has one (glibc)."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None


def give_back() -> None:
    """Hand freed memory back to the operating system.

    Training, evaluation and checkpoints by turns leave holes in the heap. Measured right after this call, the memory of
    a long run stays the same; between two calls it grows into the holes again.
    """
    if (trim := _trim()) is not None:
        trim(0)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that an allocation failed, on any device."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)
    )


@contextmanager
def explained(config: RunConfig, device: torch.device, run: Path | None = None) -> Iterator[None]:
    """Turn a failed allocation inside of the block into a sentence."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, OutOfMemory) or not is_out_of_memory(error):
            raise
        raise OutOfMemory(advice(config, device, asked=_asked(str(error)), run=run)) from error


def advice(config: RunConfig, device: torch.device, *, asked: str = "", run: Path | None = None) -> str:
    """Which settings to lower, with their values now."""
    method = None if config.method is None else get_method(config.method, **config.method_fields)
    fields = [name for name in _SMALLER if hasattr(method, name)]
    settings = [f"--batch-size (now {config.batch_size})"]
    settings += [f"--set {name}=... (now {getattr(method, name)})" for name in fields]
    ways = [f"lower {', '.join(settings)}"]
    if getattr(method, "layout", None) == "concat":
        ways.append("raise --set horizon_tol=..., with which the slow-net reads less of the history")
    if config.precision != "bf16":
        ways.append("use --precision bf16")
    if run is not None:
        ways.append(f"free memory and continue with {how_to_resume(run)}")
    return f"out of memory on {device.type}{asked}; {', or '.join(ways)}"


def _asked(message: str) -> str:
    if match := re.search(r"allocate (\d+) bytes", message):
        return f" ({int(match[1]) / 2**30:.2f} GiB more were asked for)"
    if match := re.search(r"Tried to allocate ([\d.]+ \wiB)", message):
        return f" ({match[1]} more were asked for)"
    return ""
