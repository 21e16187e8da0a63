"""Where tests of Triton kernels run: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytest.importorskip("triton")
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []


def wide_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions in as few programs as can be, which the interpreter runs one after the other."""
    from fastslow.ops import conv

    for tiles in (conv._FORWARD, conv._BACKWARD):
        for channels in tiles:
            monkeypatch.setitem(tiles, channels, (64, 2, 4, 1))


def last(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """``x`` on the device, channels-last, in the type that a kernel reads."""
    return x.to(DEVICE, dtype).contiguous(memory_format=torch.channels_last)
