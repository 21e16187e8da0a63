# pyright: reportGeneralTypeIssues=false
# What is inside @triton.jit is Triton's language, not Python.
"""The concatenated slow-net as Triton kernels: one sequence a layer, many layers in one launch.

A launch takes one row of the history (one gradient of every layer, N tokens), cut into tiles of T tokens that never
cross a layer; the first row also holds the layers' embeddings (LRE), one token before each. Rows follow each other, so
that memory for one of them is enough.

    window      what the convolution sees
    project     x (after convolution and silu), dt, and the projections to B and C: matrix products over a tile
    summarise   what each tile adds to the state that leaves it
    carry       the state that enters each tile, from those of the tiles before; between rows a layer's state is kept
    outputs     the last row's

and backward, from the last row to the first (concat_backward.py), the same three steps for the gradient of the state,
then everything else. Where time matters, a program is one warp: its lanes are channels (one of the GROUPS of PER), its
registers hold their states, and it walks through a tile token by token, Q of them unrolled. A scan along the lanes
would need no walk, but about five times the instructions, and instructions are what these kernels wait for.

With the exact hold the scan carries w = A h + B x, and in `w_t = exp(dt A) (w_{t-1} + B_t x_t - B_{t-1} x_{t-1})` the
difference is formed before anything is added to it (csrc/concat.inc says why). Between tiles the state is A h. A tile
is filled up with tokens of x = B = C = dt = 0, which leave A h as it is.

A tile that ends before the `starts` of its layer is left alone, group by group: see horizon.py. Channels are sorted so
that those of a group reach back about equally far.

Tables: a tile is (layer, first token in the row, tokens), a layer (column, size, first tile, end of its tiles). Records
are those of csrc/common.h, one column a channel. `tokens` holds a row of TOKEN numbers a place: B, C, rate, u.
"""

import triton
import triton.language as tl

from fastslow.hypernets.kernels.maths import logistic, softplus

STATES = tl.constexpr(16)
LANES = tl.constexpr(32)
TILE_FIELDS = tl.constexpr(3)
LAYER_FIELDS = tl.constexpr(4)
C_AT, RATE, U = (tl.constexpr(i) for i in (16, 32, 33))  # columns of `tokens`; B is at 0
TOKEN = tl.constexpr(36)
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def field_dt(TAPS: tl.constexpr):
    """Where a record holds the weight and, next to it, the bias of dt."""
    return TAPS + 2 + 2 * STATES


@triton.jit
def field_A(TAPS: tl.constexpr):
    return TAPS + 4 + 2 * STATES


@triton.jit
def field_ends(TAPS: tl.constexpr):
    """D, out, gate."""
    return TAPS + 4 + 3 * STATES


@triton.jit
def first_position(layers, layer, begin, row):
    """The position in the layer's sequence of the token `begin` of this row."""
    return 1 + row * tl.load(layers + layer * LAYER_FIELDS + 1) + begin


@triton.jit
def read_tile(tiles, layers, tile, row):
    """A tile's layer, its first token in the row, its tokens, and the position after its last one."""
    at = tiles + tile * TILE_FIELDS
    layer = tl.load(at)
    begin = tl.load(at + 1)
    count = tl.load(at + 2)
    return layer, begin, count, first_position(layers, layer, begin, row) + count


@triton.jit(do_not_specialize=["row", "weights"])
def window(
    history, unit, tiles, layers, earliest, taps, row, weights, TAPS: tl.constexpr, T: tl.constexpr
):  # fmt: skip
    """What the convolution reads of the history at each place, (places, TAPS): the token there, the one before, ...

    Zeros at the embedding, which `convolved` adds, and before it.
    """
    tile = tl.program_id(0)
    layer, _begin, count, end = read_tile(tiles, layers, tile, row)
    if end > tl.load(earliest + layer):
        column = tl.load(layers + layer * LAYER_FIELDS)
        size = tl.load(layers + layer * LAYER_FIELDS + 1)
        t = tl.arange(0, T)
        for k in tl.static_range(TAPS):
            at = end - count + t - k - 1  # in the history of the layer, row after row
            of_row = at // size
            at = of_row.to(tl.int64) * weights + column + (at - of_row * size)
            raw = tl.load(history + at, (t < count) & (end - count + t - k >= 1), 0.0)
            tl.store(taps + (tile * T + t) * TAPS + k, raw * tl.load(unit + layer))


