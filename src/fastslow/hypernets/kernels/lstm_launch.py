"""LSTMs of one input and one output on the GPU, for many short sequences at once: launches and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fastslow.hypernets.kernels import lstm as kernels
from fastslow.hypernets.segments import constant, repeated, segment_sum
from fastslow.ops.switch import ceil, launch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastslow.hypernets.slow import LSTMSlowNet

_COORDINATES = 64  # of a program
_UNITS = 16  # hidden units at a time
_WARPS = 4
_PIECE = 1 << 16  # weights whose sequences are gone through together


def sequence(
    net: LSTMSlowNet, history: Tensor, sizes: Sequence[int], layers: Sequence[int], known: Tensor | None = None
) -> Tensor:
    """`LSTMSlowNet.per_weight` with products in TF32 and tokens of one number; history (l, N), result (N,)."""
    lre = net.lre.weight[:, 0].index_select(0, constant(layers, history.device))
    return cast(Tensor, _Sequence.apply(history.contiguous(), tuple(sizes), known, lre, *_weights(net)))


def _weights(net: LSTMSlowNet) -> tuple[Tensor, ...]:
    to_input, to_state, *biases = net.lstm.all_weights[0]
    return to_input, to_state, biases[0] + biases[1], net.head.weight, net.head.bias


def _advance(x: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Output and state after a step."""
    out, h_after, c_after = torch.empty_like(x), torch.empty_like(h), torch.empty_like(c)
    grid = (ceil(len(x), _COORDINATES),)
    launch(kernels.step, grid, x, h, c, *weights, out, h_after, c_after, len(x), **_shape(h))
    return out, h_after, c_after


class _Sequence(torch.autograd.Function):
    """The states of all tokens are found again on the way back, of some weights at a time, which bounds the memory."""

    @staticmethod
    def forward(
        ctx: Any, history: Tensor, sizes: tuple[int, ...], known: Tensor | None, lre: Tensor, *weights: Tensor
    ) -> Tensor:
        ctx.save_for_backward(history, lre, *weights)
        ctx.sizes = sizes
        if known is not None:
            return known.clone()
        return torch.cat([_walk(tokens, weights)[0] for tokens in _pieces(history, lre, sizes)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        history, lre, *weights = ctx.saved_tensors
        to_input, to_state, bias, head, _constant = weights
        hidden = to_state.shape[1]
        total = to_state.new_zeros(len(to_state), hidden + 2)  # of the state's weights, the input's, the bias
        d_head = torch.zeros_like(head)
        firsts = []
        for tokens, wanted in zip(
            _pieces(history, lre, ctx.sizes), cotangent.contiguous().split(_PIECE), strict=True
        ):  # fmt: skip
            _out, states, shown = _walk(tokens, weights)
            d_head += wanted @ shown
            d_h = wanted[:, None] * head
            d_c, d_h_before = torch.zeros_like(d_h), torch.empty_like(d_h)
            d_gates = d_h.new_empty(len(wanted), len(to_state))
            for x, h, c in reversed(states):
                launch(
                    kernels.step_back, (ceil(len(x), _COORDINATES),), x, h, c, to_input, to_state, bias, d_gates, d_h,
                    d_c, d_h_before, len(x), **_shape(h),
                )  # fmt: skip
                d_h, d_h_before = d_h_before, d_h
                total += d_gates.T @ torch.cat([h, x[:, None], torch.ones_like(x)[:, None]], 1)
            firsts.append(d_gates @ to_input[:, 0])
        d_lre = segment_sum(torch.cat(firsts), ctx.sizes)
        d_weights = total[:, hidden : hidden + 1], total[:, :hidden], total[:, -1], d_head, cotangent.sum().reshape(1)
        return None, None, None, d_lre, *d_weights


def _pieces(history: Tensor, lre: Tensor, sizes: tuple[int, ...]) -> Iterator[list[Tensor]]:
    """The tokens of some weights at a time, one vector a token: the layer's embedding, then the history."""
    rows = (repeated(lre.detach(), sizes), *history)
    return (list(piece) for piece in zip(*(row.split(_PIECE) for row in rows), strict=True))


def _walk(tokens: list[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, list[tuple[Tensor, ...]], Tensor]:
    """The last output; each token with the state before it; the h after the last."""
    h = tokens[0].new_zeros(len(tokens[0]), weights[1].shape[1])
    out, c, states = tokens[0], torch.zeros_like(h), []
    for x in tokens:
        states.append((x, h, c))
        out, h, c = _advance(x, h, c, weights)
    return out, states, h


def _shape(h: Tensor) -> dict[str, Any]:
    hidden = h.shape[1]
    tile = {"H": hidden, "K": max(16, 1 << (hidden - 1).bit_length()), "BM": _COORDINATES, "BJ": _UNITS}
    return {**tile, "num_warps": _WARPS, "num_stages": 1}
