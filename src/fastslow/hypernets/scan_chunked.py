"""The selective scan in chunks: exact, quick in plain PyTorch, and without a (length x channels x state) tensor.

A sequence is cut into chunks that advance side by side. Since the recurrence is linear in its state,

    state at the end of a chunk = (its end state from zero) + exp(A * sum of dt) * (state at its start),

so one pass over all chunks from zero, one cheap carry from chunk to chunk, and one pass over those chunks whose
outputs are wanted, give what the sequential loop gives. The backward pass runs the same three steps from the end,
and recomputes the states inside a few chunks at a time from the stored chunk-boundary states.

Inside, tensors are (position, channel, state, sequence) with `sequence = chunk * batch + row` innermost: every
operation then runs over long contiguous rows whatever the number of channels and states.

The zero-order hold (Eq. 20) divides by A. Scanning g = A h instead of h takes the division out of the loop:

    g_t = g_{t-1} + expm1(dt A) (g_{t-1} + B_t x_t),    h_t = g_t / A.

The price is one difference of near-equal sums, in the gradient of A alone: in float32 its relative error is about
1e-8 / (dt |A|), 1e-5 at the smallest initial step. All else is exact to rounding.
"""

import math
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fastslow.hypernets.scan import Discretization, check_discretization

# Elements of one state tensor (channels x state x sequences) handled at a time: enough to hide the cost of a Python
# call, few enough to stay in the cache. And the elements of all the states that a backward pass keeps at a time.
BLOCK = 1 << 18
KEPT = 1 << 25
# A longer chunk keeps more states, a shorter one carries more often; the speed is flat between 64 and 256.
MAX_CHUNK = 128


