# pyright: reportGeneralTypeIssues=false
# What is inside @triton.jit is Triton's language, not Python.
"""The per-weight slow-net as two Triton kernels: one row of channels a weight, everything in registers.

A program takes a few weights at a time; its lanes are (weight, channel) and the states of a pair stay in one lane. The
tokens are unrolled. The backward kernel keeps what the forward pass through the tokens leaves in registers, sums
parameter gradients lane by lane over all its weights, and writes them once: the sums over programs come after, in a
fixed order, so the result is the same every time.
"""

import triton
import triton.language as tl

from fastslow.hypernets.kernels.maths import expm1_negative, logistic, softplus


@triton.jit
def _token(history, u0, unit, t: tl.constexpr, w, mask, weights, token_weight):
    """What the block sees at token t: the LRE, then the history; (BW, 1)."""
    if t == 0:
        return tl.load(u0 + w, mask, 0.0)
    return tl.load(history + (t - 1) * weights + w, mask, 0.0) * tl.load(unit + w, mask, 1.0) * token_weight


@triton.jit
def _forward(
    records, token_weight_at, history, u0, unit, out, weights,
    TOKENS: tl.constexpr, CHANNELS: tl.constexpr, STATES: tl.constexpr, TAPS: tl.constexpr, ZOH: tl.constexpr,
    BW: tl.constexpr,
):  # fmt: skip
    BIAS: tl.constexpr = TAPS
    RATE: tl.constexpr = TAPS + 1
    TO_B: tl.constexpr = TAPS + 2
    TO_C: tl.constexpr = TO_B + STATES
    DT_WEIGHT: tl.constexpr = TO_C + STATES
    A_AT: tl.constexpr = DT_WEIGHT + 2
    D_AT: tl.constexpr = A_AT + STATES
    SIZE: tl.constexpr = D_AT + 3

    w = tl.program_id(0) * BW + tl.arange(0, BW)[:, None]
    mask = w < weights
    token_weight = tl.load(token_weight_at)
    p = records + tl.arange(0, CHANNELS)[None, :] * SIZE  # (1, CHANNELS)
    ps = p[None, :, :] + tl.arange(0, STATES)[:, None, None]  # (STATES, 1, CHANNELS)
    A = tl.load(ps + A_AT)
    to_B = tl.load(ps + TO_B)
    g = tl.zeros((STATES, BW, CHANNELS), tl.float32)
    x = tl.zeros((BW, CHANNELS), tl.float32)
    us = ()
    for t in tl.static_range(TOKENS):
        us = us + (_token(history, u0, unit, t, w, mask, weights, token_weight),)
        pre = tl.zeros((BW, CHANNELS), tl.float32) + tl.load(p + BIAS)
        for k in tl.static_range(TAPS):
            if t - k >= 0:
                pre += tl.load(p + TAPS - 1 - k) * us[t - k]
        x = pre * logistic(pre)
        rate = tl.sum(x * tl.load(p + RATE), 1)[:, None]
        dt = softplus(tl.load(p + DT_WEIGHT) * rate + tl.load(p + DT_WEIGHT + 1))
        B = tl.sum(x[None, :, :] * to_B, 2)[:, :, None]
        e = expm1_negative(dt[None, :, :] * A)
        if ZOH:  # g = A h: no division inside
            g += e * (g + B * x[None, :, :])
        else:
            g += e * g + B * (x * dt)[None, :, :]
    C = tl.sum(x[None, :, :] * tl.load(ps + TO_C), 2)[:, :, None]
    if ZOH:
        g = g / A
    y = tl.sum(C * g, 0) + tl.load(p + D_AT) * x
    z = tl.load(p + D_AT + 2) * us[TOKENS - 1]
    result = tl.sum(tl.load(p + D_AT + 1) * y * z * logistic(z), 1)[:, None]
    tl.store(out + w, result / tl.load(unit + w, mask, 1.0), mask)


