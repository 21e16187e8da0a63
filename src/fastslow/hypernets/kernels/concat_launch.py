"""The concatenated layout on the GPU: tables, launches, gradients."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fastslow.hypernets import native
from fastslow.hypernets.horizon import horizon
from fastslow.hypernets.kernels import concat as forward_kernels
from fastslow.hypernets.kernels import concat_backward as backward_kernels
from fastslow.hypernets.segments import constant, repeated, segment_max
from fastslow.ops.switch import launch

if TYPE_CHECKING:
    from fastslow.hypernets.slow import MambaSlowNet

TILE = 128  # tokens: more make the walk through a tile longer, fewer leave more for the carry
_GROUP = 280_000  # tokens in a row of a group of layers: it bounds the memory
_LANES = 32
_BLOCK = 16  # tokens that the matrix products take at once
_UNROLLED = 8  # tokens of the walk
_UNROLLED_BACK = 4  # of the walk back, whose states are all in registers
_SOME = 8  # states of a program of the backward kernel
_WALKERS = 198  # programs of it for each group of channels and part of the states: as many as run at once
_WALKERS_BEFORE = 528  # in rows of which only the slowest channels need much
_REGISTERS = 168  # of a thread there: the few bytes that don't fit cost less than fewer warps at work
_RETURNERS = 462  # programs of `unproject` for each group of channels: as many as run at once
_UNROLLED_RETURN = 2  # tokens there
_PROJECT = {"num_warps": 2, "maxnreg": 168}
_STATES = 16
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
        # Channels that forget slowly side by side: a group of them reaches back as far as its farthest.
        order = starts.mean(0, dtype=torch.float32).argsort(stable=True)
        records, starts = records.index_select(0, order), starts.index_select(1, order)
    else:
        starts = torch.zeros(len(sizes), channels, dtype=torch.int32, device=history.device)
    token_weight = history.new_ones(1, 1) if net.W_a is None else net.W_a.weight
    lre = net.lre.weight[:, 0].index_select(0, constant(layers, history.device))
    unit = history.new_ones(len(sizes)) if scales is None else 1 / scales
    zoh = net.discretization == "zoh"
    history = history.contiguous()
    versions = tuple(tensor._version for tensor in (history, *net.parameters()))
    made_from: Any = (history.data_ptr(), history.shape, tuple(layers), tuple(sizes), tile, net.horizon_tol, versions)
    if scales is not None:  # nobody knows what they were made from
        made_from = object()
    call = _Call(history, tuple(sizes), scales, unit, starts, guess, channels, taps, zoh, tile, made_from)
    return cast(Tensor, _Concat.apply(records, token_weight, lre, call, _kept_room(net, call), known))


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
    made_from: Any  # what the states of a sweep depend on

    @property
    def split(self) -> dict[str, int]:
        """The channels, in groups of at most a warp's lanes."""
        groups = -(-self.channels // _LANES)
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


class _Concat(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, records: Tensor, token_weight: Tensor, lre: Tensor, call: _Call, room: _Room, known: Tensor | None
    ) -> Tensor:
        records = records.T.contiguous()  # lanes are channels
        parameters = (records, token_weight, lre)
        ctx.save_for_backward(*parameters)
        ctx.call, ctx.room = call, room
        if known is not None:
            ctx.starts = call.checked(known)[0]
            # The way back needs the states of the way there. If they aren't there any more they are found now, perhaps
            # beside other work, before there is anything to differentiate.
            _Sweep(parameters, call, ctx.starts, call.groups[0], room).enter()
            return known.clone()
        partial = call.history.new_empty(call.split["GROUPS"], call.history.shape[1])
        _outputs(parameters, call, room, call.starts, partial)
        out = partial.sum(0) * _spread(call)
        ctx.starts, again = call.checked(out)
        if call.guess is not None:
            # Layers whose largest output was guessed too large are done again in full: launched always, since asking
            # would wait for the GPU, but done only by them.
            _outputs(parameters, call, room, again, partial)
            out = partial.sum(0) * _spread(call)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        records, token_weight, lre = parameters = ctx.saved_tensors
        call: _Call = ctx.call
        cotangent = (cotangent * _spread(call)).contiguous()
        total = torch.zeros(call.channels, len(records), dtype=torch.float64, device=records.device)
        d_token = torch.zeros(1, dtype=torch.float64, device=records.device)
        d_lre = []
        for sweep in _sweeps(parameters, call, ctx.room, ctx.starts):
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
            None,
        )


