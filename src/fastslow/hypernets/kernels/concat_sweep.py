"""The launches of the concatenated layout over the rows of the history, forward and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastslow.hypernets.kernels import concat as forward_kernels
from fastslow.hypernets.kernels import concat_backward as backward_kernels
from fastslow.hypernets.kernels import concat_return as return_kernels
from fastslow.hypernets.kernels.concat_call import LANES, STATES, Call, Group, Table
from fastslow.ops.switch import launch

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


class Room:
    """The memory of a sweep: what is found for each token, of one row or of the `whole` history, and for each tile."""

    def __init__(self, call: Call, group: Group, *, whole: bool = False) -> None:
        new, table, rows = call.history.new_empty, group.first, len(call.history)
        self.whole = whole
        places = (rows if whole else 1, table.places)
        self.tokens = new(*places, int(forward_kernels.TOKEN))
        self.taps = new(*places, call.taps)
        self.xs, self.dts = (new(*places, call.channels) for _ in range(2))
        self.states = new(rows, len(table.tiles), STATES, call.channels)  # that come into each tile
        self.totals = new(rows, len(table.tiles), call.channels)  # sums of its steps
        self.made_from: Any = None  # `Call.made_from` of what is in it

    @staticmethod
    def bytes_of_whole(call: Call, group: Group) -> int:
        of_token = int(forward_kernels.TOKEN) + call.taps + 2 * call.channels
        of_tile = (STATES + 1) * call.channels
        numbers = group.first.places * of_token + len(group.first.tiles) * of_tile
        return len(call.history) * numbers * call.history.element_size()

    def projections(self, row: int) -> tuple[Tensor, ...]:
        """Of a row: tokens, taps, xs and dts."""
        at = row if self.whole else 0
        return self.tokens[at], self.taps[at], self.xs[at], self.dts[at]


class Sweep:
    """The launches over the rows of one group of layers."""

    def __init__(self, parameters: tuple[Tensor, ...], call: Call, starts: Tensor, group: Group, room: Room) -> None:
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
        self.places = group.first.places

    def _nothing(self) -> Tensor:
        return self.records.new_zeros(len(self.starts), STATES, self.channels)

    def _per_tile(self, table: Table) -> Tensor:
        return self.records.new_empty(len(table.tiles), STATES, self.channels)

    def _project(self, row: int) -> Table:
        table, call = self.group.row(row), self.call
        tokens, taps, xs, dts = self.room.projections(row)
        sizes = {"TAPS": call.taps, "T": call.tile}
        launch(
            forward_kernels.window, (len(table.tiles),), call.history, self.unit, table.tiles, table.layers,
            self.earliest, taps, row, self.weights, num_warps=1, **sizes,
        )  # fmt: skip
        launch(
            forward_kernels.project, (len(table.tiles), call.tile // self.block), self.records, self.token_weight,
            self.lre, table.tiles, table.layers, self.earliest, taps, tokens, xs, dts, row,
            CHANNELS=self.channels, BLOCK=self.block, WANTED=row == self.rows - 1, num_stages=1, **_PROJECT, **sizes,
        )  # fmt: skip
        return table

    def _enter(self, row: int, kept: Tensor) -> None:
        """Project a row; find the state that comes into each of its tiles, and the sum of the tile's steps."""
        table = self._project(row)
        tokens, _taps, xs, dts = self.room.projections(row)
        added, totals = self._per_tile(table), self.room.totals[row]
        launch(
            forward_kernels.summarise, (len(table.tiles), self.split["GROUPS"]), self.records, table.tiles,
            table.layers, self.group_starts, tokens, xs, dts, added, totals, row, ZOH=self.call.zoh, **self.walk,
        )  # fmt: skip
        self._carry(row, added, self.room.states[row], kept, back=False)

    def _carry(self, row: int, added: Tensor | None, coming_in: Tensor, kept: Tensor, *, back: bool) -> None:
        table, totals = self.group.row(row), self.room.totals[row]
        launch(
            forward_kernels.carry, (len(kept), STATES, self.split["GROUPS"]), self.records, table.tiles, table.layers,
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
        tokens, _taps, xs, dts = self.room.projections(last)
        launch(
            forward_kernels.outputs, (len(table.tiles), len(partial)), self.records, table.tiles, table.layers,
            self.group_starts, tokens, xs, dts, self.room.states[last], partial, last, self.weights,
            ZOH=self.call.zoh, **self.walk,
        )  # fmt: skip

    def enter(self) -> None:
        """Find the states that come into all tiles, if they aren't there. The last row's projections stay as well."""
        if self.room.made_from != self.call.made_from:
            self._enter_all()

    def gradients(self, cotangent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of the records and of W_a, float64, and of the embeddings."""
        self.enter()
        if not self.room.whole:
            self.room.made_from = None  # other rows' projections will take the last one's place
        sums, call = Sums(self), self.call
        kept = self._nothing()
        flows = torch.empty_like(self.room.states[0])
        for row in reversed(range(self.rows)):
            last = row == self.rows - 1
            table = self.group.row(row) if last or self.room.whole else self._project(row)
            tokens, taps, xs, dts = self.room.projections(row)
            states = self.room.states[row]
            tables = (self.records, table.tiles, table.layers, self.group_starts)
            added = None
            if last:
                added = torch.empty_like(states)
                launch(
                    backward_kernels.back_summarise, (len(table.tiles), self.split["GROUPS"]), *tables, tokens, dts,
                    cotangent, added, row, **self.walk,
                )  # fmt: skip
            self._carry(row, added, flows, kept, back=True)
            walkers = sums.walkers if last else sums.walkers_before
            launch(
                backward_kernels.gradients, (walkers, sums.splits, self.split["GROUPS"]), *tables, self.starts,
                tokens, xs, dts, states, flows, cotangent, sums.dx, sums.dtokens, sums.own, sums.noted,
                len(table.tiles), row, self.places, ZOH=self.call.zoh, WANTED=last, SOME=_SOME, maxnreg=_REGISTERS,
                **{**self.walk, "Q": self.unrolled},
            )  # fmt: skip
            launch(
                return_kernels.join_groups, (len(table.tiles), call.tile // self.block), *tables[1:],
                self.earliest, sums.dtokens, row, self.places, GROUPS=self.split["GROUPS"], SPLITS=sums.splits,
                T=call.tile, ROWS=self.block, num_warps=1,
            )  # fmt: skip
            launch(
                return_kernels.unproject, (len(sums.rest), self.split["GROUPS"]), self.records, self.token_weight,
                self.lre, *tables[1:], self.earliest, taps, xs, sums.dx, sums.dtokens, sums.mixed,
                sums.filters, sums.rest, sums.edges, len(table.tiles), row, self.places, SPLITS=sums.splits,
                WANTED=last, maxnreg=_REGISTERS, **{**self.walk, "Q": min(_UNROLLED_RETURN, call.tile)},
            )  # fmt: skip
        return sums.result()


class Sums:
    """What the backward kernels write: parts of sums, one for each program, and what they hand to each other."""

    splits = STATES // _SOME

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        channels, groups, taps = sweep.channels, sweep.split["GROUPS"], sweep.call.taps
        tiles = max(len(table.tiles) for table in sweep.group[:2])
        self.walkers, self.walkers_before = min(_WALKERS, tiles), min(_WALKERS_BEFORE, tiles)
        most = max(self.walkers, self.walkers_before)
        programs = min(_RETURNERS, tiles)
        new, zeros = sweep.records.new_empty, sweep.records.new_zeros
        self.dx = new(self.splits, sweep.places, channels)
        self.dtokens = new(groups, sweep.places, int(backward_kernels.D_TOKEN))
        self.noted = new(most, self.splits, groups, sweep.call.tile // sweep.unrolled, _SOME, LANES)
        self.own = zeros(most, _SOME + int(backward_kernels.ENDS), self.splits, channels)
        self.mixed = zeros(programs, 2 * STATES + 1, channels)
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
        fields = [seen.flip(0), filters[taps : taps + 1], mixed[2 * STATES :], mixed[: 2 * STATES]]
        records = torch.cat([*fields, ends[:2], A, ends[2:]]).T
        d_token = (weights * filters[:taps]).sum() + self.rest.sum(dtype=torch.float64)
        return records, d_token, torch.einsum("kc,lkc->l", weights, self.edges.double())