@triton.jit
def _backward(
    records, token_weight_at, history, u0, unit, cotangent, du0, partial, weights,
    TOKENS: tl.constexpr, CHANNELS: tl.constexpr, STATES: tl.constexpr, TAPS: tl.constexpr, ZOH: tl.constexpr,
    BW: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    BIAS: tl.constexpr = TAPS
    RATE: tl.constexpr = TAPS + 1
    TO_B: tl.constexpr = TAPS + 2
    TO_C: tl.constexpr = TO_B + STATES
    DT_WEIGHT: tl.constexpr = TO_C + STATES
    A_AT: tl.constexpr = DT_WEIGHT + 2
    D_AT: tl.constexpr = A_AT + STATES
    SIZE: tl.constexpr = D_AT + 3

    token_weight = tl.load(token_weight_at)
    p = records + tl.arange(0, CHANNELS)[None, :] * SIZE
    ps = p[None, :, :] + tl.arange(0, STATES)[:, None, None]
    A = tl.load(ps + A_AT)
    to_B = tl.load(ps + TO_B)
    to_C = tl.load(ps + TO_C)
    flat = tl.zeros((BW, CHANNELS), tl.float32)
    deep = tl.zeros((STATES, BW, CHANNELS), tl.float32)
    d_bias, d_rate, d_dt_weight, d_dt_bias, d_D, d_out, d_gate = flat, flat, flat, flat, flat, flat, flat
    d_A, d_to_B, d_to_C = deep, deep, deep
    d_filter = ()
    for _ in tl.static_range(TAPS):
        d_filter = d_filter + (flat,)
    d_token_weight = tl.zeros((BW, 1), tl.float32)

    for i in range(ROUNDS):
        w = (i * tl.num_programs(0) + tl.program_id(0)) * BW + tl.arange(0, BW)[:, None]
        mask = w < weights
        us = ()
        xs = ()
        slopes = ()
        rates = ()
        dts = ()
        dt_slopes = ()
        Bs = ()
        es = ()
        gs = (deep,)
        for t in tl.static_range(TOKENS):
            us = us + (_token(history, u0, unit, t, w, mask, weights, token_weight),)
            pre = flat + tl.load(p + BIAS)
            for k in tl.static_range(TAPS):
                if t - k >= 0:
                    pre += tl.load(p + TAPS - 1 - k) * us[t - k]
            bend = logistic(pre)
            x = pre * bend
            rate = tl.sum(x * tl.load(p + RATE), 1)[:, None]
            v = tl.load(p + DT_WEIGHT) * rate + tl.load(p + DT_WEIGHT + 1)
            dt = softplus(v)
            B = tl.sum(x[None, :, :] * to_B, 2)[:, :, None]
            e = expm1_negative(dt[None, :, :] * A)
            if ZOH:
                after = gs[t] + e * (gs[t] + B * x[None, :, :])
            else:
                after = gs[t] + e * gs[t] + B * (x * dt)[None, :, :]
            xs = xs + (x,)
            slopes = slopes + (bend + x * (1.0 - bend),)
            rates = rates + (rate,)
            dts = dts + (dt,)
            dt_slopes = dt_slopes + (logistic(v),)
            Bs = Bs + (B,)
            es = es + (e,)
            gs = gs + (after,)
        x = xs[TOKENS - 1]
        u = us[TOKENS - 1]
        C = tl.sum(x[None, :, :] * to_C, 2)[:, :, None]
        h = gs[TOKENS]
        to_h = deep + 1.0
        if ZOH:
            to_h = 1.0 / A + deep
            h = h * to_h
        D = tl.load(p + D_AT)
        out = tl.load(p + D_AT + 1)
        gate = tl.load(p + D_AT + 2)
        bend = logistic(gate * u)
        g_z = gate * u * bend
        y = tl.sum(C * h, 0) + D * x
        dout = tl.load(cotangent + w, mask, 0.0) / tl.load(unit + w, mask, 1.0)
        d_out += dout * y * g_z
        dz = dout * out * y * (bend + g_z * (1.0 - bend))
        d_gate += dz * u
        dy = dout * out * g_z
        d_D += dy * x
        dC = tl.sum(dy[None, :, :] * h, 2)[:, :, None]
        d_to_C += dC * x[None, :, :]
        G = dy[None, :, :] * C * to_h
        if ZOH:
            d_A -= G * h
        last = dy * D + tl.sum(to_C * dC, 0)
        bends = ()  # the gradients of the convolution's outputs
        for t in tl.static_range(TOKENS - 1, -1, -1):
            x_t = xs[t]
            moved = G * es[t]
            if ZOH:
                d_input = moved
                d_z = (G + moved) * (gs[t] + Bs[t] * x_t[None, :, :])
                ddt = tl.sum(d_z * A, 0)
            else:
                d_input = G * dts[t][None, :, :]
                d_z = (G + moved) * gs[t]
                ddt = tl.sum(d_z * A, 0) + tl.sum(G * Bs[t], 0) * x_t
            G += moved
            d_A += d_z * dts[t][None, :, :]
            dx = tl.sum(d_input * Bs[t], 0)
            if t == TOKENS - 1:
                dx += last
            dB = tl.sum(d_input * x_t[None, :, :], 2)[:, :, None]
            d_to_B += dB * x_t[None, :, :]
            ddt = ddt * dt_slopes[t]
            d_dt_weight += ddt * rates[t]
            d_dt_bias += ddt
            d_rate_t = tl.sum(ddt * tl.load(p + DT_WEIGHT), 1)[:, None]
            d_rate += d_rate_t * x_t
            dx += tl.load(p + RATE) * d_rate_t + tl.sum(to_B * dB, 0)
            dx = dx * slopes[t]
            d_bias += dx
            bends = (dx,) + bends
        filters = ()
        for k in tl.static_range(TAPS):
            sum_k = d_filter[k]
            for t in tl.static_range(TOKENS):
                if t - k >= 0:
                    sum_k += bends[t] * us[t - k]
            filters = filters + (sum_k,)
        d_filter = filters
        for t in tl.static_range(TOKENS):
            du = flat
            if t == TOKENS - 1:
                du += dz * gate
            for k in tl.static_range(TAPS):
                if t + k < TOKENS:
                    du += bends[t + k] * tl.load(p + TAPS - 1 - k)
            total = tl.sum(du, 1)[:, None]
            if t == 0:
                tl.store(du0 + w, total, mask)
            else:
                seen = tl.load(history + (t - 1) * weights + w, mask, 0.0) * tl.load(unit + w, mask, 1.0)
                d_token_weight += total * seen

    q = partial + tl.program_id(0) * (CHANNELS * SIZE + 1) + tl.arange(0, CHANNELS) * SIZE
    for k in tl.static_range(TAPS):
        tl.store(q + TAPS - 1 - k, tl.sum(d_filter[k], 0))
    tl.store(q + BIAS, tl.sum(d_bias, 0))
    tl.store(q + RATE, tl.sum(d_rate, 0))
    qs = q[None, :] + tl.arange(0, STATES)[:, None]
    tl.store(qs + TO_B, tl.sum(d_to_B, 1))
    tl.store(qs + TO_C, tl.sum(d_to_C, 1))
    tl.store(q + DT_WEIGHT, tl.sum(d_dt_weight, 0))
    tl.store(q + DT_WEIGHT + 1, tl.sum(d_dt_bias, 0))
    tl.store(qs + A_AT, tl.sum(d_A, 1))
    tl.store(q + D_AT, tl.sum(d_D, 0))
    tl.store(q + D_AT + 1, tl.sum(d_out, 0))
    tl.store(q + D_AT + 2, tl.sum(d_gate, 0))
    tl.store(partial + tl.program_id(0) * (CHANNELS * SIZE + 1) + CHANNELS * SIZE, tl.sum(tl.sum(d_token_weight, 1), 0))
