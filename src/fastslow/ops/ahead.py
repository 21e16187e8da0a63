"""The bits of all layers of a forward pass in one launch before it: layers don't depend on each other's weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor

from .switch import ceil, is_fused, launch, on_current_device

_BLOCK = 4096  # weights whose bits a program makes
_STEP = 1 << 14  # weights that it looks at together, for the layer's maximum
_LARGEST_LAYER = 1 << 16  # a larger one fills the card by itself, and takes two kernels
_APART = 128  # numbers: every layer's results start at a multiple of 512 bytes, as if they were allocated by themselves


class Bits(NamedTuple):
    """-1 and +1 in the layout of the weight, and max |tanh(W - shift)|."""

    values: Tensor
    largest: Tensor


class Place(NamedTuple):
    """Where the numbers of a tensor are. Two tensors at one place are one to a kernel."""

    address: int
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, x: Tensor) -> Place:
        return cls(x.data_ptr(), x.shape, x.stride(), x.dtype, x.device)


Places = tuple[Place, Place | None]  # of a weight and of its look-ahead shift


def places(weight: Tensor, shift: Tensor | None) -> Places:
    return Place.of(weight), None if shift is None else Place.of(shift)


class Table:
    """Addresses of the weights and shifts of some layers, for one launch over all of them, again and again."""

    def __init__(self, layers: Sequence[Places]) -> None:
        self.layers = list(layers)
        self.starts: list[int] = []
        self.total = 0
        rows: list[tuple[int, ...]] = []
        for index, (weight, shift) in enumerate(layers):
            size = weight.shape.numel()
            addresses = (weight.address, 0 if shift is None else shift.address)
            rows += [(*addresses, size, first, self.total, index) for first in range(0, size, _BLOCK)]
            self.starts.append(self.total)
            self.total += ceil(size, _APART) * _APART
        self.aligned = all(number % 16 == 0 for row in rows for number in row[:3])
        self.rounds = ceil(max(weight.shape.numel() for weight, _ in layers), _STEP)
        self.device = layers[0][0].device
        self.rows = torch.tensor(rows, dtype=torch.int64).to(self.device)


def bits_of_many(table: Table) -> list[Bits]:
    """The bits of every layer of a table."""
    from . import quantize_kernels

    values = torch.empty(table.total, dtype=torch.float32, device=table.device)
    largest = values.new_empty(len(table.layers), _APART)
    launch(
        quantize_kernels.binary_values_of_many, (len(table.rows),), table.rows, values, largest,
        LOOKS_AHEAD=any(shift is not None for _, shift in table.layers), LIBDEVICE=values.is_cuda,
        ALIGNED=table.aligned, BLOCK=_BLOCK, STEP=_STEP, ROUNDS=table.rounds, APART=_APART, num_warps=16,
    )  # fmt: skip
    # Tensors of their own on one storage, and no views: writing into one layer's bits is no change of the others'.
    storage, layers = values.untyped_storage(), zip(table.layers, table.starts, largest[:, 0].unbind(), strict=True)
    return [Bits(values.new_empty(0).set_(storage, start, w.shape, w.stride), top) for (w, _), start, top in layers]


class _Request(NamedTuple):
    weight: Tensor
    shift: Tensor | None
    places: Places


class _Made(NamedTuple):
    bits: Bits
    places: Places
    versions: tuple[int, ...]


def _versions(weight: Tensor, shift: Tensor | None) -> tuple[int, ...]:
    """They differ once one of both has been written into."""
    return (weight._version,) if shift is None else (weight._version, shift._version)


class BitsAhead:
    """Bits for forward passes that are like each other: what one asked for is made in one launch before the next.

    A layer finds its bits where its weight and its shift are still what they were at the beginning of the pass, once;
    everything else is left to the launches of the layers themselves. A write through ``weight.data`` in the middle of a
    forward pass, which torch doesn't count, isn't seen.
    """

    def __init__(self) -> None:
        self._asked: dict[Tensor, _Request] = {}  # by the pass that is going on, or by the last one
        self._made: dict[Tensor, _Made] = {}
        self._table: Table | None = None
        self._captured: list[Table] = []  # CUDA graphs read them for as long as they live

    @contextmanager
    def made(self) -> Iterator[None]:
        """Around a forward pass, inside ``fused()``."""
        self._made = self._make() if is_fused() else {}
        self._asked = {}
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)
            self._made = {}

    def _make(self) -> dict[Tensor, _Made]:
        here = [
            r for r in self._asked.values() if on_current_device(r.weight) and places(r.weight, r.shift) == r.places
        ]
        layers = [request.places for request in here]
        if not here:
            return {}
        capturing = here[0].weight.is_cuda and torch.cuda.is_current_stream_capturing()
        if self._table is None or self._table.layers != layers:
            if capturing:  # a table can't be made in the middle of it
                return {}
            self._table = Table(layers)
        if capturing:
            self._captured.append(self._table)
        return {
            request.weight: _Made(bits, request.places, _versions(request.weight, request.shift))
            for request, bits in zip(here, bits_of_many(self._table), strict=True)
        }

    def take(self, weight: Tensor, shift: Tensor | None) -> Bits | None:
        """The bits of W - shift, if they have been made and nothing has changed since. They are the caller's own."""
        now = places(weight, shift)
        if weight.numel() <= _LARGEST_LAYER:
            self._asked.setdefault(weight, _Request(weight, shift, now))
        made = self._made.pop(weight, None)
        if made is None or made.places != now or made.versions != _versions(weight, shift):
            return None
        return made.bits


_current: ContextVar[BitsAhead | None] = ContextVar("bits_ahead", default=None)


def made_ahead(weight: Tensor, shift: Tensor | None) -> Bits | None:
    """What the `BitsAhead` around this forward pass, if there is one, has made for a weight that the kernels take."""
    current = _current.get()
    return None if current is None else current.take(weight, shift)
