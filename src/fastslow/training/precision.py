"""``precision`` of a run as torch's switches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def float32_products(device: torch.device, tf32: bool) -> Iterator[None]:
    """While entered, whether products of float32 on a GPU may round their factors to TF32's 10 bits.

    Torch's own default allows it for convolutions and not for matrices: a run says which it means.
    """
    if device.type != "cuda":
        yield
        return
    switches: list[tuple[Any, str, Any]]
    if hasattr(torch.backends.cudnn, "conv"):  # torch 2.9 and later; using the older names too would be an error
        value = "tf32" if tf32 else "ieee"
        switches = [
            (torch.backends.cuda.matmul, "fp32_precision", value),
            (torch.backends.cudnn.conv, "fp32_precision", value),  # pyright: ignore[reportAttributeAccessIssue]
        ]
    else:
        switches = [(torch.backends.cuda.matmul, "allow_tf32", tf32), (torch.backends.cudnn, "allow_tf32", tf32)]
    before = [getattr(place, name) for place, name, _ in switches]
    for place, name, value in switches:
        setattr(place, name, value)
    try:
        yield
    finally:
        for (place, name, _), value in zip(switches, before, strict=True):
            setattr(place, name, value)
