# pyright: reportGeneralTypeIssues=false
# What is inside @triton.jit is Triton's language, not Python.
"""The backward pass inside the chunks of the concatenated slow-net; `concat.py` says how it all fits together."""

import triton
import triton.language as tl

from fastslow.hypernets.kernels.concat import (
    B_ROW,
    C_ROW,
    CHUNK_FIELDS,
    D_B,
    D_C,
    D_RATE,
    D_ROWS,
    D_U,
    LANES,
    RATE_ROW,
    RAW,
    STATES,
    _advance,
    _dt,
    _states,
    _x,
)
from fastslow.hypernets.kernels.maths import logistic

SUB = tl.constexpr(2)  # tokens whose states are held in registers at a time
OWN = tl.constexpr(5)  # parameters of a channel besides A that `backward` sums: dt_weight, dt_bias, D, out, gate


@triton.jit(do_not_specialize=["work", "rounds", "stride"])
def backward(
    records, chunks, starts, tokens, states, dstates, cotangent, kept, dx, dtokens, partial, work, rounds, stride,
    BLOCKS: tl.constexpr, TAPS: tl.constexpr, T: tl.constexpr, ZOH: tl.constexpr,
):  # fmt: skip
    """Gradients of x (places, channels), of the tokens' projections (a part for each block), and of A and `OWN`.

    A program takes one (chunk, block) after the other, always of the same block, with scratch of its own in `kept`
    (T / SUB states). It writes its sums once, (STATES + OWN, LANES).
    """
    CH: tl.constexpr = BLOCKS * LANES
    REST: tl.constexpr = TAPS + 4 + 3 * STATES
    block = tl.program_id(1)
    lane = tl.arange(0, LANES)
    s = tl.arange(0, STATES)[:, None]
    tile = s * LANES + lane[None, :]
    p = records + block * LANES + lane
    A = tl.load(p[None, :] + (TAPS + 4 + 2 * STATES + s) * CH)
    to_h = tl.full((STATES, LANES), 1.0, tl.float32)
    if ZOH:
        to_h = 1.0 / A
    D = tl.load(p + REST * CH)
    out = tl.load(p + (REST + 1) * CH)
    gate = tl.load(p + (REST + 2) * CH)
    dt_weight = tl.load(p + (TAPS + 2 + 2 * STATES) * CH)
    dt_bias = tl.load(p + (TAPS + 3 + 2 * STATES) * CH)
    d_A = tl.zeros((STATES, LANES), tl.float32)
    d_dt_weight = tl.zeros((LANES,), tl.float32)
    d_dt_bias = tl.zeros((LANES,), tl.float32)
    d_D = tl.zeros((LANES,), tl.float32)
    d_out = tl.zeros((LANES,), tl.float32)
    d_gate = tl.zeros((LANES,), tl.float32)
    mine = (tl.program_id(0) * BLOCKS + block).to(tl.int64)
    kept += mine * (T // SUB) * STATES * LANES
    dtokens += block.to(tl.int64) * D_ROWS * stride

    i = 0
    while i < rounds:
        number = i * tl.num_programs(0) + tl.program_id(0)
        chunk = chunks + tl.minimum(number, work - 1) * CHUNK_FIELDS
        begin = tl.load(chunk + 1)
        count = tl.load(chunk + 2)
        at = tl.load(chunk + 3)
        wanted = tl.load(chunk + 4)
        first_out = tl.load(chunk + 5)
        if (number < work) & (begin + count > tl.load(starts + tl.load(chunk) * BLOCKS + block)):
            place = number * BLOCKS + block
            w = tl.load(states + place * STATES * LANES + tile)
            G = tl.load(dstates + place * STATES * LANES + tile)
            for q in range(T // SUB):
                tl.store(kept + q * STATES * LANES + tile, w)
                earlier = tl.zeros((STATES, LANES), tl.float32)
                for j in tl.static_range(SUB):
                    k = at + q * SUB + j
                    dt = _dt(tokens, p, k, q * SUB + j < count, stride, TAPS, CH)
                    w, earlier, _ = _advance(
                        w, earlier, _x(tokens, p, k, TAPS, CH), dt, _states(tokens, B_ROW, k, stride), A, ZOH
                    )
                w = w - earlier
            tl.debug_barrier()  # the same lanes read what they wrote; the compiler is told so
            for r in range(T // SUB):
                q = T // SUB - 1 - r
                w = tl.load(kept + q * STATES * LANES + tile)
                earlier = tl.zeros((STATES, LANES), tl.float32)
                ws = (w,)
                ins = ()
                es = ()
                for j in tl.static_range(SUB):
                    k = at + q * SUB + j
                    dt = _dt(tokens, p, k, q * SUB + j < count, stride, TAPS, CH)
                    w, earlier, e = _advance(
                        w, earlier, _x(tokens, p, k, TAPS, CH), dt, _states(tokens, B_ROW, k, stride), A, ZOH
                    )
                    ws = ws + (w,)
                    ins = ins + (earlier,)
                    es = es + (e,)
                for j in tl.static_range(SUB - 1, -1, -1):
                    t = q * SUB + j
                    k = at + t
                    valid = t < count
                    x = _x(tokens, p, k, TAPS, CH)
                    rate = tl.load(tokens + RATE_ROW * stride + k)
                    dt = _dt(tokens, p, k, valid, stride, TAPS, CH)
                    B = _states(tokens, B_ROW, k, stride)
                    C = _states(tokens, C_ROW, k, stride)
                    u = tl.load(tokens + k)
                    dout = tl.load(cotangent + first_out + t, valid & (wanted > 0), 0.0)
                    h = (ws[j + 1] - ins[j]) * to_h
                    bend = logistic(gate * u)
                    opened = gate * u * bend
                    y = tl.sum(C * h, 0) + D * x
                    d_out += dout * y * opened
                    dz = dout * out * y * (bend + opened * (1.0 - bend))
                    d_gate += dz * u
                    dy = dout * out * opened
                    d_D += dy * x
                    dC = tl.sum(dy[None, :] * h, 1)
                    into = dy[None, :] * C * to_h
                    G += into
                    if ZOH:
                        d_A -= into * h
                        d_exponent = G * ws[j + 1]
                        d_input = G * (es[j] - 1.0)
                        ddt = tl.sum(d_exponent * A, 0)
                    else:
                        d_exponent = G * es[j] * ws[j]
                        d_input = G * dt[None, :]
                        ddt = tl.sum(d_exponent * A + G * B * x[None, :], 0)
                    d_A += d_exponent * dt[None, :]
                    G = G * es[j]
                    ddt = tl.where(valid, ddt * logistic(dt_weight * rate + dt_bias), 0.0)
                    d_dt_weight += ddt * rate
                    d_dt_bias += ddt
                    tl.store(dx + k.to(tl.int64) * CH + block * LANES + lane, tl.sum(d_input * B, 0) + dy * D, valid)
                    tl.store(dtokens + D_RATE * stride + k, tl.sum(ddt * dt_weight, 0), valid)
                    tl.store(dtokens + D_U * stride + k, tl.sum(dz * gate, 0), valid)
                    dB = tl.sum(d_input * x[None, :], 1)
                    rows = tl.arange(0, STATES) * stride + k
                    tl.store(dtokens + D_B * stride + rows, dB, valid)
                    tl.store(dtokens + D_C * stride + rows, dC, valid)
        i += 1
    partial += mine * (STATES + OWN) * LANES
    tl.store(partial + tile, d_A)
    tl.store(partial + STATES * LANES + lane, d_dt_weight)
    tl.store(partial + (STATES + 1) * LANES + lane, d_dt_bias)
    tl.store(partial + (STATES + 2) * LANES + lane, d_D)
    tl.store(partial + (STATES + 3) * LANES + lane, d_out)
    tl.store(partial + (STATES + 4) * LANES + lane, d_gate)


@triton.jit(do_not_specialize=["stride"])
def unproject(
    records, chunks, layers, starts, tokens, dx, dtokens, partial, rest, stride,
    BLOCKS: tl.constexpr, TAPS: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """From there through projections and convolution: each chunk's gradients of the parameters that act there.

    `partial` (chunks, channels, TAPS + 2 + 2 STATES): filter, bias, to_dt, to_B, to_C. `rest` (chunks, 2): W_a, LRE.
    """
    CH: tl.constexpr = BLOCKS * LANES
    WIDTH: tl.constexpr = TAPS + 2 + 2 * STATES
    chunk = chunks + tl.program_id(0) * CHUNK_FIELDS
    layer = tl.load(chunk)
    begin = tl.load(chunk + 1)
    count = tl.load(chunk + 2)
    at = tl.load(chunk + 3)
    t = tl.arange(0, T)
    s = tl.arange(0, STATES)
    lane = tl.arange(0, LANES)
    live = t < count
    d_rate = tl.zeros((T,), tl.float32)
    d_u = tl.zeros((T,), tl.float32)
    dB = tl.zeros((T, STATES), tl.float32)
    dC = tl.zeros((T, STATES), tl.float32)
    rows = s[None, :] * stride + at + t[:, None]
    for b in range(BLOCKS):
        seen = live & (begin + count > tl.load(starts + layer * BLOCKS + b))
        part = dtokens + tl.full((), b, tl.int64) * D_ROWS * stride
        d_rate += tl.load(part + D_RATE * stride + at + t, seen, 0.0)
        d_u += tl.load(part + D_U * stride + at + t, seen, 0.0)
        dB += tl.load(part + D_B * stride + rows, seen[:, None], 0.0)
        dC += tl.load(part + D_C * stride + rows, seen[:, None], 0.0)
    token_weight = tl.sum(d_u * tl.load(tokens + RAW * stride + at + t, live, 0.0), 0)
    lre = tl.zeros((), tl.float32)
    for b in range(BLOCKS):
        seen = live & (begin + count > tl.load(starts + layer * BLOCKS + b))
        channel = b * LANES + lane
        p = records + channel
        pre = tl.zeros((T, LANES), tl.float32) + tl.load(p + TAPS * CH)[None, :]
        for k in tl.static_range(TAPS):
            pre += tl.load(tokens + at + t - k, live, 0.0)[:, None] * tl.load(p + (TAPS - 1 - k) * CH)[None, :]
        bend = logistic(pre)
        x = pre * bend
        d = tl.load(dx + (at + t).to(tl.int64)[:, None] * CH + channel[None, :], seen[:, None], 0.0)
        d += d_rate[:, None] * tl.load(p + (TAPS + 1) * CH)[None, :]
        to_B = tl.load(p[None, :] + (TAPS + 2 + s[:, None]) * CH)
        to_C = tl.load(p[None, :] + (TAPS + 2 + STATES + s[:, None]) * CH)
        d += tl.dot(dB, to_B, input_precision="ieee") + tl.dot(dC, to_C, input_precision="ieee")
        d = d * (bend + x * (1.0 - bend))
        q = partial + (tl.program_id(0) * CH + channel).to(tl.int64) * WIDTH
        for k in tl.static_range(TAPS):
            u = tl.load(tokens + at + t - k, live, 0.0)
            tl.store(q + TAPS - 1 - k, tl.sum(d * u[:, None], 0))
            through = tl.sum(d * tl.load(p + (TAPS - 1 - k) * CH)[None, :], 1)
            token_weight += tl.sum(through * tl.load(tokens + RAW * stride + at + t - k, live, 0.0), 0)
            lre += tl.sum(tl.where(begin + t == k, through, 0.0), 0)
        tl.store(q + TAPS, tl.sum(d, 0))
        tl.store(q + TAPS + 1, tl.sum(x * d_rate[:, None], 0))
        tl.store(q[:, None] + TAPS + 2 + s[None, :], tl.dot(tl.trans(x), dB, input_precision="ieee"))
        tl.store(q[:, None] + TAPS + 2 + STATES + s[None, :], tl.dot(tl.trans(x), dC, input_precision="ieee"))
    tl.store(rest + tl.program_id(0) * 2, token_weight)
    tl.store(rest + tl.program_id(0) * 2 + 1, lre)
