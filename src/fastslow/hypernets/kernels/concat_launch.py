"""The concatenated layout on the GPU: tables, launches, gradients."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fastslow.hypernets import native
from fastslow.hypernets.horizon import horizon
from fastslow.hypernets.kernels import concat as forward_kernels
from fastslow.hypernets.kernels import concat_backward as backward_kernels
from fastslow.hypernets.segments import constant, repeated, segment_max

if TYPE_CHECKING:
    from fastslow.hypernets.slow import MambaSlowNet

CHUNK = 128  # tokens; more means fewer carries, and less to do side by side
_HALO = 8  # zeros before a layer's first token, which the convolution reads
_GROUP = 1 << 18  # tokens of a group of layers: it bounds the memory
_PROGRAMS = 264  # of the backward kernel, for each block of channels: two for each multiprocessor of an H200
_STATES, _LANES, _OWN = 16, 32, 5
_NEVER = 1 << 30  # a start that no chunk reaches


class Group(NamedTuple):
    """Some layers, and their chunks as the kernels read them."""

    chunks: Tensor  # (chunks, 6)
    layers: Tensor  # (layers, 5)
    span: slice  # of the layers among all
    places: int


@functools.lru_cache(maxsize=16)
def groups(sizes: tuple[int, ...], rows: int, device: torch.device, chunk: int) -> list[Group]:
    """Neighbouring layers, about `_GROUP` tokens together, cut into chunks."""
    found, first, column = [], 0, 0
    while first < len(sizes):
        chunks, layers, place, index = [], [], 0, first
        while index < len(sizes) and (index == first or place + rows * sizes[index] < _GROUP):
            size, before = sizes[index], len(chunks)
            length, wanted = rows * size + 1, (rows - 1) * size + 1
            place += _HALO
            cuts = [*range(wanted % chunk or chunk, wanted, chunk), *range(wanted, length, chunk)]
            for begin, end in zip([0, *cuts], [*cuts, length], strict=True):
                is_wanted = begin >= wanted
                out = column + begin - wanted if is_wanted else 0
                chunks.append((index - first, begin, end - begin, place + begin, is_wanted, out))
            layers.append((column, size, place, before, len(chunks)))
            place += length + chunk
            column += size
            index += 1
        table = torch.tensor(chunks, dtype=torch.int32, device=device)
        found.append(Group(table, torch.tensor(layers, dtype=torch.int32, device=device), slice(first, index), place))
        first = index
    return found


def concat(
    net: MambaSlowNet,
    history: Tensor,
    sizes: Sequence[int],
    layers: Sequence[int],
    scales: Tensor | None,
    known: Tensor | None = None,
    *,
    chunk: int = CHUNK,
) -> Tensor:
    """`MambaSlowNet.concat` for what `can_run` allows; history (l, N), result (N,). Never waits for the GPU."""
    padded = native.padded_sizes(net)
    assert padded is not None
    taps = padded[1]
    records = native.records(net, _STATES, taps)
    channels = len(records)
    starts, guess = None, None
    if net.horizon_tol > 0 and len(history) > 1:
        starts, guess = horizon(net, history, sizes, layers, scales, net.horizon_tol)
        by_channel = starts.amin(2)
        # Channels that remember for long go together, so that the other blocks needn't.
        order = by_channel.double().mean(0).argsort()
        records, by_channel = records.index_select(0, order), by_channel.index_select(1, order)
    else:
        by_channel = torch.zeros(len(sizes), channels, dtype=torch.int32, device=history.device)
    missing = -channels % _LANES
    if missing:
        silent = F.pad(records.new_full((missing, _STATES), -1.0), (taps + 4 + 2 * _STATES, 3))  # A = -1, all else 0
        records = torch.cat([records, silent])
        by_channel = F.pad(by_channel, (0, missing), value=_NEVER)
    blocks = by_channel.unflatten(1, (-1, _LANES)).amin(2).to(torch.int32)
    token_weight = history.new_ones(1, 1) if net.W_a is None else net.W_a.weight
    lre = net.lre.weight[:, 0].index_select(0, constant(layers, history.device))
    call = _Call(history.contiguous(), tuple(sizes), scales, blocks, guess, taps, net.discretization == "zoh", chunk)
    return cast(Tensor, _Concat.apply(records, token_weight, lre, call, known))


class _Call(NamedTuple):
    history: Tensor
    sizes: tuple[int, ...]
    scales: Tensor | None
    starts: Tensor  # (layers, blocks of channels)
    guess: Tensor | None
    taps: int
    zoh: bool
    chunk: int

    @property
    def unit(self) -> Tensor:
        ones = self.history.new_ones(len(self.sizes))
        return ones if self.scales is None else 1 / self.scales

    def checked(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Starts that suffice for these outputs; and those of the layers to do again, to the beginning."""
        if self.guess is None:
            return self.starts, torch.full_like(self.starts, _NEVER)
        enough = (segment_max(out.abs(), self.sizes) * self.unit >= self.guess)[:, None]
        return torch.where(enough, self.starts, 0), torch.where(enough, _NEVER, 0).to(torch.int32).expand_as(
            self.starts
        )


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
        blocks = call.starts.shape[1]
        partial = call.history.new_empty(blocks, call.history.shape[1])
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
        total = torch.zeros(records.shape[::-1], dtype=torch.float64, device=records.device)
        d_token = torch.zeros(1, dtype=torch.float64, device=records.device)
        d_lre = []
        for group in groups(call.sizes, len(call.history), call.history.device, call.chunk):
            piece, rest = _gradients(records, token_weight, lre, call, ctx.starts, cotangent, group)
            total += piece
            d_token += rest[:, 0].sum(dtype=torch.float64)
            d_lre.append(_sum_by_layer(rest[:, 1], group))
        return (
            total.to(records.dtype),
            d_token.to(records.dtype).view_as(token_weight),
            torch.cat(d_lre).to(lre.dtype),
            None,
            None,
        )


