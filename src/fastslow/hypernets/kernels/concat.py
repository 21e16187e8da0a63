# pyright: reportGeneralTypeIssues=false
# What is inside @triton.jit is Triton's language, not Python.
"""The concatenated slow-net as Triton kernels: one sequence a layer, cut into chunks, many layers in one launch.

A program takes one chunk and 32 channels, one channel a lane, its 16 states in the lane's registers. Chunks run side by
side: `summaries` gives each one's end state from zero, `carry` passes the states on from chunk to chunk, `outputs` runs
through those that are read. Backward is the same from the end (`back_summaries`, `carry_back`), and then `backward`,
which recomputes a chunk's states from its start, a few tokens at a time. What mixes channels (convolution, projections
to dt, B and C) is done before (`project`) and after (`unproject`), a tile of tokens at a time.

A chunk that ends before the `starts` of its layer and channels does nothing: see horizon.py.

Tables: a chunk is (layer, first position, tokens, place, wanted, first output), a layer (column, size, place of its
token 0, first chunk, end of its chunks). "Place" counts tokens of the whole group. Records are those of csrc/common.h,
one column a channel; with the exact hold the scan carries w = A h + B x (csrc/concat.inc says why).
"""

import triton
import triton.language as tl

from fastslow.hypernets.kernels.maths import logistic, softplus

STATES = tl.constexpr(16)
LANES = tl.constexpr(32)
CHUNK_FIELDS = tl.constexpr(6)
LAYER_FIELDS = tl.constexpr(5)
U, RAW, RATE_ROW, B_ROW, C_ROW = (tl.constexpr(i) for i in (0, 1, 2, 3, 19))  # rows of `tokens`
ROWS = tl.constexpr(35)
D_RATE, D_B, D_C, D_U = (tl.constexpr(i) for i in (0, 1, 17, 33))  # rows of a block's `dtokens`
D_ROWS = tl.constexpr(34)


@triton.jit
def _seen(history, layers, lre, unit, token_weight, layer, position, mask, weights):
    """Raw and projected tokens at these positions."""
    column = tl.load(layers + layer * LAYER_FIELDS)
    size = tl.load(layers + layer * LAYER_FIELDS + 1)
    row = (position - 1) // size
    at = row.to(tl.int64) * weights + column + (position - 1 - row * size)
    raw = tl.load(history + at, mask & (position >= 1), 0.0) * tl.load(unit + layer)
    return raw, tl.where(position == 0, tl.load(lre + layer), raw * token_weight)