def _spread(call: _Call) -> Tensor | float:
    return 1.0 if call.scales is None else repeated(call.scales, call.sizes)


def _outputs(parameters: tuple[Tensor, ...], call: _Call, room: _Room, starts: Tensor, partial: Tensor) -> None:
    for sweep in _sweeps(parameters, call, room, starts):
        sweep.outputs(partial)


def _sweeps(parameters: tuple[Tensor, ...], call: _Call, room: _Room, starts: Tensor) -> Iterator[_Sweep]:
    """One for each group of layers. The first one's memory stays, which is all of it in a small network."""
    yield _Sweep(parameters, call, starts, call.groups[0], room)
    for group in call.groups[1:]:
        yield _Sweep(parameters, call, starts, group, _Room(call, group))


class _Room:
    """The memory of a sweep: what is found for each token of a row, and for each tile of all rows."""

    def __init__(self, call: _Call, group: Group) -> None:
        new, table, rows = call.history.new_empty, group.first, len(call.history)
        self.tokens = new(table.places, int(forward_kernels.TOKEN))
        self.taps = new(table.places, call.taps)
        self.xs, self.dts = (new(table.places, call.channels) for _ in range(2))
        self.states = new(rows, len(table.tiles), _STATES, call.channels)  # that come into each tile
        self.totals = new(rows, len(table.tiles), call.channels)  # sums of its steps
        self.made_from: Any = None  # `_Call.made_from` of what is in it


# A network's room for its first group of layers, and what it has room for. A look-ahead finds the states that the next
# step needs to differentiate it: they are not found twice. The room is there before a CUDA graph is captured, whose
# last launches fill what its first ones read in the next step.
_rooms: weakref.WeakKeyDictionary[MambaSlowNet, tuple[Any, _Room]] = weakref.WeakKeyDictionary()


def _kept_room(net: MambaSlowNet, call: _Call) -> _Room:
    size = (call.history.shape, call.history.device, call.sizes, call.channels, call.taps, call.tile)
    there = _rooms.get(net)
    if there is None or there[0] != size:
        there = _rooms[net] = size, _Room(call, call.groups[0])
    return there[1]


