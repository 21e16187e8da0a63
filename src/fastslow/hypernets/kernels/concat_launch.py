"""The concatenated layout on the GPU: what the slow-net calls, and its gradients."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from itertools import islice
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
    return cast(Tensor, _Concat.apply(records, token_weight, lre, call, _kept_rooms(net, call), known))


class _Concat(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        records: Tensor,
        token_weight: Tensor,
        lre: Tensor,
        call: Call,
        rooms: list[Room],
        known: Tensor | None,
    ) -> Tensor:
        records = records.T.contiguous()  # lanes are channels
        parameters = (records, token_weight, lre)
        ctx.save_for_backward(*parameters)
        ctx.call, ctx.rooms = call, rooms
        if known is not None:
            ctx.starts = call.checked(known)[0]
            # The way back needs the states of the way there. If they aren't there any more they are found now, perhaps
            # beside other work, before there is anything to differentiate.
            for sweep in islice(_sweeps(parameters, call, rooms, ctx.starts), len(rooms)):
                sweep.enter()
            return known.clone()
        partial = call.history.new_empty(call.split["GROUPS"], call.history.shape[1])
        _outputs(parameters, call, rooms, call.starts, partial)
        out = partial.sum(0) * _spread(call)
        ctx.starts, again = call.checked(out)
        if call.guess is not None:
            # Layers whose largest output was guessed too large are done again in full: launched always, since asking
            # would wait for the GPU, but done only by them.
            _outputs(parameters, call, rooms, again, partial)
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
        for sweep in _sweeps(parameters, call, ctx.rooms, ctx.starts):
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


def _outputs(parameters: tuple[Tensor, ...], call: Call, rooms: list[Room], starts: Tensor, partial: Tensor) -> None:
    for sweep in _sweeps(parameters, call, rooms, starts):
        sweep.outputs(partial)


def _sweeps(parameters: tuple[Tensor, ...], call: Call, rooms: list[Room], starts: Tensor) -> Iterator[Sweep]:
    """One for each group of layers. The first ones have rooms that stay, the others' are given back."""
    for number, group in enumerate(call.groups):
        room = rooms[number] if number < len(rooms) else Room(call, group)
        yield Sweep(parameters, call, starts, group, room)


# A network's rooms for its first groups of layers, and what they have room for. A look-ahead finds the states that the
# next step needs to differentiate it, and the projections too where the room is for the whole history: they are not
# found twice. The rooms are there before a CUDA graph is captured, whose last launches fill what its first ones read in
# the next step.
_rooms: weakref.WeakKeyDictionary[MambaSlowNet, tuple[Any, list[Room]]] = weakref.WeakKeyDictionary()
_SHARE, _SHARE_OF_FREE = 10, 4  # one part in so many of a GPU's memory is for rooms of the whole history, at most


def _kept_rooms(net: MambaSlowNet, call: Call) -> list[Room]:
    size = (call.history.shape, call.history.device, call.sizes, call.channels, call.taps, call.tile)
    there = _rooms.get(net)
    if there is None or there[0] != size:
        there = _rooms[net] = size, _make_rooms(call)
    return there[1]


def _make_rooms(call: Call) -> list[Room]:
    """For the whole history of as many groups as there is memory for; at least one, for a row at a time."""
    rooms: list[Room] = []
    left = memory_for_rooms(call.history.device)
    for group in call.groups:
        left -= Room.bytes_of_whole(call, group)
        if left < 0:
            break
        rooms.append(Room(call, group, whole=True))
    return rooms or [Room(call, call.groups[0])]


def memory_for_rooms(device: torch.device) -> int:
    """In bytes. Little where others have taken most of the memory: nothing depends on it but time."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return min(total // _SHARE, free // _SHARE_OF_FREE)