@triton.jit(do_not_specialize=["weights", "stride"])
def project(
    records, token_weight_at, history, lre, unit, chunks, layers, starts, tokens, weights, stride,
    BLOCKS: tl.constexpr, TAPS: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """u, the raw token, and its projections to dt, B and C, for one chunk."""
    CH: tl.constexpr = BLOCKS * LANES
    chunk = chunks + tl.program_id(0) * CHUNK_FIELDS
    layer = tl.load(chunk)
    begin = tl.load(chunk + 1)
    count = tl.load(chunk + 2)
    at = tl.load(chunk + 3)
    first = tl.load(starts + layer * BLOCKS)
    for other in tl.static_range(1, BLOCKS):
        first = tl.minimum(first, tl.load(starts + layer * BLOCKS + other))
    if begin + count > first:
        token_weight = tl.load(token_weight_at)
        t = tl.arange(0, T)
        raw, u = _seen(history, layers, lre, unit, token_weight, layer, begin + t, t < count, weights)
        tl.store(tokens + U * stride + at + t, u, t < count)
        tl.store(tokens + RAW * stride + at + t, raw, t < count)
        # The convolution also reads the tokens just before; the chunk that owns them may have been left out.
        k8 = tl.arange(0, 8)
        older = begin - 8 + k8
        raw, u = _seen(history, layers, lre, unit, token_weight, layer, older, older >= 0, weights)
        tl.store(tokens + U * stride + at - 8 + k8, u, older >= 0)
        tl.store(tokens + RAW * stride + at - 8 + k8, raw, older >= 0)
        rate = tl.zeros((T,), tl.float32)
        B = tl.zeros((T, STATES), tl.float32)
        C = tl.zeros((T, STATES), tl.float32)
        s = tl.arange(0, STATES)
        for b in range(BLOCKS):
            p = records + b * LANES + tl.arange(0, LANES)
            pre = tl.zeros((T, LANES), tl.float32) + tl.load(p + TAPS * CH)[None, :]
            for k in tl.static_range(TAPS):
                position = begin + t - k
                inside = (t < count) & (position >= 0)
                _, tap = _seen(history, layers, lre, unit, token_weight, layer, position, inside, weights)
                pre += tl.where(position >= 0, tap, 0.0)[:, None] * tl.load(p + (TAPS - 1 - k) * CH)[None, :]
            x = pre * logistic(pre)
            rate += tl.sum(x * tl.load(p + (TAPS + 1) * CH)[None, :], 1)
            to_B = tl.load(p[:, None] + (TAPS + 2 + s[None, :]) * CH)
            B += tl.dot(x, to_B, input_precision="ieee")
            to_C = tl.load(p[:, None] + (TAPS + 2 + STATES + s[None, :]) * CH)
            C += tl.dot(x, to_C, input_precision="ieee")
        tl.store(tokens + RATE_ROW * stride + at + t, rate, t < count)
        rows = s[None, :] * stride + at + t[:, None]
        tl.store(tokens + B_ROW * stride + rows, B, (t < count)[:, None])
        tl.store(tokens + C_ROW * stride + rows, C, (t < count)[:, None])


@triton.jit
def _x(tokens, p, i, TAPS: tl.constexpr, CH: tl.constexpr):
    """silu of the convolution at place i, a lane a channel."""
    pre = tl.load(p + TAPS * CH)
    for k in tl.static_range(TAPS):
        pre += tl.load(p + (TAPS - 1 - k) * CH) * tl.load(tokens + U + i - k)
    return pre * logistic(pre)


@triton.jit
def _states(tokens, row, i, stride):
    """B or C at place i, the same in every lane."""
    s = tl.arange(0, STATES)[:, None] + tl.zeros((STATES, LANES), tl.int32)
    return tl.load(tokens + (row + s) * stride + i)


@triton.jit
def _advance(w, earlier, x, dt, B, A, ZOH: tl.constexpr):
    """One token: the state after it, what entered, and exp(dt A)."""
    e = tl.exp(dt[None, :] * A)
    entered = B * x[None, :]
    if ZOH:
        w = (w + (entered - earlier)) * e
    else:
        w = w * e + dt[None, :] * entered
        entered = entered * 0.0
    return w, entered, e


@triton.jit
def _dt(tokens, p, i, valid, stride, TAPS: tl.constexpr, CH: tl.constexpr):
    at = p + (TAPS + 2 + 2 * STATES) * CH
    v = tl.load(at) * tl.load(tokens + RATE_ROW * stride + i) + tl.load(at + CH)
    return tl.where(valid, softplus(v), 0.0)  # a step of 0 changes nothing: tokens beyond the chunk's end


@triton.jit(do_not_specialize=["stride"])
def summaries(
    records, chunks, starts, tokens, ends, totals, stride,
    BLOCKS: tl.constexpr, TAPS: tl.constexpr, T: tl.constexpr, ZOH: tl.constexpr,
):  # fmt: skip
    """Each chunk's end state from zero, and the sum of its steps."""
    CH: tl.constexpr = BLOCKS * LANES
    block = tl.program_id(1)
    chunk = chunks + tl.program_id(0) * CHUNK_FIELDS
    begin = tl.load(chunk + 1)
    count = tl.load(chunk + 2)
    at = tl.load(chunk + 3)
    if begin + count > tl.load(starts + tl.load(chunk) * BLOCKS + block):
        lane = tl.arange(0, LANES)
        p = records + block * LANES + lane
        s = tl.arange(0, STATES)[:, None]
        A = tl.load(p[None, :] + (TAPS + 4 + 2 * STATES + s) * CH)
        w = tl.zeros((STATES, LANES), tl.float32)
        earlier = tl.zeros((STATES, LANES), tl.float32)
        total = tl.zeros((LANES,), tl.float32)
        for t in range(T):
            x = _x(tokens, p, at + t, TAPS, CH)
            dt = _dt(tokens, p, at + t, t < count, stride, TAPS, CH)
            w, earlier, _ = _advance(w, earlier, x, dt, _states(tokens, B_ROW, at + t, stride), A, ZOH)
            total += dt
        place = tl.program_id(0) * BLOCKS + block
        tl.store(ends + place * STATES * LANES + s * LANES + lane[None, :], w - earlier)
        tl.store(totals + place * LANES + lane, total)


@triton.jit
def carry(
    records, chunks, layers, starts, ends, totals,
    BLOCKS: tl.constexpr, TAPS: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """In `ends`, what each chunk adds becomes what comes into it: from the chunks before, or (BACK) after it."""
    CH: tl.constexpr = BLOCKS * LANES
    layer = tl.program_id(0)
    block = tl.program_id(1)
    lane = tl.arange(0, LANES)
    s = tl.arange(0, STATES)[:, None]
    A = tl.load(records + (block * LANES + lane)[None, :] + (TAPS + 4 + 2 * STATES + s) * CH)
    start = tl.load(starts + layer * BLOCKS + block)
    first = tl.load(layers + layer * LAYER_FIELDS + 3)
    left = tl.load(layers + layer * LAYER_FIELDS + 4) - first
    i = first
    step = 1
    if BACK:
        i = first + left - 1
        step = -1
    state = tl.zeros((STATES, LANES), tl.float32)
    while left > 0:
        if tl.load(chunks + i * CHUNK_FIELDS + 1) + tl.load(chunks + i * CHUNK_FIELDS + 2) > start:
            place = i * BLOCKS + block
            at = ends + place * STATES * LANES + s * LANES + lane[None, :]
            own = tl.load(at)
            tl.store(at, state)
            state = own + tl.exp(A * tl.load(totals + place * LANES + lane)[None, :]) * state
        i += step
        left -= 1


@triton.jit(do_not_specialize=["weights", "stride"])
def outputs(
    records, chunks, starts, tokens, states, partial, weights, stride,
    BLOCKS: tl.constexpr, TAPS: tl.constexpr, T: tl.constexpr, ZOH: tl.constexpr,
):  # fmt: skip
    """Each block of channels' part of the outputs, (BLOCKS, weights)."""
    CH: tl.constexpr = BLOCKS * LANES
    REST: tl.constexpr = TAPS + 4 + 3 * STATES  # D, out, gate
    block = tl.program_id(1)
    chunk = chunks + tl.program_id(0) * CHUNK_FIELDS
    begin = tl.load(chunk + 1)
    count = tl.load(chunk + 2)
    at = tl.load(chunk + 3)
    wanted = tl.load(chunk + 4)
    if (wanted > 0) & (begin + count > tl.load(starts + tl.load(chunk) * BLOCKS + block)):
        lane = tl.arange(0, LANES)
        p = records + block * LANES + lane
        s = tl.arange(0, STATES)[:, None]
        A = tl.load(p[None, :] + (TAPS + 4 + 2 * STATES + s) * CH)
        to_h = tl.full((STATES, LANES), 1.0, tl.float32)
        if ZOH:
            to_h = 1.0 / A
        place = tl.program_id(0) * BLOCKS + block
        w = tl.load(states + place * STATES * LANES + s * LANES + lane[None, :])
        earlier = tl.zeros((STATES, LANES), tl.float32)
        first = partial + block.to(tl.int64) * weights + tl.load(chunk + 5)
        for t in range(T):
            x = _x(tokens, p, at + t, TAPS, CH)
            dt = _dt(tokens, p, at + t, t < count, stride, TAPS, CH)
            w, earlier, _ = _advance(w, earlier, x, dt, _states(tokens, B_ROW, at + t, stride), A, ZOH)
            C = _states(tokens, C_ROW, at + t, stride)
            y = tl.sum(C * to_h * (w - earlier), 0) + tl.load(p + REST * CH) * x
            z = tl.load(p + (REST + 2) * CH) * tl.load(tokens + at + t)
            tl.store(first + t, tl.sum(tl.load(p + (REST + 1) * CH) * y * z * logistic(z), 0), t < count)


@triton.jit(do_not_specialize=["stride"])
def back_summaries(
    records, chunks, starts, tokens, cotangent, ends, stride,
    BLOCKS: tl.constexpr, TAPS: tl.constexpr, T: tl.constexpr, ZOH: tl.constexpr,
):  # fmt: skip
    """What each chunk's outputs add to the gradient of the state before it."""
    CH: tl.constexpr = BLOCKS * LANES
    REST: tl.constexpr = TAPS + 4 + 3 * STATES
    block = tl.program_id(1)
    chunk = chunks + tl.program_id(0) * CHUNK_FIELDS
    begin = tl.load(chunk + 1)
    count = tl.load(chunk + 2)
    at = tl.load(chunk + 3)
    wanted = tl.load(chunk + 4)
    if begin + count > tl.load(starts + tl.load(chunk) * BLOCKS + block):
        lane = tl.arange(0, LANES)
        p = records + block * LANES + lane
        s = tl.arange(0, STATES)[:, None]
        G = tl.zeros((STATES, LANES), tl.float32)
        if wanted > 0:
            A = tl.load(p[None, :] + (TAPS + 4 + 2 * STATES + s) * CH)
            to_h = tl.full((STATES, LANES), 1.0, tl.float32)
            if ZOH:
                to_h = 1.0 / A
            for r in range(T):
                t = T - 1 - r
                dt = _dt(tokens, p, at + t, t < count, stride, TAPS, CH)
                z = tl.load(p + (REST + 2) * CH) * tl.load(tokens + at + t)
                dout = tl.load(cotangent + tl.load(chunk + 5) + t, t < count, 0.0)
                dy = dout * tl.load(p + (REST + 1) * CH) * z * logistic(z)
                G = (G + dy[None, :] * _states(tokens, C_ROW, at + t, stride) * to_h) * tl.exp(dt[None, :] * A)
        place = tl.program_id(0) * BLOCKS + block
        tl.store(ends + place * STATES * LANES + s * LANES + lane[None, :], G)