class _Sweep:
    """The launches over the rows of one group of layers."""

    def __init__(self, parameters: tuple[Tensor, ...], call: _Call, starts: Tensor, group: Group, room: _Room) -> None:
        self.records, self.token_weight, lre = parameters
        self.call, self.group, self.room = call, group, room
        self.lre, self.unit = lre[group.span].contiguous(), call.unit[group.span].contiguous()
        self.rows, self.weights = call.history.shape
        self.channels, self.split = call.channels, call.split
        self.starts = starts[group.span].contiguous()
        missing = self.split["PER"] * self.split["GROUPS"] - self.channels
        padded = torch.cat([self.starts, self.starts[:, -1:].expand(-1, missing)], 1)
        self.group_starts = padded.view(len(padded), self.split["GROUPS"], -1).amin(2)
        self.earliest = self.starts.amin(1)
        self.block = min(_BLOCK, call.tile)
        self.shape = {**self.split, "TAPS": call.taps, "T": call.tile}
        self.unrolled = min(_UNROLLED_BACK, call.tile)
        self.walk = {**self.shape, "Q": min(_UNROLLED, call.tile), "num_warps": 1}
        self.tokens, self.taps, self.xs, self.dts = room.tokens, room.taps, room.xs, room.dts

    def _nothing(self) -> Tensor:
        return self.records.new_zeros(len(self.starts), _STATES, self.channels)

    def _per_tile(self, table: Table) -> Tensor:
        return self.records.new_empty(len(table.tiles), _STATES, self.channels)

    def _project(self, row: int) -> Table:
        table, call = self.group.row(row), self.call
        sizes = {"TAPS": call.taps, "T": call.tile}
        launch(
            forward_kernels.window, (len(table.tiles),), call.history, self.unit, table.tiles, table.layers,
            self.earliest, self.taps, row, self.weights, num_warps=1, **sizes,
        )  # fmt: skip
        launch(
            forward_kernels.project, (len(table.tiles), call.tile // self.block), self.records, self.token_weight,
            self.lre, table.tiles, table.layers, self.earliest, self.taps, self.tokens, self.xs, self.dts, row,
            CHANNELS=self.channels, BLOCK=self.block, WANTED=row == self.rows - 1, num_stages=1, **_PROJECT, **sizes,
        )  # fmt: skip
        return table

    def _enter(self, row: int, kept: Tensor) -> None:
        """Project a row; find the state that comes into each of its tiles, and the sum of the tile's steps."""
        table = self._project(row)
        added, totals = self._per_tile(table), self.room.totals[row]
        launch(
            forward_kernels.summarise, (len(table.tiles), self.split["GROUPS"]), self.records, table.tiles,
            table.layers, self.group_starts, self.tokens, self.xs, self.dts, added, totals, row, ZOH=self.call.zoh,
            **self.walk,
        )  # fmt: skip
        self._carry(row, added, self.room.states[row], kept, back=False)

    def _carry(self, row: int, added: Tensor | None, coming_in: Tensor, kept: Tensor, *, back: bool) -> None:
        table, totals = self.group.row(row), self.room.totals[row]
        launch(
            forward_kernels.carry, (len(kept), _STATES, self.split["GROUPS"]), self.records, table.tiles, table.layers,
            self.starts, totals if added is None else added, totals, coming_in, kept, row, CHANNELS=self.channels,
            PER=self.split["PER"], TAPS=self.call.taps, Q=_UNROLLED, BACK=back, ADDS=added is not None, num_warps=1,
        )  # fmt: skip

    def _enter_all(self) -> None:
        kept = self._nothing()
        for row in range(self.rows):
            self._enter(row, kept)
        self.room.made_from = self.call.made_from

    def outputs(self, partial: Tensor) -> None:
        self._enter_all()
        last = self.rows - 1
        table = self.group.row(last)
        launch(
            forward_kernels.outputs, (len(table.tiles), len(partial)), self.records, table.tiles, table.layers,
            self.group_starts, self.tokens, self.xs, self.dts, self.room.states[last], partial, last, self.weights,
            ZOH=self.call.zoh, **self.walk,
        )  # fmt: skip

    def enter(self) -> None:
        """Find the states that come into all tiles, if they aren't there. The last row's projections stay as well."""
        if self.room.made_from != self.call.made_from:
            self._enter_all()

    def gradients(self, cotangent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of the records and of W_a, float64, and of the embeddings."""
        self.enter()
        self.room.made_from = None  # other rows' projections will take the last one's place
        sums, call = _Sums(self), self.call
        kept = self._nothing()
        flows = torch.empty_like(self.room.states[0])
        for row in reversed(range(self.rows)):
            last = row == self.rows - 1
            table = self.group.row(row) if last else self._project(row)
            states = self.room.states[row]
            tables = (self.records, table.tiles, table.layers, self.group_starts)
            added = None
            if last:
                added = torch.empty_like(states)
                launch(
                    backward_kernels.back_summarise, (len(table.tiles), self.split["GROUPS"]), *tables, self.tokens,
                    self.dts, cotangent, added, row, **self.walk,
                )  # fmt: skip
            self._carry(row, added, flows, kept, back=True)
            walkers = sums.walkers if last else sums.walkers_before
            launch(
                backward_kernels.gradients, (walkers, sums.splits, self.split["GROUPS"]), *tables, self.starts,
                self.tokens, self.xs, self.dts, states, flows, cotangent, sums.dx, sums.dtokens, sums.own, sums.noted,
                len(table.tiles), row, len(self.xs), ZOH=self.call.zoh, WANTED=last, SOME=_SOME, maxnreg=_REGISTERS,
                **{**self.walk, "Q": self.unrolled},
            )  # fmt: skip
            launch(
                backward_kernels.join_groups, (len(table.tiles), call.tile // self.block), *tables[1:],
                self.earliest, sums.dtokens, row, len(self.xs), GROUPS=self.split["GROUPS"], SPLITS=sums.splits,
                T=call.tile, ROWS=self.block, num_warps=1,
            )  # fmt: skip
            launch(
                backward_kernels.unproject, (len(sums.rest), self.split["GROUPS"]), self.records, self.token_weight,
                self.lre, *tables[1:], self.earliest, self.taps, self.xs, sums.dx, sums.dtokens, sums.mixed,
                sums.filters, sums.rest, sums.edges, len(table.tiles), row, len(self.xs), SPLITS=sums.splits,
                WANTED=last, maxnreg=_REGISTERS, **{**self.walk, "Q": min(_UNROLLED_RETURN, call.tile)},
            )  # fmt: skip
        return sums.result()


class _Sums:
    """What the backward kernels write: parts of sums, one for each program, and what they hand to each other."""

    splits = _STATES // _SOME

    def __init__(self, sweep: _Sweep) -> None:
        self.sweep = sweep
        channels, groups, taps = sweep.channels, sweep.split["GROUPS"], sweep.call.taps
        tiles = max(len(table.tiles) for table in sweep.group[:2])
        self.walkers, self.walkers_before = min(_WALKERS, tiles), min(_WALKERS_BEFORE, tiles)
        most = max(self.walkers, self.walkers_before)
        programs = min(_RETURNERS, tiles)
        new, zeros = sweep.records.new_empty, sweep.records.new_zeros
        self.dx = new(self.splits, *sweep.xs.shape)
        self.dtokens = new(groups, len(sweep.xs), int(backward_kernels.D_TOKEN))
        self.noted = new(most, self.splits, groups, sweep.call.tile // sweep.unrolled, _SOME, _LANES)
        self.own = zeros(most, _SOME + int(backward_kernels.ENDS), self.splits, channels)
        self.mixed = zeros(programs, 2 * _STATES + 1, channels)
        self.filters = zeros(programs, taps + 1, channels)
        self.rest = zeros(programs)
        self.edges = zeros(len(sweep.starts), taps, channels)

    def result(self) -> tuple[Tensor, Tensor, Tensor]:
        sweep, taps = self.sweep, self.sweep.call.taps
        own, mixed, filters = (part.sum(0, dtype=torch.float64) for part in (self.own, self.mixed, self.filters))
        A, ends = own[:_SOME].transpose(0, 1).flatten(0, 1), own[_SOME:].sum(1)
        # Taps are counted back in time, filters from the oldest on. What a tap saw is W_a times the raw token, or LRE.
        weights = sweep.records[:taps].flip(0).double()
        seen = filters[:taps] * sweep.token_weight.double().view(()) + torch.einsum(
            "l,lkc->kc", sweep.lre.double(), self.edges.double()
        )
        fields = [seen.flip(0), filters[taps : taps + 1], mixed[2 * _STATES :], mixed[: 2 * _STATES]]
        records = torch.cat([*fields, ends[:2], A, ends[2:]]).T
        d_token = (weights * filters[:taps]).sum() + self.rest.sum(dtype=torch.float64)
        return records, d_token, torch.einsum("kc,lkc->l", weights, self.edges.double())
