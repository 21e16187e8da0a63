# pyright: reportGeneralTypeIssues=false
# What is inside @triton.jit is Triton's language, not Python.
"""The backward pass of the concatenated slow-net, a row of the history a launch; `concat.py` says how it fits together.

With y = sum_s C_s h_s and d = dL/dy, the gradient of w_t is K_t / A with

    K_t = d_t C_t + exp(dt_{t+1} A) K_{t+1},

`flow` in place of the last product at a tile's end (euler: the gradient is K itself). A tile is walked through twice:
forward, noting the states that enter every Q tokens, and backward, Q tokens computed anew at a time.

Programs take one tile after another, so that what they sum over all of them stays in registers: the order is fixed.
"""

import triton
import triton.language as tl

from fastslow.hypernets.kernels.concat import (
    C_AT,
    LANES,
    LAYER_FIELDS,
    LOG2_E,
    RATE,
    STATES,
    TOKEN,
    U,
    channels_of,
    decay_rates,
    field_dt,
    field_ends,
    no_states,
    read_chunk,
    read_states,
    read_tile,
    spread,
    walk,
)
from fastslow.hypernets.kernels.maths import grown_by, logistic

D_TOKEN = tl.constexpr(36)  # columns of `dtokens`: of B, C, then rate and u, one for each half of the states
ENDS = tl.constexpr(5)  # dt_weight, dt_bias, D, out, gate: what `gradients` sums besides A


@triton.jit
def gated(dout, u, out, gate):
    """With z = gate * u: its logistic, its silu, and dL/dy."""
    z = gate * u
    bend = logistic(z)
    opened = z * bend
    return bend, opened, dout * out * opened


@triton.jit
def wanted_from(cotangent, token, t, begin, count, Q: tl.constexpr):
    """dL/d(output) of Q tokens, from the tile's token t on; zeros where there is none."""
    found = ()
    for j in tl.static_range(Q):
        found = found + (tl.load(cotangent + token + t + j, (t + j < count) & (begin + t + j >= 0), 0.0),)
    return found


@triton.jit(do_not_specialize=["row"])
def back_summarise(
    records, tiles, layers, starts, tokens, dts, cotangent, flows, row,
    CHANNELS: tl.constexpr, PER: tl.constexpr, GROUPS: tl.constexpr, TAPS: tl.constexpr, T: tl.constexpr,
    Q: tl.constexpr,
):  # fmt: skip
    """What each tile's outputs add to the gradient K of the state that comes into it."""
    tile = tl.program_id(0)
    group = tl.program_id(1)
    layer, begin, count, end = read_tile(tiles, layers, tile, row)
    if end > tl.load(starts + layer * GROUPS + group):
        c, ok = channels_of(group, PER, CHANNELS)
        rates, _inverses = decay_rates(records, c, ok, 0, STATES, CHANNELS, TAPS)
        out = tl.load(records + (field_ends(TAPS) + 1) * CHANNELS + c, ok, 0.0)
        gate = tl.load(records + (field_ends(TAPS) + 2) * CHANNELS + c, ok, 0.0)
        first = tl.load(layers + layer * LAYER_FIELDS) + begin
        Ks = no_states(STATES)
        column = tl.arange(0, LANES)
        left = (count + Q - 1) // Q * Q - Q
        _xs, dts_next, rows_next = read_chunk(
            tokens, dts, dts, tile * T + left, column, c, ok, False, True, CHANNELS, Q
        )  # fmt: skip
        while left >= 0:
            dt_all, rows = dts_next, rows_next
            douts = wanted_from(cotangent, first, left, begin, count, Q)
            us = ()
            for j in tl.static_range(Q):
                us = us + (tl.load(tokens + (tile * T + left + j) * TOKEN + U),)
            left -= Q
            _xs, dts_next, rows_next = read_chunk(
                tokens, dts, dts, tile * T + left, column, c, ok, False, left >= 0, CHANNELS, Q
            )  # fmt: skip
            for back in tl.static_range(Q):
                _bend, _opened, dy = gated(douts[Q - 1 - back], us[Q - 1 - back], out, gate)
                after = ()
                for s in tl.static_range(STATES):
                    K = Ks[s] + dy * spread(rows[Q - back], C_AT + s)
                    after = after + (tl.exp2(rates[s] * LOG2_E * dt_all[Q - 1 - back]) * K,)
                Ks = after
        for s in tl.static_range(STATES):
            tl.store(flows + (tile * STATES + s) * CHANNELS + c, Ks[s], ok)