def _spread(call: _Call) -> Tensor | float:
    return 1.0 if call.scales is None else repeated(call.scales, call.sizes)


def _sum_by_layer(values: Tensor, group: Group) -> Tensor:
    """One value a chunk -> their sums, one a layer."""
    ends = torch.cat([group.layers[:, 3], group.layers[-1:, 4]]).to(torch.int64)
    if values.device.type == "cuda":
        return torch.segment_reduce(values.contiguous(), "sum", offsets=ends, unsafe=True)
    return torch.stack([part.sum() for part in values.split(ends.diff().tolist())])


def _prepare(
    records: Tensor, token_weight: Tensor, lre: Tensor, call: _Call, starts: Tensor, group: Group
) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
    """The group's tokens, the state before each of its chunks, and the sum of their steps."""
    blocks = starts.shape[1]
    starts = starts[group.span].contiguous()
    shape: dict[str, Any] = {"BLOCKS": blocks, "TAPS": call.taps}
    chunks = len(group.chunks)
    tokens = records.new_zeros(int(forward_kernels.ROWS), group.places)
    states = records.new_empty(chunks, blocks, _STATES, _LANES)
    totals = records.new_empty(chunks, blocks, _LANES)
    _launch(forward_kernels.project, (chunks,),
        records, token_weight, call.history, lre[group.span].contiguous(), call.unit[group.span].contiguous(),
        group.chunks, group.layers, starts, tokens, call.history.shape[1], group.places, T=call.chunk, **shape,
    )  # fmt: skip
    scan = {**shape, "T": call.chunk, "ZOH": call.zoh, "num_warps": 1}
    _launch(
        forward_kernels.summaries, (chunks, blocks), records, group.chunks, starts, tokens, states, totals,
        group.places, **scan,
    )  # fmt: skip
    _launch(
        forward_kernels.carry, (len(group.layers), blocks), records, group.chunks, group.layers, starts, states,
        totals, BACK=False, num_warps=1, **shape,
    )  # fmt: skip
    return starts, tokens, states, totals, scan


def _outputs(records: Tensor, token_weight: Tensor, lre: Tensor, call: _Call, starts: Tensor, partial: Tensor) -> None:
    for group in groups(call.sizes, len(call.history), call.history.device, call.chunk):
        own, tokens, states, _, scan = _prepare(records, token_weight, lre, call, starts, group)
        _launch(
            forward_kernels.outputs, (len(group.chunks), own.shape[1]), records, group.chunks, own, tokens,
            states, partial, call.history.shape[1], group.places, **scan,
        )  # fmt: skip


def _gradients(
    records: Tensor, token_weight: Tensor, lre: Tensor, call: _Call, starts: Tensor, cotangent: Tensor, group: Group
) -> tuple[Tensor, Tensor]:
    """Gradients of the records, float64, and (chunks, 2) parts of those of W_a and the LRE."""
    own, tokens, states, totals, scan = _prepare(records, token_weight, lre, call, starts, group)
    blocks, chunks, taps = own.shape[1], len(group.chunks), call.taps
    shape = {"BLOCKS": blocks, "TAPS": taps}
    dstates = torch.empty_like(states)
    _launch(
        forward_kernels.back_summaries, (chunks, blocks), records, group.chunks, own, tokens, cotangent, dstates,
        group.places, **scan,
    )  # fmt: skip
    _launch(
        forward_kernels.carry, (len(group.layers), blocks), records, group.chunks, group.layers, own, dstates,
        totals, BACK=True, num_warps=1, **shape,
    )  # fmt: skip
    programs = min(chunks, _PROGRAMS)
    kept = records.new_empty(programs, blocks, call.chunk // int(backward_kernels.SUB), _STATES, _LANES)
    dx = records.new_empty(group.places, records.shape[1])
    dtokens = records.new_empty(blocks, int(forward_kernels.D_ROWS), group.places)
    partial = records.new_empty(programs, blocks, _STATES + _OWN, _LANES)
    _launch(backward_kernels.backward, (programs, blocks),
        records, group.chunks, own, tokens, states, dstates, cotangent, kept, dx, dtokens, partial, chunks,
        -(-chunks // programs), group.places, **scan,
    )  # fmt: skip
    mixed = records.new_empty(chunks, records.shape[1], taps + 2 + 2 * _STATES)
    rest = records.new_empty(chunks, 2)
    _launch(
        backward_kernels.unproject, (chunks,), records, group.chunks, group.layers, own, tokens, dx, dtokens,
        mixed, rest, group.places, T=call.chunk, num_warps=8, **shape,
    )  # fmt: skip
    scanned = partial.sum(0, dtype=torch.float64).transpose(1, 2).flatten(0, 1)  # (channels, STATES + OWN)
    A, steps, ends = scanned.split([_STATES, 2, 3], 1)
    return torch.cat([mixed.sum(0, dtype=torch.float64), steps, A, ends], 1), rest


def _launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    kernel[grid](*arguments, **options)
