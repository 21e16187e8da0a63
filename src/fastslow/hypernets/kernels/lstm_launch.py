"""A step of the coordinate LSTM on the GPU: launches and gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fastslow.hypernets.kernels import lstm as kernels
from fastslow.ops.switch import ceil

if TYPE_CHECKING:
    from fastslow.hypernets.coordinate import CoordinateLSTM, State

_COORDINATES = 64  # of a program
_UNITS = 16  # hidden units at a time
_WARPS, _WARPS_BACK = 4, 8  # on the way back the sums need the registers of more of them
_PROGRAMS = 132  # of the way back: one for each multiprocessor of an H200


def step(net: CoordinateLSTM, x: Tensor, state: State) -> tuple[Tensor, State]:
    """`CoordinateLSTM.forward` with products in TF32; the state after it is not differentiable."""
    to_input, to_state, *biases = net.lstm.all_weights[0]
    weights = (to_input, to_state, biases[0] + biases[1], net.head.weight, net.head.bias)
    out, h, c = cast(tuple[Tensor, Tensor, Tensor], _Step.apply(x.contiguous(), *state, *weights))
    return out, (h, c)


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, h: Tensor, c: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(x, h, c, *weights)
        out, h_after, c_after = torch.empty_like(x), torch.empty_like(h), torch.empty_like(c)
        grid = (ceil(len(x), _COORDINATES),)
        _launch(kernels.step, grid, x, h, c, *weights, out, h_after, c_after, len(x), **_shape(h, _WARPS))
        ctx.mark_non_differentiable(h_after, c_after)
        return out, h_after, c_after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor, *_: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, h, c, *weights, _constant = ctx.saved_tensors
        n, hidden, gates = len(x), h.shape[1], int(kernels.GATES)
        blocks = ceil(hidden, _UNITS)
        rounds = ceil(n, _COORDINATES * max(1, _PROGRAMS // blocks))
        parts = ceil(n, _COORDINATES * rounds)
        of_state = h.new_empty(parts, gates, hidden, hidden)
        of_rest = h.new_empty(parts, 2 * gates + 1, hidden)
        _launch(
            kernels.gradients, (blocks, parts), x, h, c, *weights, cotangent.contiguous(), of_state, of_rest, n, rounds,
            **_shape(h, _WARPS_BACK),
        )  # fmt: skip
        rest = of_rest.sum(0)
        d_input, d_bias, d_head = rest[:gates].reshape(-1, 1), rest[gates : 2 * gates].reshape(-1), rest[-1:]
        d_state = of_state.sum(0).reshape(gates * hidden, hidden)
        return None, None, None, d_input, d_state, d_bias, d_head, cotangent.sum().reshape(1)


def _shape(h: Tensor, warps: int) -> dict[str, Any]:
    hidden = h.shape[1]
    tile = {"H": hidden, "K": max(16, 1 << (hidden - 1).bit_length()), "BM": _COORDINATES, "BJ": _UNITS}
    return {**tile, "num_warps": warps, "num_stages": 1}


def _launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    kernel[grid](*arguments, **options)
