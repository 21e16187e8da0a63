"""The concatenated layout on the GPU: tables, launches, gradients."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fastslow.hypernets import native
from fastslow.hypernets.horizon import horizon
from fastslow.hypernets.kernels import concat as forward_kernels
from fastslow.hypernets.kernels import concat_backward as backward_kernels
from fastslow.hypernets.segments import constant, repeated, segment_max

if TYPE_CHECKING:
    from fastslow.hypernets.slow import MambaSlowNet

TILE = 128  # tokens: four a lane, which makes the scan within a tile cheap
_GROUP = 280_000  # tokens in a row of a group of layers: it bounds the memory
_PARTS = 4  # programs that share the channels of a tile
_SOME = 4  # states of a program of the backward kernel
_REGISTERS = 168  # of a thread there: the few bytes that don't fit cost less than fewer warps at work
_REGISTERS_UNPROJECT = 128
_CARRY = 32  # tiles that a carry takes at once
_STATES = 16
_NEVER = 1 << 30  # a start that no tile reaches


class Table(NamedTuple):
    """The tiles of a row, as the kernels read them."""

    tiles: Tensor  # (tiles, 3)
    layers: Tensor  # (layers, 4)
    places: int


class Group(NamedTuple):
    """Some neighbouring layers: the row with their embeddings, and all others."""

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
        before = len(tiles)
        tiles += [(index, at, min(tile, size - at)) for at in range(begin, size, tile)]
        layers.append((column, size, before, len(tiles)))
        column += size
    as_tensor = functools.partial(torch.tensor, dtype=torch.int32, device=device)
    return Table(as_tensor(tiles), as_tensor(layers), len(tiles) * tile)


def concat(
    net: MambaSlowNet,
    history: Tensor,
    sizes: Sequence[int],
    layers: Sequence[int],
    scales: Tensor | None,
    known: Tensor | None = None,
    *,
    tile: int = TILE,
) -> Tensor:
    """`MambaSlowNet.concat` for what `can_run` allows; history (l, N), result (N,). Never waits for the GPU."""
    padded = native.padded_sizes(net)
    assert padded is not None
    taps = padded[1]
    records = native.records(net, _STATES, taps)
    channels = len(records)
    guess = None
    if net.horizon_tol > 0 and len(history) > 1:
        starts, guess = horizon(net, history, sizes, layers, scales, net.horizon_tol)
        starts = starts.amin(2)
    else:
        starts = torch.zeros(len(sizes), channels, dtype=torch.int32, device=history.device)
    token_weight = history.new_ones(1, 1) if net.W_a is None else net.W_a.weight
    lre = net.lre.weight[:, 0].index_select(0, constant(layers, history.device))
    unit = history.new_ones(len(sizes)) if scales is None else 1 / scales
    zoh = net.discretization == "zoh"
    call = _Call(history.contiguous(), tuple(sizes), scales, unit, starts, guess, channels, taps, zoh, tile)
    return cast(Tensor, _Concat.apply(records, token_weight, lre, call, known))


class _Call(NamedTuple):
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


class _Concat(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, records: Tensor, token_weight: Tensor, lre: Tensor, call: _Call, known: Tensor | None
    ) -> Tensor:
        records = records.T.contiguous()  # lanes are channels
        ctx.save_for_backward(records, token_weight, lre)
        ctx.call = call
        if known is not None:
            ctx.starts = call.checked(known)[0]
            return known.clone()
        partial = call.history.new_empty(_PARTS, call.history.shape[1])
        _outputs(records, token_weight, lre, call, call.starts, partial)
        out = partial.sum(0) * _spread(call)
        ctx.starts, again = call.checked(out)
        if call.guess is None:
            return out
        # Layers whose largest output was guessed too large are done again in full: launched always, since asking would
        # wait for the GPU, but done only by them.
        _outputs(records, token_weight, lre, call, again, partial)
        return partial.sum(0) * _spread(call)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        records, token_weight, lre = ctx.saved_tensors
        call: _Call = ctx.call
        cotangent = (cotangent * _spread(call)).contiguous()
        total = torch.zeros(call.channels, len(records), dtype=torch.float64, device=records.device)
        d_token = torch.zeros(1, dtype=torch.float64, device=records.device)
        d_lre = []
        for group in call.groups:
            sweep = _Sweep(records, token_weight, lre, call, ctx.starts, group)
            piece, rest, firsts = sweep.gradients(cotangent)
            total += piece
            d_token += rest
            d_lre.append(firsts)
        return (
            total.to(records.dtype),
            d_token.to(records.dtype).view_as(token_weight),
            torch.cat(d_lre).to(lre.dtype),
            None,
            None,
        )


def _spread(call: _Call) -> Tensor | float:
    return 1.0 if call.scales is None else repeated(call.scales, call.sizes)


def _outputs(records: Tensor, token_weight: Tensor, lre: Tensor, call: _Call, starts: Tensor, partial: Tensor) -> None:
    for group in call.groups:
        _Sweep(records, token_weight, lre, call, starts, group).outputs(partial)


class _Sweep:
    """The launches over the rows of one group of layers, and the memory that they share."""

    def __init__(
        self, records: Tensor, token_weight: Tensor, lre: Tensor, call: _Call, starts: Tensor, group: Group
    ) -> None:
        self.records, self.token_weight, self.call, self.group = records, token_weight, call, group
        self.lre, self.unit = lre[group.span].contiguous(), call.unit[group.span].contiguous()
        self.starts = starts[group.span].contiguous()
        self.earliest = self.starts.amin(1)
        self.rows, self.weights = call.history.shape
        self.channels = call.channels
        self.part = {"PER_PART": -(-self.channels // _PARTS)}
        self.scan = {"TAPS": call.taps, "T": call.tile, "ZOH": call.zoh, "num_warps": 1}
        places = max(group.first.places, group.later.places)
        self.tokens = records.new_empty(int(forward_kernels.ROWS), places)
        self.xs = records.new_empty(self.channels, places)
        self.dts = records.new_empty(self.channels, places)

    def _kept(self) -> Tensor:
        return self.records.new_zeros(len(self.starts), self.channels, _STATES)

    def _per_tile(self, table: Table) -> Tensor:
        return self.records.new_empty(len(table.tiles), self.channels, _STATES)

    def _project(self, row: int) -> Table:
        table = self.group.row(row)
        _launch(
            forward_kernels.project, (len(table.tiles), 2), self.records, self.token_weight, self.call.history,
            self.lre, self.unit, table.tiles, table.layers, self.earliest, self.tokens, self.xs, self.dts, row,
            self.weights, table.places, self.channels, TAPS=self.call.taps, T=self.call.tile, num_warps=1,
        )  # fmt: skip
        return table

    def _enter(self, row: int, table: Table, kept: Tensor) -> tuple[Tensor, Tensor]:
        """The state that comes into each tile of a projected row, and the sum of the tile's steps."""
        added = self._per_tile(table)
        totals = self.records.new_empty(added.shape[:2])
        _launch(
            forward_kernels.summarise, (len(table.tiles), _PARTS), self.records, table.tiles, table.layers, self.starts,
            self.tokens, self.xs, self.dts, added, totals, row, table.places, self.channels, **self.part, **self.scan,
        )  # fmt: skip
        return self._carry(row, table, added, totals, kept, back=False), totals

    def _carry(self, row: int, table: Table, added: Tensor, totals: Tensor, kept: Tensor, *, back: bool) -> Tensor:
        coming_in = torch.empty_like(added)
        _launch(
            forward_kernels.carry, tuple(kept.shape[:2]), self.records, table.tiles, table.layers, self.starts, added,
            totals, coming_in, kept, row, self.channels, TAPS=self.call.taps, BACK=back, N=_CARRY, num_warps=1,
        )  # fmt: skip
        return coming_in

    def outputs(self, partial: Tensor) -> None:
        kept, last = self._kept(), self.rows - 1
        for row in range(last):
            self._enter(row, self._project(row), kept)
        table = self._project(last)
        states, _ = self._enter(last, table, kept)
        _launch(
            forward_kernels.outputs, (len(table.tiles), len(partial)), self.records, table.tiles, table.layers,
            self.starts, self.earliest, self.tokens, self.xs, self.dts, states, partial, last, self.weights,
            table.places, self.channels, **self.part, **self.scan,
        )  # fmt: skip

    def gradients(self, cotangent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of the records and of W_a, float64, and of the embeddings."""
        call, kept = self.call, self._kept()
        entered = [self._enter(row, self._project(row), kept) for row in range(self.rows)]
        kept = self._kept()
        splits, places = _STATES // _SOME, self.xs.shape[1]
        slots = max(len(group.tiles) for group in (self.group.first, self.group.later))
        dx = self.xs.new_empty(splits, call.channels, places)
        dtokens = self.tokens.new_empty(2 * (splits + _STATES), places)
        # Tiles that can't change anything are left alone, so what they would write has to be zero.
        own = self.records.new_zeros(splits, slots, call.channels, int(backward_kernels.OWN))
        mixed = self.records.new_zeros(slots, call.channels, int(backward_kernels.MIXED))
        rests = {id(table): self.records.new_zeros(len(table.tiles), _PARTS, 2) for table in self.group[:2]}
        for row in reversed(range(self.rows)):
            last = row == self.rows - 1
            table = self.group.row(row) if last else self._project(row)
            states, totals = entered.pop()
            added = torch.empty_like(states)
            tables = (self.records, table.tiles, table.layers, self.starts, self.tokens)
            _launch(
                backward_kernels.back_summarise, (len(table.tiles), _PARTS), *tables, self.dts, cotangent, added, row,
                table.places, call.channels, WANTED=last, **self.part, **self.scan,
            )  # fmt: skip
            flows = self._carry(row, table, added, totals, kept, back=True)
            _launch(
                backward_kernels.gradients, (len(table.tiles), splits), *tables, self.xs, self.dts, states,
                flows, cotangent, dx, dtokens, own, slots, row, table.places, call.channels, WANTED=last, SOME=_SOME,
                maxnreg=_REGISTERS, **self.scan,
            )  # fmt: skip
            _launch(
                backward_kernels.unproject, (len(table.tiles), _PARTS), self.records, self.token_weight, call.history,
                self.lre, self.unit, table.tiles, table.layers, self.starts, self.earliest, self.xs, dx, dtokens, mixed,
                rests[id(table)], row, self.weights, table.places, call.channels, SPLITS=splits, TAPS=call.taps,
                T=call.tile, num_warps=1, maxnreg=_REGISTERS_UNPROJECT, **self.part,
            )  # fmt: skip
        A, steps, ends = own.sum(1, dtype=torch.float64)[..., : _SOME + 5].split([_SOME, 2, 3], 2)
        first = mixed.sum(0, dtype=torch.float64)[:, : call.taps + 2 + 2 * _STATES]
        fields = [first, steps.sum(0), *A.unbind(0), ends.sum(0)]
        rest = sum(part[..., 0].sum(dtype=torch.float64) for part in rests.values())
        d_lre = sum(_sum_by_layer(rests[id(table)][..., 1], table) for table in self.group[:2])
        return torch.cat(fields, 1), cast(Tensor, rest), cast(Tensor, d_lre)


def _sum_by_layer(values: Tensor, table: Table) -> Tensor:
    """Values of each tile, in parts -> their sums, one a layer."""
    values = values.sum(1)
    ends = torch.cat([table.layers[:, 2], table.layers[-1:, 3]]).to(torch.int64)
    if values.device.type == "cuda":
        return torch.segment_reduce(values, "sum", offsets=ends, unsafe=True)
    return torch.stack([part.sum() for part in values.split(ends.diff().tolist())])


def _launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    kernel[grid](*arguments, **options)
