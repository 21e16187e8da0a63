# pyright: reportGeneralTypeIssues=false
# What is inside @triton.jit is Triton's language, not Python.
"""The backward pass of the concatenated slow-net, a row of the history a launch; `concat.py` says how it fits together.

G_t is the gradient of w_t, `flow` that of the state which leaves a tile: with y = sum_s C_s h_s, d = dL/dy and
into = d C / A (ZOH; d C otherwise),

    G_t = into_t + exp(dt_{t+1} A) G_{t+1},    and `flow` in place of the last product at the tile's last token.
"""

import triton
import triton.language as tl

from fastslow.hypernets.kernels.concat import (
    C_ROW,
    LAYER_FIELDS,
    LOG2_E,
    RATE,
    STATES,
    U,
    compose,
    convolved,
    entering,
    field_A,
    field_dt,
    field_ends,
    seen,
    this_tile,
    window,
)
from fastslow.hypernets.kernels.maths import logistic

D_RATE, D_U = (tl.constexpr(i) for i in (0, 1))  # rows of `dtokens`, for each part; then the gradients of B and C
OWN = tl.constexpr(16)  # numbers a channel that `gradients` sums: A (SOME), dt_weight, dt_bias, D, out, gate
MIXED = tl.constexpr(64)  # and `unproject`: filter (TAPS), bias, to_dt, to_B, to_C


@triton.jit
def output_gradient(cotangent, layers, layer, begin, t, count):
    """dL/d(the layer's outputs) at the tile's tokens."""
    first = tl.load(layers + layer * LAYER_FIELDS) + begin
    return tl.load(cotangent + first + t, (t < count) & (begin + t >= 0), 0.0)


@triton.jit(do_not_specialize=["row", "places", "channels"])
def back_summarise(
    records, tiles, layers, starts, tokens, dts, cotangent, flows, row, places, channels,
    PER_PART: tl.constexpr, TAPS: tl.constexpr, T: tl.constexpr, ZOH: tl.constexpr, WANTED: tl.constexpr,
):  # fmt: skip
    """What each tile's outputs add to the gradient of the state that comes into it: zeros in a row without outputs."""
    layer, begin, count, end = this_tile(tiles, layers, row)
    t = tl.arange(0, T)
    at = tl.program_id(0) * T + t
    for n in range(PER_PART):
        c = tl.program_id(1) * PER_PART + n
        if (c < channels) & (end > tl.load(starts + layer * channels + tl.minimum(c, channels - 1))):
            all_states = tl.arange(0, STATES)
            added = tl.zeros((STATES,), tl.float32)
            if WANTED:
                own = records + field_ends(TAPS) * channels + c
                z = tl.load(own + 2 * channels) * tl.load(tokens + U * places + at)
                dy = (
                    output_gradient(cotangent, layers, layer, begin, t, count)
                    * tl.load(own + channels)
                    * z
                    * logistic(z)
                )
                spent = tl.cumsum(tl.load(dts + c * places + at), 0)
                for s in range(STATES):
                    A = tl.load(records + (field_A(TAPS) + s) * channels + c)
                    C = tl.load(tokens + (C_ROW + s) * places + at)
                    if ZOH:
                        C = C * (1.0 / A)
                    added = tl.where(all_states == s, tl.sum(tl.exp2(A * LOG2_E * spent) * dy * C, 0), added)
            tl.store(flows + (tl.program_id(0) * channels + c) * STATES + all_states, added)


@triton.jit
def add_to(place, values):
    """Nobody else writes there."""
    tl.store(place, tl.load(place) + values)