def selective_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    *,
    discretization: Discretization = "zoh",
    outputs: int | None = None,
    chunk: int | None = None,
) -> Tensor:
    """`selective_scan_reference`, chunked: y of the last `outputs` tokens, (batch, outputs, channels).

    Eq. 20-21 and the skip `D x`, with gradients for all six tensors. `outputs=None` returns every token; `C` is read
    there only and may be as short. `chunk`, the number of tokens in a chunk, changes speed and memory only. Memory
    grows with the length, not with length x state. Rows stored innermost, with the strides of a (length, channels,
    batch) or (channels, length, batch) tensor, are not copied.
    """
    check_discretization(discretization)
    length = x.shape[1]
    outputs = length if outputs is None else outputs
    chunk = min(length, MAX_CHUNK, max(16, math.isqrt(length))) if chunk is None else chunk
    if not 1 <= outputs <= length:
        raise ValueError(f"outputs={outputs} must be between 1 and the length of the sequence, {length}")
    if chunk < 1:
        raise ValueError(f"chunk={chunk} must be at least 1; leave it out for the default")
    y = _Scan.apply(x, dt, A, B, C, D, discretization == "zoh", outputs, min(chunk, length))
    return cast(Tensor, y)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor,
        zoh: bool,
        outputs: int,
        chunk: int,
    ) -> Tensor:
        batch, rows = len(x), min(chunk, outputs)  # the last `rows` positions of a chunk give an output
        xc, dtc, Bc = _to_chunks(x, chunk), _to_chunks(dt, chunk), _to_chunks(B, chunk)
        Cc = _to_chunks(C[:, -outputs:], rows)
        s, scale = _source(xc, dtc, A, zoh)
        start = _starts(s, dtc, A, Bc, zoh, batch)
        total, wanted = s.shape[2], Cc.shape[2]  # sequences, of which the last ones give an output
        first = total - wanted
        y = xc[chunk - rows :, :, first:] * D[:, None]
        kept = ()
        if any(ctx.needs_input_grad) and total == batch <= _kept_width(A, chunk):
            kept = _replay(start, s, dtc, A, Bc, zoh)  # one small block: its states are worth keeping
            for y_r, g, C_r in zip(y, kept[0][1 + chunk - rows :], Cc, strict=True):
                y_r += (scale[:, None] @ (g * C_r)).squeeze(1)
        else:
            for i in _blocks(first, total, A):
                j = slice(i.start - first, i.stop - first)
                g = start[..., i].clone()
                e, u = torch.empty_like(g), torch.empty_like(g)
                for t in range(chunk):
                    _advance(g, s[t, :, i], dtc[t, :, i], A, Bc[t, :, i], zoh, e, u, g)
                    if (r := t - (chunk - rows)) >= 0:
                        y[r, :, j] += (scale[:, None] @ torch.mul(g, Cc[r, :, j], out=u)).squeeze(1)
        ctx.save_for_backward(x, dt, A, B, C, D, start, *kept)
        ctx.options = zoh, outputs, chunk
        return _from_chunks(y, batch, outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, dt, A, B, C, D, start, *kept = ctx.saved_tensors
        zoh, outputs, chunk = ctx.options
        (batch, length), rows = x.shape[:2], min(chunk, outputs)
        xc, dtc, Bc = _to_chunks(x, chunk), _to_chunks(dt, chunk), _to_chunks(B, chunk)
        Cc, dyc = _to_chunks(C[:, -outputs:], rows), _to_chunks(dy, rows)
        s, scale = _source(xc, dtc, A, zoh)
        end = _ends(dtc, A, Cc, scale, dyc, batch)
        total, first = s.shape[2], s.shape[2] - Cc.shape[2]
        ds, ddt, dB, dC = (torch.empty_like(v) for v in (s, dtc, Bc, Cc))
        dA, dscale = torch.zeros_like(A), torch.zeros_like(A)
        width = _kept_width(A, chunk)
        space = None if kept else A.new_empty(2, chunk + 1, *A.shape, min(width, total))
        for i in (*_blocks(0, first, A, width), *_blocks(first, total, A, width)):
            j = slice(i.start - first, i.stop - first)
            states, e = kept or _replay(start[..., i], s[..., i], dtc[..., i], A, Bc[..., i], zoh, space)
            G = end[..., i].clone()  # the gradient of the state, from everything that comes after it
            v, w, dzdt = torch.empty_like(G), torch.empty_like(G), torch.zeros_like(G)
            for t in reversed(range(chunk)):
                s_t, dt_t, B_t = s[t, :, None, i], dtc[t, :, None, i], Bc[t, :, i]
                if i.start >= first and (r := t - (chunk - rows)) >= 0:
                    dy_t = dyc[r, :, None, j]
                    torch.mul(Cc[r, :, j], dy_t, out=v)
                    G.addcmul_(v, scale[..., None])
                    dscale += v.mul_(states[t + 1]).sum(2)
                    dC[r, :, j] = torch.mul(states[t + 1], dy_t, out=v).mul_(scale[..., None]).sum(0)
                # v = d(B s), w = d(dt A), and G moves to the state before: G exp(dt A).
                if zoh:
                    torch.mul(G, e[t], out=v)
                    G += v
                    torch.addcmul(states[t], B_t, s_t, out=w).mul_(G)
                else:
                    v.copy_(G)
                    G *= e[t]
                    torch.mul(G, states[t], out=w)
                ddt[t, :, i] = (A[:, None] @ w).squeeze(1)
                dzdt.addcmul_(w, dt_t)
                torch.sum(torch.mul(v, B_t, out=w), 1, out=ds[t, :, i])
                torch.sum(v.mul_(s_t), 0, out=dB[t, :, i])
            dA += dzdt.sum(2)
        if zoh:
            dx = ds
            dA -= dscale * scale**2
        else:
            dx = ds * dtc
            ddt += ds * xc
        dx[chunk - rows :, :, first:] += dyc * D[:, None]
        dD = (dyc * xc[chunk - rows :, :, first:]).sum((0, 2))
        dC_all = torch.zeros_like(C)
        dC_all[:, -outputs:] = _from_chunks(dC, batch, outputs)
        dx, ddt, dB = (_from_chunks(v, batch, length) for v in (dx, ddt, dB))
        return dx, ddt, dA, dB, dC_all, dD, None, None, None


def _source(xc: Tensor, dtc: Tensor, A: Tensor, zoh: bool) -> tuple[Tensor, Tensor]:
    """What B multiplies in the recurrence, and the factor from the scanned state to h."""
    return (xc, 1 / A) if zoh else (dtc * xc, torch.ones_like(A))


def _advance(
    g: Tensor, s_t: Tensor, dt_t: Tensor, A: Tensor, B_t: Tensor, zoh: bool, e: Tensor, u: Tensor, out: Tensor
) -> None:
    """One position of the recurrence from `g` to `out`; leaves expm1(dt A) ("zoh") or exp(dt A) ("euler") in `e`."""
    torch.mul(dt_t[:, None], A[..., None], out=e)
    if zoh:
        e.expm1_()
        torch.addcmul(g, B_t, s_t[:, None], out=u)
        torch.addcmul(g, e, u, out=out)
    else:
        e.exp_()
        torch.mul(g, e, out=out).addcmul_(B_t, s_t[:, None])


def _replay(
    start: Tensor, s: Tensor, dtc: Tensor, A: Tensor, Bc: Tensor, zoh: bool, space: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The states before the first and after every position, and the exponentials of every position."""
    chunk, width = len(s), start.shape[2]
    if space is None:
        space = A.new_empty(2, chunk + 1, *A.shape, width)
    states, e = space[..., :width]
    states[0] = start
    u = torch.empty_like(states[0])
    for t in range(chunk):
        _advance(states[t], s[t], dtc[t], A, Bc[t], zoh, e[t], u, states[t + 1])
    return states, e


def _starts(s: Tensor, dtc: Tensor, A: Tensor, Bc: Tensor, zoh: bool, batch: int) -> Tensor:
    """The state at the start of every chunk, (channels, state, sequences)."""
    last = s.shape[2] - batch  # nothing is carried out of the last chunk
    if last == 0:
        return A.new_zeros(1).expand(*A.shape, batch)
    start = A.new_zeros(*A.shape, s.shape[2])
    ends = A.new_empty(*A.shape, last)
    for i in _blocks(0, last, A):
        g = torch.zeros_like(ends[..., i], memory_format=torch.contiguous_format)
        e, u = torch.empty_like(g), torch.empty_like(g)
        for s_t, dt_t, B_t in zip(s[..., i], dtc[..., i], Bc[..., i], strict=True):
            _advance(g, s_t, dt_t, A, B_t, zoh, e, u, g)
        ends[..., i] = g
    decay = torch.exp(A[..., None] * dtc[..., :last].sum(0)[:, None])
    for k in range(0, last, batch):
        now, after = slice(k, k + batch), slice(k + batch, k + 2 * batch)
        torch.addcmul(ends[..., now], decay[..., now], start[..., now], out=start[..., after])
    return start


def _ends(dtc: Tensor, A: Tensor, Cc: Tensor, scale: Tensor, dyc: Tensor, batch: int) -> Tensor:
    """The gradient of the state at the end of every chunk: `_starts`, from the end."""
    chunk, _, total = dtc.shape
    if total == batch:
        return A.new_zeros(1).expand(*A.shape, batch)
    rows, _, wanted = Cc.shape
    first = total - wanted
    end, starts = A.new_zeros(*A.shape, total), A.new_zeros(*A.shape, total)
    for i in _blocks(first, total, A):
        j = slice(i.start - first, i.stop - first)
        G = torch.zeros_like(starts[..., i], memory_format=torch.contiguous_format)
        u = torch.empty_like(G)
        for t in reversed(range(chunk)):
            if (r := t - (chunk - rows)) >= 0:
                torch.mul(Cc[r, :, j], dyc[r, :, None, j], out=u)
                G.addcmul_(u, scale[..., None])
            G *= torch.mul(dtc[t, :, None, i], A[..., None], out=u).exp_()
        starts[..., i] = G
    decay = torch.exp(A[..., None] * dtc.sum(0)[:, None])
    for k in reversed(range(batch, total, batch)):
        before, now = slice(k - batch, k), slice(k, k + batch)
        torch.addcmul(starts[..., now], decay[..., now], end[..., now], out=end[..., before])
    return end


def _to_chunks(v: Tensor, chunk: int) -> Tensor:
    """(batch, length, features) -> (chunk, features, chunks * batch).

    Padded at the front, where zeros leave the zero state as it is, so that the last token ends the last chunk.
    """
    batch, length, features = v.shape
    if length == chunk:
        v = v.permute(1, 2, 0)
        return v if batch == 1 or v.stride(2) == 1 else v.contiguous()
    chunks = -(-length // chunk)
    head = length - (chunks - 1) * chunk
    out = v.new_empty(chunk, features, chunks, batch)
    out[: chunk - head, :, 0] = 0
    out[chunk - head :, :, 0] = v[:, :head].permute(1, 2, 0)
    out[:, :, 1:] = v[:, head:].unflatten(1, (chunks - 1, chunk)).permute(2, 3, 1, 0)
    return out.flatten(2)


def _from_chunks(v: Tensor, batch: int, length: int) -> Tensor:
    """The inverse of `_to_chunks`, for the last `length` tokens."""
    return v.unflatten(2, (-1, batch)).permute(3, 2, 0, 1).flatten(1, 2)[:, -length:]


def _kept_width(A: Tensor, chunk: int) -> int:
    """How many sequences may have all their states kept at a time."""
    return max(1, min(BLOCK, KEPT // (2 * chunk + 2)) // A.numel())


def _blocks(first: int, last: int, A: Tensor, width: int = 0) -> Iterator[slice]:
    """Slices of the sequences from `first` to `last`, `width` or about `BLOCK` state elements each."""
    width = width or max(1, BLOCK // A.numel())
    return (slice(lo, min(lo + width, last)) for lo in range(first, last, width))
