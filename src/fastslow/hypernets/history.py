"""Historical Gradient Storage (Eq. 8): the last l gradients of every layer, in one ring buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class History:
    """Exactly ``length`` numbers a weight: one (length, all weights) buffer, a column range for each layer.

    A layer's history grows from 1 to ``length`` entries over its first iterations, then the oldest is overwritten.
    Layers may be pushed at different iterations (one that took no part in a step keeps its history as it is).
    """

    def __init__(self, sizes: Sequence[int], length: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self.length = length
        self.buffer = torch.zeros(length, sum(sizes), dtype=dtype, device=device)
        self.counts = [0] * len(sizes)  # pushes so far, of which the last `length` are stored
        ends = torch.tensor(sizes, dtype=torch.int64).cumsum(0).tolist()
        self._columns = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]

    def push(self, layer: int, gradient: Tensor) -> None:
        """Store a layer's gradient as its newest."""
        self.buffer[self.counts[layer] % self.length, self._columns[layer]] = gradient.detach().reshape(-1)
        self.counts[layer] += 1

    def stored(self, layer: int) -> int:
        """How many gradients of the layer are stored: 1 .. length once it has been pushed."""
        return min(self.counts[layer], self.length)

    def ordered(self, layer: int) -> Tensor:
        """``h_i`` before flattening: (stored, xi), oldest first."""
        return self.buffer[self._rows(self.counts[layer]), self._columns[layer]]

    def newest(self, layer: int) -> Tensor:
        """The layer's last gradient, flat."""
        return self.buffer[(self.counts[layer] - 1) % self.length, self._columns[layer]]

    def ordered_together(self, layers: Sequence[int]) -> Tensor:
        """Histories of layers pushed equally often, side by side: (stored, sum of xi), oldest first."""
        count = self.counts[layers[0]]
        assert all(self.counts[i] == count for i in layers)
        if len(layers) == len(self.counts):
            return self.buffer[self._rows(count)]
        return torch.cat([self.ordered(i) for i in layers], dim=1)

    def _rows(self, count: int) -> list[int]:
        return [t % self.length for t in range(max(0, count - self.length), count)]

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