@triton.jit(do_not_specialize=["slots", "row", "places", "channels"])
def gradients(
    records, tiles, layers, starts, tokens, xs, dts, states, flows, cotangent, dx, dtokens, partial, slots, row, places,
    channels,
    TAPS: tl.constexpr, T: tl.constexpr, ZOH: tl.constexpr, WANTED: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    """Gradients of x, of what channels share, and (added to `partial`, `OWN` numbers a channel) of its own.

    A program takes SOME of the states (axis 1), so that what it adds up over the channels fits in registers, and writes
    its part of all that the states share: dx (parts, channels, places), those of dt and u in `dtokens`.
    """
    layer, begin, count, end = this_tile(tiles, layers, row)
    t = tl.arange(0, T)
    at = tl.program_id(0) * T + t
    # The scan for G runs backward in time: what it reads is loaded in that order, and only its result is turned around.
    turned = T - 1 - t
    at_turned = tl.program_id(0) * T + turned
    last = turned == count - 1
    first_state = tl.program_id(1) * SOME
    field = tl.arange(0, OWN)
    u = tl.load(tokens + U * places + at)
    u_turned = tl.load(tokens + U * places + at_turned)
    rate = tl.load(tokens + RATE * places + at)
    dout = tl.zeros((T,), tl.float32)
    dout_turned = tl.zeros((T,), tl.float32)
    if WANTED:
        dout = output_gradient(cotangent, layers, layer, begin, t, count)
        dout_turned = output_gradient(cotangent, layers, layer, begin, turned, count)
    d_rate = tl.zeros((T,), tl.float32)
    d_u = tl.zeros((T,), tl.float32)
    dBs = ()
    dCs = ()
    for _state in tl.static_range(SOME):
        dBs = dBs + (tl.zeros((T,), tl.float32),)
        dCs = dCs + (tl.zeros((T,), tl.float32),)
    partial += tl.program_id(1) * slots * channels * OWN
    dx += tl.program_id(1) * channels * places
    c = 0
    while c < channels:
        if end > tl.load(starts + layer * channels + c):
            place = c * places + at
            x = tl.load(xs + place)
            x_before = tl.load(xs + place - 1, t > 0, 0.0)
            dt = tl.load(dts + place)
            dt_next = tl.load(dts + c * places + at_turned + 1, turned + 1 < count, 0.0)
            D = tl.where(first_state == 0, tl.load(records + field_ends(TAPS) * channels + c), 0.0)  # once
            out = tl.load(records + (field_ends(TAPS) + 1) * channels + c)
            gate = tl.load(records + (field_ends(TAPS) + 2) * channels + c)
            dt_weight = tl.load(records + field_dt(TAPS) * channels + c)
            dt_bias = tl.load(records + (field_dt(TAPS) + 1) * channels + c)
            z = gate * u
            bend = logistic(z)
            opened = z * bend
            dy = dout * out * opened
            z_turned = gate * u_turned
            dy_turned = dout_turned * out * z_turned * logistic(z_turned)
            y = D * x
            d_x = dy * D
            ddt = tl.zeros((T,), tl.float32)
            own = tl.zeros((OWN,), tl.float32)
            new_dBs = ()
            new_dCs = ()
            for i in tl.static_range(SOME):
                s = first_state + i
                A = tl.load(records + (field_A(TAPS) + s) * channels + c)
                state = tl.load(states + (tl.program_id(0) * channels + c) * STATES + s)
                flow = tl.load(flows + (tl.program_id(0) * channels + c) * STATES + s)
                B, entered, step = entering(tokens, x, x_before, s, at, places, ZOH)
                e = tl.exp2(A * LOG2_E * dt)
                into = tl.where(last, flow, 0.0)
                if ZOH:
                    decay, added = tl.associative_scan((e, e * step), 0, compose)
                    w = added + decay * state
                    if WANTED:
                        h = (w - entered) * (1.0 / A)
                else:
                    decay, added = tl.associative_scan((e, dt * entered), 0, compose)
                    w = added + decay * state
                    if WANTED:
                        h = w
                d_A = tl.zeros((T,), tl.float32)
                if WANTED:
                    C = tl.load(tokens + (C_ROW + s) * places + at)
                    y += C * h
                    new_dCs = new_dCs + (dCs[i] + dy * h,)
                    C_turned = tl.load(tokens + (C_ROW + s) * places + at_turned)
                    if ZOH:
                        d_A -= dy * C * (1.0 / A) * h
                        C_turned = C_turned * (1.0 / A)
                    into += dy_turned * C_turned
                _to_flow, G_turned = tl.associative_scan((tl.exp2(A * LOG2_E * dt_next), into), 0, compose)
                G = tl.gather(G_turned, turned, 0)
                if ZOH:
                    d_exponent = G * w
                    d_entered = G * (e - 1.0)
                    ddt += d_exponent * A
                else:
                    d_exponent = G * (w - dt * entered)
                    d_entered = G * dt
                    ddt += d_exponent * A + G * entered
                own = tl.where(field == i, tl.sum(d_A + d_exponent * dt, 0), own)
                d_x += d_entered * B
                new_dBs = new_dBs + (dBs[i] + d_entered * x,)
            dBs = new_dBs
            if WANTED:
                dCs = new_dCs
            # Beyond the tile's end x is 0 and dt too, but their gradients needn't be.
            ddt = tl.where(t < count, ddt * logistic(dt_weight * rate + dt_bias), 0.0)
            dz = dout * out * y * (bend + opened * (1.0 - bend))
            d_rate += ddt * dt_weight
            d_u += dz * gate
            tl.store(dx + place, tl.where(t < count, d_x, 0.0))
            own = tl.where(field == SOME, tl.sum(ddt * rate, 0), own)
            own = tl.where(field == SOME + 1, tl.sum(ddt, 0), own)
            if WANTED:
                own = tl.where((field == SOME + 2) & (first_state == 0), tl.sum(dy * x, 0), own)
                own = tl.where(field == SOME + 3, tl.sum(dout * y * opened, 0), own)
                own = tl.where(field == SOME + 4, tl.sum(dz * u, 0), own)
            add_to(partial + (tl.program_id(0) * channels + c) * OWN + field, own)
        c += 1
    tl.store(dtokens + (2 * tl.program_id(1) + D_RATE) * places + at, d_rate)
    tl.store(dtokens + (2 * tl.program_id(1) + D_U) * places + at, d_u)
    dtokens += 2 * tl.num_programs(1) * places
    for i in tl.static_range(SOME):
        tl.store(dtokens + (first_state + i) * places + at, dBs[i])
        tl.store(dtokens + (STATES + first_state + i) * places + at, dCs[i])


@triton.jit(do_not_specialize=["row", "weights", "places", "channels"])
def unproject(
    records, token_weight_at, history, lre, unit, tiles, layers, starts, earliest, xs, dx, dtokens, partial, rest, row,
    weights, places, channels,
    PER_PART: tl.constexpr, SPLITS: tl.constexpr, TAPS: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """From there through projections and convolution: adds the gradients of the parameters that act there.

    `partial` (tiles, channels, MIXED), `rest` (tiles, parts, 2): W_a, LRE.
    """
    layer, _begin, count, end = this_tile(tiles, layers, row)
    begin = end - count
    if end > tl.load(earliest + layer):
        t = tl.arange(0, T)
        at = tl.program_id(0) * T + t
        live = t < count
        field = tl.arange(0, MIXED)
        token_weight = tl.load(token_weight_at)
        taps = window(history, layers, lre, unit, token_weight, layer, begin + t, live, weights, TAPS)
        d_rate = tl.zeros((T,), tl.float32)
        d_u = tl.zeros((T,), tl.float32)
        for split in tl.static_range(SPLITS):
            d_rate += tl.load(dtokens + (2 * split + D_RATE) * places + at)
            d_u += tl.load(dtokens + (2 * split + D_U) * places + at)
        dtokens += 2 * SPLITS * places
        throughs = ()
        for _tap in tl.static_range(TAPS):
            throughs = throughs + (tl.zeros((T,), tl.float32),)
        for n in range(PER_PART):
            c = tl.program_id(1) * PER_PART + n
            if c < channels:
                own = tl.zeros((MIXED,), tl.float32)
                x = tl.load(xs + c * places + at)
                pre = convolved(records, taps, c, channels, TAPS)
                bend = logistic(pre)
                d = d_rate * tl.load(records + (TAPS + 1) * channels + c)
                if end > tl.load(starts + layer * channels + c):
                    for split in tl.static_range(SPLITS):
                        d += tl.load(dx + (split * channels + c) * places + at)
                own = tl.where(field == TAPS + 1, tl.sum(x * d_rate, 0), own)
                for s in range(STATES):
                    dB = tl.load(dtokens + s * places + at)
                    dC = tl.load(dtokens + (STATES + s) * places + at)
                    d += dB * tl.load(records + (TAPS + 2 + s) * channels + c)
                    d += dC * tl.load(records + (TAPS + 2 + STATES + s) * channels + c)
                    own = tl.where(field == TAPS + 2 + s, tl.sum(x * dB, 0), own)
                    own = tl.where(field == TAPS + 2 + STATES + s, tl.sum(x * dC, 0), own)
                d = tl.where(live, d * (bend + x * (1.0 - bend)), 0.0)
                own = tl.where(field == TAPS, tl.sum(d, 0), own)
                new_throughs = ()
                for k in tl.static_range(TAPS):
                    own = tl.where(field == TAPS - 1 - k, tl.sum(d * taps[k], 0), own)
                    new_throughs = new_throughs + (throughs[k] + d * tl.load(records + (TAPS - 1 - k) * channels + c),)
                throughs = new_throughs
                add_to(partial + (tl.program_id(0) * channels + c) * MIXED + field, own)
        raw, _u = seen(history, layers, lre, unit, token_weight, layer, begin + t, live, weights)
        to_token_weight = tl.where(tl.program_id(1) == 0, d_u * raw, 0.0)  # once
        to_lre = tl.zeros((T,), tl.float32)
        for k in tl.static_range(TAPS):
            raw, _u = seen(history, layers, lre, unit, token_weight, layer, begin + t - k, live, weights)
            to_token_weight += throughs[k] * raw
            to_lre += tl.where(begin + t == k, throughs[k], 0.0)
        to = rest + (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * 2
        add_to(to, tl.sum(to_token_weight, 0))
        add_to(to + 1, tl.sum(to_lre, 0))
