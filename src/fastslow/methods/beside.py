"""Work beside the model's own pass: a second stream of the GPU, or, on a CPU, simply now."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@contextmanager
def beside(device: torch.device) -> Iterator[None]:
    """What is started in here runs beside what is started after it, until `join`.

    Memory that it leaves behind goes to later work in here, which waits for the caller's stream first: whatever the
    caller did with its results is done by then.
    """
    if device.type != "cuda":
        yield
        return
    stream = _stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield


def join(device: torch.device) -> None:
    """What is started from now on sees what was done beside it."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).wait_stream(_stream(device))
