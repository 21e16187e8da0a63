"""Out of the caller's autocast."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """What is computed inside keeps its own precision, whatever autocast encloses the call.

    Torch's optimizers don't mind being stepped inside `torch.autocast`, and loops do so; hypernetworks and rotations
    would run in half precision there.
    """
    kind = device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()
