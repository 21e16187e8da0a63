"""What a pass of the concatenated layout on the GPU is about, and the tables of tiles that its kernels read."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastslow.hypernets.segments import segment_max

TILE = 128  # tokens: more make the walk through a tile longer, fewer leave more for the carry
STATES = 16
LANES = 32
_GROUP = 280_000  # tokens in a row of a group of layers: it bounds the memory
_NEVER = 1 << 30  # a start that no tile reaches


class Table(NamedTuple):
    """The tiles of a row, as the kernels read them."""

    tiles: Tensor  # (tiles, 3)
    layers: Tensor  # (layers, 4)
    places: int


class Group(NamedTuple):
    """Some neighbouring layers: the row with their embeddings, and all others. Tiles have the same numbers."""

    first: Table
    later: Table
    span: slice  # of the layers among all

    def row(self, row: int) -> Table:
        return self.later if row else self.first


@functools.lru_cache(maxsize=16)
def groups(sizes: tuple[int, ...], device: torch.device, tile: int) -> list[Group]:
    """Neighbouring layers, at most `_GROUP` tokens a row together (or one larger layer)."""
    found, first, column = [], 0, 0
    while first < len(sizes):
        stop, tokens = first + 1, sizes[first]
        while stop < len(sizes) and tokens + sizes[stop] <= _GROUP:
            tokens += sizes[stop]
            stop += 1
        with_lre, without = (_table(sizes[first:stop], column, begin, device, tile) for begin in (-1, 0))
        found.append(Group(with_lre, without, slice(first, stop)))
        first, column = stop, column + tokens
    return found


def _table(sizes: tuple[int, ...], column: int, begin: int, device: torch.device, tile: int) -> Table:
    tiles, layers = [], []
    for index, size in enumerate(sizes):
        before = len(tiles)  # as many in every row, so that a layer never writes where another one's numbers are
        tiles += [(index, at, min(tile, size - at)) for at in range(begin, begin + size + 1, tile)]
        layers.append((column, size, before, len(tiles)))
        column += size
    as_tensor = functools.partial(torch.tensor, dtype=torch.int32, device=device)
    return Table(as_tensor(tiles), as_tensor(layers), len(tiles) * tile)


class Call(NamedTuple):
    history: Tensor
    sizes: tuple[int, ...]
    scales: Tensor | None
    unit: Tensor  # (layers,): what the net sees is the history times this
    starts: Tensor  # (layers, channels)
    guess: Tensor | None
    channels: int
    taps: int
    zoh: bool
    tile: int
    made_from: Any  # what the states of a sweep depend on

    @property
    def split(self) -> dict[str, int]:
        """The channels, in groups of at most a warp's lanes."""
        groups = -(-self.channels // LANES)
        return {"CHANNELS": self.channels, "PER": -(-self.channels // groups), "GROUPS": groups}

    @property
    def groups(self) -> list[Group]:
        return groups(self.sizes, self.history.device, self.tile)

    def checked(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Starts that suffice for these outputs; and those of the layers to do again, to the beginning."""
        if self.guess is None:
            return self.starts, torch.full_like(self.starts, _NEVER)
        enough = (segment_max(out.abs(), self.sizes) * self.unit >= self.guess)[:, None]
        again = torch.where(enough, _NEVER, 0).to(torch.int32).expand_as(self.starts)
        return torch.where(enough, self.starts, 0), again
