"""From tensors to kernels: padding, launches, gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from fastslow.hypernets import native
from fastslow.hypernets.kernels import per_weight as _per_weight
from fastslow.hypernets.kernels.concat_launch import concat as concat
from fastslow.hypernets.segments import constant, repeated, segment_sum

if TYPE_CHECKING:
    from fastslow.hypernets.slow import MambaSlowNet

_LANES = 128  # (weight, channel) pairs of a program
_PROGRAMS = 528  # of a backward kernel, each with partial sums of its own: four for each multiprocessor of an H200


def padded_records(net: MambaSlowNet, states: int, taps: int) -> Tensor:
    """`native.records` with a power of two of channels; the added ones are silent."""
    records = native.records(net, states, taps)
    channels = len(records)
    missing = (1 << (channels - 1).bit_length()) - channels
    if not missing:
        return records
    silent = F.pad(records.new_full((missing, states), -1.0), (taps + 4 + 2 * states, 3))  # A = -1, all else 0
    return torch.cat([records, silent])


def per_weight(
    net: MambaSlowNet,
    history: Tensor,
    sizes: Sequence[int],
    layers: Sequence[int],
    scales: Tensor | None,
    known: Tensor | None = None,
) -> Tensor:
    """`MambaSlowNet.per_weight` for what `can_run` allows; history (l, N), result (N,)."""
    padded = native.padded_sizes(net)
    assert padded is not None
    token_weight = _one(history.device) if net.W_a is None else net.W_a.weight
    lre = net.lre.weight[:, 0].index_select(0, constant(layers, history.device))
    unit = history.new_ones(history.shape[1]) if scales is None else 1 / repeated(scales, sizes)
    options = (*padded, net.discretization == "zoh", tuple(sizes))
    records = padded_records(net, *padded)
    return cast(Tensor, _PerWeight.apply(records, token_weight, lre, history.contiguous(), unit, options, known))


class _PerWeight(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        records: Tensor,
        token_weight: Tensor,
        lre: Tensor,
        history: Tensor,
        unit: Tensor,
        options: tuple[Any, ...],
        known: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(records, token_weight, lre, history, unit)
        ctx.options = options
        if known is not None:
            return known.clone()
        out = torch.empty_like(unit)
        weights, shape = _shape(records, history, options)
        grid = (triton.cdiv(weights, shape["BW"]),)
        u0 = repeated(lre, options[3])
        _per_weight._forward[grid](records, token_weight, history, u0, unit, out, weights, **shape)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        records, token_weight, lre, history, unit = ctx.saved_tensors
        weights, shape = _shape(records, history, ctx.options)
        blocks = triton.cdiv(weights, shape["BW"])
        programs = min(blocks, _PROGRAMS)
        partial = records.new_empty(programs, records.numel() + 1)
        u0 = repeated(lre, ctx.options[3])
        du0 = torch.empty_like(u0)
        _per_weight._backward[(programs,)](
            records, token_weight, history, u0, unit, cotangent.contiguous(), du0, partial, weights,
            ROUNDS=triton.cdiv(blocks, programs), **shape,
        )  # fmt: skip
        total = partial.sum(0, dtype=torch.float64).to(records.dtype)
        dlre = segment_sum(du0, ctx.options[3])
        return total[:-1].view_as(records), total[-1:].view_as(token_weight), dlre, None, None, None, None


def _shape(records: Tensor, history: Tensor, options: tuple[Any, ...]) -> tuple[int, dict[str, Any]]:
    states, taps, zoh, _ = options
    channels = len(records)
    return history.shape[1], {
        "TOKENS": len(history) + 1,
        "CHANNELS": channels,
        "STATES": states,
        "TAPS": taps,
        "ZOH": zoh,
        "BW": max(1, _LANES // channels),
        "num_warps": max(1, min(4, max(_LANES, channels) // 32)),
    }


def _one(device: torch.device) -> Tensor:
    return constant([1], device).to(torch.float32).view(1, 1)