@triton.jit
def convolved(
    records, taps, at, position, lre, token_weight, c, ok, CHANNELS: tl.constexpr, TAPS: tl.constexpr
):  # fmt: skip
    """The convolution at a block of tokens, (tokens, channels); and the tokens themselves."""
    pre = tl.load(records + TAPS * CHANNELS + c, ok, 0.0)[None, :]
    newest = tl.load(taps + at * TAPS) * token_weight + tl.where(position == 0, lre, 0.0)
    for k in tl.static_range(TAPS):
        u = newest
        if k > 0:
            u = tl.load(taps + at * TAPS + k) * token_weight + tl.where(position == k, lre, 0.0)
        pre += u[:, None] * tl.load(records + (TAPS - 1 - k) * CHANNELS + c, ok, 0.0)[None, :]
    return pre, newest


@triton.jit
def channels_of(group, PER: tl.constexpr, CHANNELS: tl.constexpr):
    """The channels of a group, one a lane, and which of the lanes have one."""
    lane = tl.arange(0, LANES)
    c = group * PER + lane
    return c, (lane < PER) & (c < CHANNELS)


@triton.jit(do_not_specialize=["row"])
def project(
    records, token_weight_at, lre, tiles, layers, earliest, taps, tokens, xs, dts, row,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, T: tl.constexpr, BLOCK: tl.constexpr, WANTED: tl.constexpr,
):  # fmt: skip
    """x and dt, (places, channels), and what all channels share, (places, TOKEN), of BLOCK tokens.

    C only where it is WANTED: for a row with outputs.
    """
    tile = tl.program_id(0)
    layer, _begin, count, end = read_tile(tiles, layers, tile, row)
    first = tl.program_id(1) * BLOCK
    if (end > tl.load(earliest + layer)) & (first < count):
        token_weight = tl.load(token_weight_at)
        embedding = tl.load(lre + layer)
        t = first + tl.arange(0, BLOCK)
        live = (t < count)[:, None]
        at = tile * T + t
        position = end - count + t
        COLUMNS: tl.constexpr = STATES * (1 + WANTED)  # of B, and of C after it
        column = tl.arange(0, COLUMNS)
        rate = tl.zeros((BLOCK,), tl.float32)
        shared = tl.zeros((BLOCK, COLUMNS), tl.float32)
        for block in range((CHANNELS + LANES - 1) // LANES):
            c = block * LANES + tl.arange(0, LANES)
            ok = c < CHANNELS
            pre, u = convolved(records, taps, at, position, embedding, token_weight, c, ok, CHANNELS, TAPS)
            x = tl.where(live & ok[None, :], pre * logistic(pre), 0.0)
            tl.store(xs + at[:, None] * CHANNELS + c[None, :], x, ok[None, :])
            rate += tl.sum(x * tl.load(records + (TAPS + 1) * CHANNELS + c, ok, 0.0)[None, :], 1)
            to_shared = tl.load(records + (TAPS + 2 + column[None, :]) * CHANNELS + c[:, None], ok[:, None], 0.0)
            shared = tl.dot(x, to_shared, shared, input_precision="tf32x3")
            if block == 0:
                tl.store(tokens + at * TOKEN + U, u)
        tl.store(tokens + at[:, None] * TOKEN + column[None, :], shared)
        tl.store(tokens + at * TOKEN + RATE, rate)
        for block in range((CHANNELS + LANES - 1) // LANES):
            c = block * LANES + tl.arange(0, LANES)
            ok = c < CHANNELS
            weight = tl.load(records + field_dt(TAPS) * CHANNELS + c, ok, 0.0)
            bias = tl.load(records + (field_dt(TAPS) + 1) * CHANNELS + c, ok, 0.0)
            dt = softplus(weight[None, :] * rate[:, None] + bias[None, :])
            tl.store(dts + at[:, None] * CHANNELS + c[None, :], tl.where(live, dt, 0.0), ok[None, :])


@triton.jit
def decay_rates(records, c, ok, first, SOME: tl.constexpr, CHANNELS: tl.constexpr, TAPS: tl.constexpr):
    """A of some states: as it is, and its inverse."""
    rates = ()
    inverses = ()
    for i in tl.static_range(SOME):
        A = tl.load(records + (field_A(TAPS) + first + i) * CHANNELS + c, ok, -1.0)
        rates = rates + (A,)
        inverses = inverses + (1.0 / A,)
    return rates, inverses


@triton.jit
def read_states(states, tile, c, ok, first, SOME: tl.constexpr, CHANNELS: tl.constexpr):
    """Some states of a tile, from (tiles, STATES, channels)."""
    found = ()
    for i in tl.static_range(SOME):
        found = found + (tl.load(states + (tile * STATES + first + i) * CHANNELS + c, ok, 0.0),)
    return found


@triton.jit
def no_states(SOME: tl.constexpr):
    found = ()
    for _state in tl.static_range(SOME):
        found = found + (tl.zeros((LANES,), tl.float32),)
    return found


@triton.jit
def read_chunk(tokens, xs, dts, place, column, c, ok, before, inside, CHANNELS: tl.constexpr, Q: tl.constexpr):
    """x, dt and a row of `tokens` (a column a lane) of Q tokens, and of the one before them first.

    Zeros for what is not `inside` of the tile, whose first token counts whole: `before` says if there is one before.
    """
    x = (tl.load(xs + (place - 1) * CHANNELS + c, ok & before, 0.0),)
    row = (tl.load(tokens + (place - 1) * TOKEN + column, before, 0.0),)
    dt = ()
    for j in tl.static_range(Q):
        x = x + (tl.load(xs + (place + j) * CHANNELS + c, ok & inside, 0.0),)
        dt = dt + (tl.load(dts + (place + j) * CHANNELS + c, ok & inside, 0.0),)
        row = row + (tl.load(tokens + (place + j) * TOKEN + column, inside, 0.0),)
    return x, dt, row


@triton.jit
def spread(row, lane_of: tl.constexpr):
    """The value that one lane has, for all of them."""
    return tl.gather(row, tl.full((LANES,), lane_of, tl.int32), 0)


@triton.jit
def spread_some(row, SOME: tl.constexpr):
    values = ()
    for i in tl.static_range(SOME):
        values = values + (spread(row, i),)
    return values


@triton.jit
def advance(x, x_before, dt, Bs, Bs_before, states, rates, SOME: tl.constexpr, ZOH: tl.constexpr):
    """The states after one token."""
    change = x - x_before
    after = ()
    for i in tl.static_range(SOME):
        e = tl.exp2(rates[i] * LOG2_E * dt)
        if ZOH:
            after = after + (e * (states[i] + (Bs[i] * change + (Bs[i] - Bs_before[i]) * x_before)),)
        else:
            after = after + (e * states[i] + dt * (Bs[i] * x),)
    return after


@triton.jit
def walk(x, dt, rows, states, rates, SOME: tl.constexpr, Q: tl.constexpr, ZOH: tl.constexpr):
    """Through a chunk: the states after each of its tokens, and the Bs there."""
    Bs = spread_some(rows[0], SOME)
    all_states = ()
    all_Bs = ()
    for j in tl.static_range(Q):
        Bs_before = Bs
        Bs = spread_some(rows[j + 1], SOME)
        states = advance(x[j + 1], x[j], dt[j], Bs, Bs_before, states, rates, SOME, ZOH)
        all_states = all_states + (states,)
        all_Bs = all_Bs + (Bs,)
    return all_states, all_Bs


@triton.jit(do_not_specialize=["row"])
def summarise(
    records, tiles, layers, starts, tokens, xs, dts, ends, totals, row,
    CHANNELS: tl.constexpr, PER: tl.constexpr, GROUPS: tl.constexpr, TAPS: tl.constexpr, T: tl.constexpr,
    Q: tl.constexpr, ZOH: tl.constexpr,
):  # fmt: skip
    """What each tile adds to the state that leaves it, (tiles, STATES, channels), and the sum of its steps."""
    tile = tl.program_id(0)
    group = tl.program_id(1)
    layer, _begin, count, end = read_tile(tiles, layers, tile, row)
    if end > tl.load(starts + layer * GROUPS + group):
        c, ok = channels_of(group, PER, CHANNELS)
        rates, _inverses = decay_rates(records, c, ok, 0, STATES, CHANNELS, TAPS)
        states = no_states(STATES)
        total = tl.zeros((LANES,), tl.float32)
        column = tl.arange(0, LANES)
        xs_next, dts_next, rows_next = read_chunk(
            tokens, xs, dts, tile * T, column, c, ok, False, True, CHANNELS, Q
        )  # fmt: skip
        x = xs_next[0]
        Bs = no_states(STATES)
        done = 0
        while done < count:
            x_all, dt_all, rows = xs_next, dts_next, rows_next
            done += Q
            xs_next, dts_next, rows_next = read_chunk(  # while these are computed
                tokens, xs, dts, tile * T + done, column, c, ok, True, done < count, CHANNELS, Q
            )  # fmt: skip
            all_states, all_Bs = walk(x_all, dt_all, rows, states, rates, STATES, Q, ZOH)
            states, Bs, x = all_states[Q - 1], all_Bs[Q - 1], x_all[Q]
            for j in tl.static_range(Q):
                total += dt_all[j]
        for s in tl.static_range(STATES):
            added = states[s]
            if ZOH:
                added -= Bs[s] * x
            tl.store(ends + (tile * STATES + s) * CHANNELS + c, added, ok)
        tl.store(totals + tile * CHANNELS + c, total, ok)


@triton.jit(do_not_specialize=["row"])
def carry(
    records, tiles, layers, starts, added_by, totals, coming_in, kept, row,
    CHANNELS: tl.constexpr, PER: tl.constexpr, TAPS: tl.constexpr, Q: tl.constexpr, BACK: tl.constexpr,
    ADDS: tl.constexpr,
):  # fmt: skip
    """From what each tile adds (nothing without ADDS), what comes into it: from the tiles before, or (BACK) after it.

    `kept` (layers, STATES, channels) is what comes into the row, and then what leaves it. `starts` are the channels'.
    """
    layer = tl.program_id(0)
    s = tl.program_id(1)
    c, ok = channels_of(tl.program_id(2), PER, CHANNELS)
    A = tl.load(records + (field_A(TAPS) + s) * CHANNELS + c, ok, -1.0) * LOG2_E
    start = tl.load(starts + layer * CHANNELS + c, ok, 1 << 30)
    first = tl.load(layers + layer * LAYER_FIELDS + 2)
    number = tl.load(layers + layer * LAYER_FIELDS + 3) - first
    row_end = first_position(layers, layer, tl.load(layers + layer * LAYER_FIELDS + 1), row)
    if tl.min(start, 0) < row_end:  # else none of the row's tiles is read
        step = 1
        if BACK:
            first = first + number - 1
            step = -1
        state = tl.load(kept + (layer * STATES + s) * CHANNELS + c, ok, 0.0)
        done = 0
        while done < number:
            decays = ()
            own = ()
            for j in tl.static_range(Q):  # all are loaded before anything is stored, which would hold them up
                index = first + step * (done + j)
                inside = done + j < number
                begin = first_position(layers, layer, tl.load(tiles + index * TILE_FIELDS + 1, inside, 0), row)
                alive = ok & inside & (begin + tl.load(tiles + index * TILE_FIELDS + 2, inside, 0) > start)
                decays = decays + (tl.exp2(A * tl.load(totals + index * CHANNELS + c, alive, 0.0)),)
                if ADDS:
                    own = own + (tl.load(added_by + (index * STATES + s) * CHANNELS + c, alive, 0.0),)
                else:
                    own = own + (0.0,)
            for j in tl.static_range(Q):
                index = first + step * (done + j)
                tl.store(coming_in + (index * STATES + s) * CHANNELS + c, state, ok & (done + j < number))
                state = decays[j] * state + own[j]
            done += Q
        tl.store(kept + (layer * STATES + s) * CHANNELS + c, state, ok)


@triton.jit(do_not_specialize=["row", "weights"])
def outputs(
    records, tiles, layers, starts, tokens, xs, dts, states_at, partial, row, weights,
    CHANNELS: tl.constexpr, PER: tl.constexpr, GROUPS: tl.constexpr, TAPS: tl.constexpr, T: tl.constexpr,
    Q: tl.constexpr, ZOH: tl.constexpr,
):  # fmt: skip
    """The row's outputs, a part for each group of channels, (GROUPS, weights)."""
    tile = tl.program_id(0)
    group = tl.program_id(1)
    layer, begin, count, end = read_tile(tiles, layers, tile, row)
    if end > tl.load(starts + layer * GROUPS + group):
        c, ok = channels_of(group, PER, CHANNELS)
        rates, inverses = decay_rates(records, c, ok, 0, STATES, CHANNELS, TAPS)
        D = tl.load(records + field_ends(TAPS) * CHANNELS + c, ok, 0.0)
        out = tl.load(records + (field_ends(TAPS) + 1) * CHANNELS + c, ok, 0.0)
        gate = tl.load(records + (field_ends(TAPS) + 2) * CHANNELS + c, ok, 0.0)
        states = read_states(states_at, tile, c, ok, 0, STATES, CHANNELS)
        partial += group.to(tl.int64) * weights + tl.load(layers + layer * LAYER_FIELDS) + begin
        t = tl.arange(0, Q)
        column = tl.arange(0, LANES)
        xs_next, dts_next, rows_next = read_chunk(
            tokens, xs, dts, tile * T, column, c, ok, False, True, CHANNELS, Q
        )  # fmt: skip
        done = 0
        while done < count:
            x_all, dt_all, rows = xs_next, dts_next, rows_next
            us = ()
            for j in tl.static_range(Q):
                us = us + (tl.load(tokens + (tile * T + done + j) * TOKEN + U),)
            xs_next, dts_next, rows_next = read_chunk(  # while these are computed
                tokens, xs, dts, tile * T + done + Q, column, c, ok, True, done + Q < count, CHANNELS, Q
            )  # fmt: skip
            found = tl.zeros((Q,), tl.float32)
            Bs = spread_some(rows[0], STATES)
            for j in tl.static_range(Q):  # not `walk`: the states of all Q tokens don't fit in registers
                x = x_all[j + 1]
                Bs_before = Bs
                Bs = spread_some(rows[j + 1], STATES)
                states = advance(x, x_all[j], dt_all[j], Bs, Bs_before, states, rates, STATES, ZOH)
                y = D * x
                for s in tl.static_range(STATES):
                    C = spread(rows[j + 1], C_AT + s)
                    if ZOH:
                        y += C * ((states[s] - Bs[s] * x) * inverses[s])
                    else:
                        y += C * states[s]
                z = gate * us[j]
                found = tl.where(t == j, tl.sum(out * y * z * logistic(z), 0), found)
            tl.store(partial + done + t, found, (done + t < count) & (begin + done + t >= 0))
            done += Q