@triton.jit
def sums_of(values, lane):
    """Sums over the lanes of 2^k tensors, the i-th of them in the i-th 2^k-th part of the lanes.

    In each round two tensors become one: half of the lanes keep the first and take what the other half has of it, the
    others the second. That is a third of the instructions of summing each by itself, for all lanes.
    """
    return _halved(values, lane, LANES // 2)


@triton.jit
def _halved(values, lane, far: tl.constexpr):
    other = lane ^ far
    if len(values) == 1:
        total = values[0] + tl.gather(values[0], other, 0)
        if far > 1:
            total = _halved((total,), lane, far // 2)
        return total
    else:
        low = lane & far == 0
        fewer = ()
        for i in tl.static_range(len(values) // 2):
            kept = tl.where(low, values[i], values[i + len(values) // 2])
            given = tl.where(low, values[i + len(values) // 2], values[i])
            fewer = fewer + (kept + tl.gather(given, other, 0),)
        return _halved(fewer, lane, far // 2)


@triton.jit(do_not_specialize=["number", "row", "places"])
def gradients(
    records, tiles, layers, starts, channel_starts, tokens, xs, dts, states_at, flows, cotangent, dx, dtokens, own,
    noted, number, row, places,
    CHANNELS: tl.constexpr, PER: tl.constexpr, GROUPS: tl.constexpr, TAPS: tl.constexpr, T: tl.constexpr,
    Q: tl.constexpr, ZOH: tl.constexpr, WANTED: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    """Gradients of x, of what channels share, and (programs, SOME + ENDS, splits, channels) of what is their own.

    A program has SOME of the states (axis 1) of a group of channels (axis 2), and its part of all that they share: dx
    (splits, places, channels), `dtokens` (GROUPS, places, D_TOKEN). WANTED: the row has outputs.
    """
    program = tl.program_id(0)
    split = tl.program_id(1)
    group = tl.program_id(2)
    splits: tl.constexpr = STATES // SOME
    first_state = split * SOME
    lane = tl.arange(0, LANES)
    c, ok = channels_of(group, PER, CHANNELS)
    rates, inverses = decay_rates(records, c, ok, first_state, SOME, CHANNELS, TAPS)
    dt_weight = tl.load(records + field_dt(TAPS) * CHANNELS + c, ok, 0.0)
    dt_bias = tl.load(records + (field_dt(TAPS) + 1) * CHANNELS + c, ok, 0.0)
    D = tl.load(records + field_ends(TAPS) * CHANNELS + c, ok & (split == 0), 0.0)  # once
    out = tl.load(records + (field_ends(TAPS) + 1) * CHANNELS + c, ok, 0.0)
    gate = tl.load(records + (field_ends(TAPS) + 2) * CHANNELS + c, ok, 0.0)
    noted += ((program * splits + split) * GROUPS + group) * (T // Q * SOME * LANES) + lane
    dx += split.to(tl.int64) * places * CHANNELS
    dtokens += group.to(tl.int64) * places * D_TOKEN
    # A lane's column of `tokens`: B and C of these states, rate, u. And of `dtokens`, where `sums_of` leaves the sums.
    shared = tl.where(lane < SOME, first_state + lane, STATES + first_state + lane - SOME)
    column = tl.where(lane < 2 * SOME, shared, tl.where(lane == 2 * SOME, RATE, U))
    SUMMED: tl.constexpr = SOME * (1 + WANTED)
    summed = lane // (LANES // SUMMED)
    sum_column = tl.where(summed < SOME, first_state + summed, STATES + first_state + summed - SOME)
    rest_column = 2 * STATES + lane // (LANES // 2) * splits + split
    d_As = no_states(SOME)
    d_dt_weight = tl.zeros((LANES,), tl.float32)
    d_dt_bias = tl.zeros((LANES,), tl.float32)
    d_D = tl.zeros((LANES,), tl.float32)
    d_out = tl.zeros((LANES,), tl.float32)
    d_gate = tl.zeros((LANES,), tl.float32)
    tile = program
    while tile < number:
        layer, begin, count, end = read_tile(tiles, layers, tile, row)
        if end > tl.load(starts + layer * GROUPS + group):
            first = tl.load(layers + layer * LAYER_FIELDS) + begin
            states = read_states(states_at, tile, c, ok, first_state, SOME, CHANNELS)
            xs_next, dts_next, rows_next = read_chunk(
                tokens, xs, dts, tile * T, column, c, ok, False, True, CHANNELS, Q
            )  # fmt: skip
            done = 0
            while done < count:
                for i in tl.static_range(SOME):
                    tl.store(noted + (done // Q * SOME + i) * LANES, states[i])
                x_all, dt_all, rows = xs_next, dts_next, rows_next
                done += Q
                xs_next, dts_next, rows_next = read_chunk(  # while these are computed
                    tokens, xs, dts, tile * T + done, column, c, ok, True, done < count, CHANNELS, Q
                )  # fmt: skip
                ws, _Bs = walk(x_all, dt_all, rows, states, rates, SOME, Q, ZOH)
                states = ws[Q - 1]
            alive = ok & (end > tl.load(channel_starts + layer * CHANNELS + c, ok, 0))
            Ks = read_states(flows, tile, c, alive, first_state, SOME, CHANNELS)
            done -= Q
            xs_next, dts_next, rows_next = read_chunk(
                tokens, xs, dts, tile * T + done, column, c, ok, done > 0, True, CHANNELS, Q
            )  # fmt: skip
            while done >= 0:
                place = tile * T + done
                states = ()
                for i in tl.static_range(SOME):
                    states = states + (tl.load(noted + (done // Q * SOME + i) * LANES),)
                if WANTED:
                    douts = wanted_from(cotangent, first, done, begin, count, Q)
                x_all, dt_all, rows = xs_next, dts_next, rows_next
                now = done
                done -= Q
                xs_next, dts_next, rows_next = read_chunk(
                    tokens, xs, dts, tile * T + done, column, c, ok, done > 0, done >= 0, CHANNELS, Q
                )  # fmt: skip
                ws, _Bs = walk(x_all, dt_all, rows, states, rates, SOME, Q, ZOH)
                for back in tl.static_range(Q):
                    at = place + (Q - 1 - back)
                    t = now + (Q - 1 - back)
                    w = ws[Q - 1 - back]
                    x = x_all[Q - back]
                    dt = dt_all[Q - 1 - back]
                    rate = spread(rows[Q - back], 2 * SOME)
                    u = spread(rows[Q - back], 2 * SOME + 1)
                    d_x = tl.zeros((LANES,), tl.float32)
                    if WANTED:
                        dout = douts[Q - 1 - back]
                        bend, opened, dy = gated(dout, u, out, gate)
                        y = D * x
                        d_x = dy * D
                    ddt = tl.zeros((LANES,), tl.float32)
                    to_Bs = ()
                    to_Cs = ()
                    new_Ks = ()
                    new_d_As = ()
                    for i in tl.static_range(SOME):
                        K = Ks[i]
                        d_A = d_As[i]
                        B = spread(rows[Q - back], i)
                        z = rates[i] * dt
                        grown = grown_by(z, tl.exp2(z * LOG2_E))  # e - 1 of a short step would lose its digits
                        if WANTED:
                            C = spread(rows[Q - back], SOME + i)
                            dyC = dy * C
                            K += dyC
                            if ZOH:
                                h = (w[i] - B * x) * inverses[i]
                                d_A -= dyC * h
                            else:
                                h = w[i]
                            y += C * h
                            to_Cs = to_Cs + (dy * h,)
                        if ZOH:
                            d_exponent = K * w[i]
                            d_entered = K * grown * inverses[i]
                            ddt += d_exponent
                        else:
                            d_exponent = K * (w[i] - dt * (B * x))
                            d_entered = K * dt
                            ddt += d_exponent * rates[i] + K * (B * x)
                        new_d_As = new_d_As + (d_A + d_exponent * dt,)
                        d_x += d_entered * B
                        to_Bs = to_Bs + (d_entered * x,)
                        new_Ks = new_Ks + (K + grown * K,)
                    Ks = new_Ks
                    d_As = new_d_As
                    # Where a tile is filled up x and dt are 0, but the gradient of dt needn't be.
                    ddt = tl.where(t < count, ddt * logistic(dt_weight * rate + dt_bias), 0.0)
                    d_dt_weight += ddt * rate
                    d_dt_bias += ddt
                    to_rate = ddt * dt_weight
                    to_shared = to_Bs
                    d_u = tl.zeros((LANES,), tl.float32)
                    if WANTED:
                        dz = dout * out * y * (bend + opened * (1.0 - bend))
                        d_D += dy * x
                        d_out += dout * y * opened
                        d_gate += dz * u
                        d_u = dz * gate
                        to_shared = to_Bs + to_Cs
                    tl.store(dx + at * CHANNELS + c, d_x, ok)
                    # Several lanes have each sum: one of them writes it.
                    shared_sums = sums_of(to_shared, lane)
                    tl.store(dtokens + at * D_TOKEN + sum_column, shared_sums, lane % (LANES // SUMMED) == 0)
                    rate_and_u = sums_of((to_rate, d_u), lane)
                    tl.store(dtokens + at * D_TOKEN + rest_column, rate_and_u, lane % (LANES // 2) == 0)
        tile += tl.num_programs(0)
    own += program * (SOME + ENDS) * splits * CHANNELS + split * CHANNELS + c
    for i in tl.static_range(SOME):
        d_A = d_As[i]
        if ZOH:
            d_A *= inverses[i]
        add_to(own + i * splits * CHANNELS, d_A, ok)
    own += SOME * splits * CHANNELS
    add_to(own, d_dt_weight, ok)
    add_to(own + splits * CHANNELS, d_dt_bias, ok)
    if WANTED:
        add_to(own + 2 * splits * CHANNELS, d_D, ok & (split == 0))
        add_to(own + 3 * splits * CHANNELS, d_out, ok)
        add_to(own + 4 * splits * CHANNELS, d_gate, ok)


@triton.jit
def add_to(place, values, mask):
    """Nobody else writes there."""
    tl.store(place, tl.load(place, mask, 0.0) + values, mask)
