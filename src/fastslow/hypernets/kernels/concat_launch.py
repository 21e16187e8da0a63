"""The concatenated layout on the GPU: what the slow-net calls, and its gradients."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fastslow.hypernets import native
from fastslow.hypernets.horizon import horizon
from fastslow.hypernets.kernels.concat_call import STATES, TILE, Call
from fastslow.hypernets.kernels.concat_sweep import Room, Sweep
from fastslow.hypernets.segments import constant, repeated

if TYPE_CHECKING:
    from fastslow.hypernets.slow import MambaSlowNet


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
    records = native.records(net, STATES, taps)
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
    call = Call(history, tuple(sizes), scales, unit, starts, guess, channels, taps, zoh, tile, made_from)
    return cast(Tensor, _Concat.apply(records, token_weight, lre, call, _kept_room(net, call), known))


class _Concat(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, records: Tensor, token_weight: Tensor, lre: Tensor, call: Call, room: Room, known: Tensor | None
    ) -> Tensor:
        records = records.T.contiguous()  # lanes are channels
        parameters = (records, token_weight, lre)
        ctx.save_for_backward(*parameters)
        ctx.call, ctx.room = call, room
        if known is not None:
            ctx.starts = call.checked(known)[0]
            # The way back needs the states of the way there. If they aren't there any more they are found now, perhaps
            # beside other work, before there is anything to differentiate.
            Sweep(parameters, call, ctx.starts, call.groups[0], room).enter()
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
        call: Call = ctx.call
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


def _spread(call: Call) -> Tensor | float:
    return 1.0 if call.scales is None else repeated(call.scales, call.sizes)


def _outputs(parameters: tuple[Tensor, ...], call: Call, room: Room, starts: Tensor, partial: Tensor) -> None:
    for sweep in _sweeps(parameters, call, room, starts):
        sweep.outputs(partial)


def _sweeps(parameters: tuple[Tensor, ...], call: Call, room: Room, starts: Tensor) -> Iterator[Sweep]:
    """One for each group of layers. The first one's memory stays, which is all of it in a small network."""
    yield Sweep(parameters, call, starts, call.groups[0], room)
    for group in call.groups[1:]:
        yield Sweep(parameters, call, starts, group, Room(call, group))


# A network's room for its first group of layers, and what it has room for. A look-ahead finds the states that the next
# step needs to differentiate it: they are not found twice. The room is there before a CUDA graph is captured, whose
# last launches fill what its first ones read in the next step.
_rooms: weakref.WeakKeyDictionary[MambaSlowNet, tuple[Any, Room]] = weakref.WeakKeyDictionary()


def _kept_room(net: MambaSlowNet, call: Call) -> Room:
    size = (call.history.shape, call.history.device, call.sizes, call.channels, call.taps, call.tile)
    there = _rooms.get(net)
    if there is None or there[0] != size:
        there = _rooms[net] = size, Room(call, call.groups[0])
    return there[1]
