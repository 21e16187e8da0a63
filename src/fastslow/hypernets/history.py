"""Historical Gradient Storage (Eq. 8): the last l gradients of every layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class History:
    """Exactly ``length`` numbers a weight: one (length, all weights) buffer, a column range for each layer.

    Rows are oldest first, the newest always last: a push moves the others up. That costs less than it looks (they are
    read in this order anyway, and a ring would have to be copied for it), and no step depends on a counter in Python,
    so a CUDA graph can capture it. A layer's history grows from 1 to ``length`` entries over its first iterations.
    Layers may be pushed at different iterations (one that took no part in a step keeps its history as it is).
    """

    def __init__(self, sizes: Sequence[int], length: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self.length = length
        self.buffer = torch.zeros(length, sum(sizes), dtype=dtype, device=device)
        self.counts = [0] * len(sizes)  # pushes so far, of which the last `length` are stored
        ends = torch.tensor(sizes, dtype=torch.int64).cumsum(0).tolist()
        self._columns = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]

    def push(self, layers: Sequence[int], gradients: Tensor) -> None:
        """Store the gradients of some layers, flat and side by side, as their newest."""
        if len(layers) == len(self.counts):
            self._push(slice(None), gradients)
        else:
            sizes = [self._columns[i].stop - self._columns[i].start for i in layers]
            for i, part in zip(layers, gradients.split(sizes), strict=True):
                self._push(self._columns[i], part)
        for i in layers:
            self.counts[i] += 1

    def _push(self, columns: slice, gradients: Tensor) -> None:
        for row in range(self.length - 1):
            self.buffer[row, columns] = self.buffer[row + 1, columns]
        self.buffer[-1, columns] = gradients.detach()

    def stored(self, layer: int) -> int:
        """How many gradients of the layer are stored: 1 .. length once it has been pushed."""
        return min(self.counts[layer], self.length)

    def ordered(self, layer: int) -> Tensor:
        """``h_i`` before flattening: (stored, xi), oldest first."""
        return self.buffer[self.length - self.stored(layer) :, self._columns[layer]]

    def newest(self, layer: int) -> Tensor:
        """The layer's last gradient, flat."""
        return self.buffer[-1, self._columns[layer]]

    def ordered_together(self, layers: Sequence[int]) -> Tensor:
        """Histories of layers with equally many entries, side by side: (stored, sum of xi), oldest first."""
        stored = self.stored(layers[0])
        assert all(self.stored(i) == stored for i in layers)
        if len(layers) == len(self.counts):
            return self.buffer[self.length - stored :]
        return torch.cat([self.ordered(i) for i in layers], dim=1)

    def state_dict(self) -> dict[str, Any]:
        return {"buffer": self.buffer, "counts": list(self.counts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["buffer"].shape != self.buffer.shape or len(state["counts"]) != len(self.counts):
            raise ValueError(
                f"the saved gradient history has shape {tuple(state['buffer'].shape)}, this model needs "
                f"{tuple(self.buffer.shape)}: load it into the same model, layers and length"
            )
        self.buffer.copy_(state["buffer"])
        self.counts = [int(count) for count in state["counts"]]

    def to(self, device: torch.device) -> None:
        self.buffer = self.buffer.to(device)
