"""The slow-net as Triton kernels: d_model 1, dt_rank 1, float32, on a CUDA device.

Triton comes with torch's CUDA builds and is imported here only, on first use. `TRITON_INTERPRET=1` runs the kernels on
the CPU, slowly: that is how the tests check them without a GPU.
"""

from __future__ import annotations

import functools
import logging
import os
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fastslow.hypernets import native

if TYPE_CHECKING:
    from fastslow.hypernets.slow import MambaSlowNet

log = logging.getLogger("fastslow")

MAX_TOKENS = 12  # of a per-weight sequence: they are unrolled, and held in registers


@functools.cache
def available() -> bool:
    """Whether Triton can be imported; said once in the log if not."""
    try:
        import triton  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        log.info("Triton isn't installed: the slow-net runs on the GPU as plain PyTorch, which is slower")
        return False
    return True


def interpreted() -> bool:
    """Whether Triton was asked to run on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def can_run(net: MambaSlowNet, history: Tensor) -> bool:
    """Whether the kernels take this net and history."""
    return (
        history.device.type == "cuda"
        and history.dtype == net.D.dtype == torch.float32
        and not history.requires_grad
        and native.padded_sizes(net) is not None
        and available()
    )
