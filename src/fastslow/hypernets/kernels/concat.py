# pyright: reportGeneralTypeIssues=false
# What is inside @triton.jit is Triton's language, not Python.
"""The concatenated slow-net as Triton kernels: one sequence a layer, many layers in one launch, lanes along time.

A launch takes one row of the history (one gradient of every layer, N tokens), cut into tiles of T tokens that never
cross a layer; the first row also holds the layers' embeddings (LRE), one token before each. Rows follow each other, so
that memory is needed for one of them.

    project     x (after convolution and silu), dt, and the projections to B and C
    summarise   what each tile adds to the state that leaves it
    carry       the state that enters each tile, from those of the tiles before; between rows a layer's state is kept
    outputs     the last row's: a scan within each tile

and backward, from the last row to the first (concat_backward.py), the same three steps for the gradient of the state,
then everything else. What channels share is summed within a program that takes all (or a part) of them in turn.

With the exact hold the scan carries w = A h + B x, and in `w_t = exp(dt A) (w_{t-1} + B_t x_t - B_{t-1} x_{t-1})` the
difference is formed before anything is added to it (csrc/concat.inc says why). Between tiles the state is A h.

A tile that ends before the `starts` of its layer and channel is left alone: see horizon.py.

Tables: a tile is (layer, first token in the row, tokens), a layer (column, size, first tile, end of its tiles). Records
are those of csrc/common.h, one column a channel.
"""

import triton
import triton.language as tl

from fastslow.hypernets.kernels.maths import logistic, softplus

STATES = tl.constexpr(16)
TILE_FIELDS = tl.constexpr(3)
LAYER_FIELDS = tl.constexpr(4)
U, RATE, B_ROW, STEP_ROW, C_ROW = (tl.constexpr(i) for i in (0, 1, 2, 18, 34))  # rows of `tokens`; STEP: B_t - B_{t-1}
ROWS = tl.constexpr(50)
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
def compose(decay_1, added_1, decay_2, added_2):
    """First one stretch of a scan, then another."""
    return decay_1 * decay_2, decay_2 * added_1 + added_2


@triton.jit
def seen(history, layers, lre, unit, token_weight, layer, position, mask, weights):
    """Raw and projected tokens at these positions of a layer's sequence; position 0 is the LRE."""
    column = tl.load(layers + layer * LAYER_FIELDS)
    size = tl.load(layers + layer * LAYER_FIELDS + 1)
    row = (position - 1) // size
    at = row.to(tl.int64) * weights + column + (position - 1 - row * size)
    raw = tl.load(history + at, mask & (position >= 1), 0.0) * tl.load(unit + layer)
    u = tl.where(position == 0, tl.load(lre + layer), raw * token_weight)
    return raw, tl.where(mask & (position >= 0), u, 0.0)


@triton.jit
def first_position(layers, layer, begin, row):
    """The position in the layer's sequence of the token `begin` of this row."""
    return 1 + row * tl.load(layers + layer * LAYER_FIELDS + 1) + begin


@triton.jit
def this_tile(tiles, layers, row):
    """This program's tile: its layer, its first token in the row, its tokens, and the position after its last one."""
    tile = tiles + tl.program_id(0) * TILE_FIELDS
    layer = tl.load(tile)
    begin = tl.load(tile + 1)
    count = tl.load(tile + 2)
    return layer, begin, count, first_position(layers, layer, begin, row) + count


@triton.jit
def window(history, layers, lre, unit, token_weight, layer, position, mask, weights, TAPS: tl.constexpr):
    """What the convolution reads at these positions: the token there, the one before it, ..."""
    taps = ()
    for k in tl.static_range(TAPS):
        _raw, tap = seen(history, layers, lre, unit, token_weight, layer, position - k, mask, weights)
        taps = taps + (tap,)
    return taps


@triton.jit
def convolved(records, taps, c, channels, TAPS: tl.constexpr):
    pre = taps[0] * tl.load(records + (TAPS - 1) * channels + c) + tl.load(records + TAPS * channels + c)
    for k in tl.static_range(1, TAPS):
        pre += taps[k] * tl.load(records + (TAPS - 1 - k) * channels + c)
    return pre


@triton.jit(do_not_specialize=["row", "weights", "places", "channels"])
def project(
    records, token_weight_at, history, lre, unit, tiles, layers, earliest, tokens, xs, dts, row, weights, places,
    channels,
    TAPS: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """x and dt, (channels, places), and what all channels share, (ROWS, places).

    Two programs share a tile, so that their sums fit in registers: one finds C, the other everything else.
    """
    layer, _begin, count, end = this_tile(tiles, layers, row)
    begin = end - count
    for_C = tl.program_id(1) == 1
    if end > tl.load(earliest + layer):
        token_weight = tl.load(token_weight_at)
        t = tl.arange(0, T)
        live = t < count
        at = tl.program_id(0) * T + t
        taps = window(history, layers, lre, unit, token_weight, layer, begin + t, live, weights, TAPS)
        weights_at = records + (TAPS + 2 + tl.program_id(1) * STATES) * channels
        rate = tl.zeros((T,), tl.float32)
        sums = ()
        for _state in tl.static_range(STATES):
            sums = sums + (tl.zeros((T,), tl.float32),)
        c = 0
        while c < channels:
            pre = convolved(records, taps, c, channels, TAPS)
            x = tl.where(live, pre * logistic(pre), 0.0)
            tl.store(xs + c * places + at, x, for_C)
            rate += x * tl.load(records + (TAPS + 1) * channels + c)
            new_sums = ()
            for s in tl.static_range(STATES):
                new_sums = new_sums + (sums[s] + x * tl.load(weights_at + s * channels + c),)
            sums = new_sums
            c += 1
        if for_C:
            for s in tl.static_range(STATES):
                tl.store(tokens + (C_ROW + s) * places + at, sums[s])
        else:
            tl.store(tokens + U * places + at, taps[0])
            tl.store(tokens + RATE * places + at, rate)
            before = tl.maximum(t - 1, 0)
            for s in tl.static_range(STATES):
                tl.store(tokens + (B_ROW + s) * places + at, sums[s])
                tl.store(tokens + (STEP_ROW + s) * places + at, sums[s] - tl.gather(sums[s], before, 0))
            c = 0
            while c < channels:
                at_dt = records + field_dt(TAPS) * channels + c
                dt = softplus(tl.load(at_dt) * rate + tl.load(at_dt + channels))
                tl.store(dts + c * places + at, tl.where(live, dt, 0.0))  # a step of 0 changes nothing
                c += 1


@triton.jit
def entering(tokens, x, x_before, s, at, places, ZOH: tl.constexpr):
    """B_t x_t, and how much it differs from the token before (ZOH; within the tile, whose first token counts whole)."""
    B = tl.load(tokens + (B_ROW + s) * places + at)
    entered = B * x
    step = entered
    if ZOH:
        step = B * (x - x_before) + tl.load(tokens + (STEP_ROW + s) * places + at) * x_before
    return B, entered, step


@triton.jit(do_not_specialize=["row", "places", "channels"])
def summarise(
    records, tiles, layers, starts, tokens, xs, dts, ends, totals, row, places,
    channels,
    PER_PART: tl.constexpr, TAPS: tl.constexpr, T: tl.constexpr, ZOH: tl.constexpr,
):  # fmt: skip
    """What each tile adds to the state that leaves it, (tiles, channels, STATES), and the sum of its steps."""
    layer, _begin, count, end = this_tile(tiles, layers, row)
    t = tl.arange(0, T)
    at = tl.program_id(0) * T + t
    for n in range(PER_PART):
        c = tl.program_id(1) * PER_PART + n
        if (c < channels) & (end > tl.load(starts + layer * channels + tl.minimum(c, channels - 1))):
            place = c * places + at
            x = tl.load(xs + place)
            x_before = tl.load(xs + place - 1, t > 0, 0.0)
            dt = tl.load(dts + place)
            left = tl.cumsum(dt, 0, reverse=True)  # of the tile's time, this token's step included
            if not ZOH:
                left -= dt
            # Collected, and stored once: a store would hold up the loads that follow it.
            all_states = tl.arange(0, STATES)
            added = tl.zeros((STATES,), tl.float32)
            for s in range(STATES):
                A = tl.load(records + (field_A(TAPS) + s) * channels + c) * LOG2_E
                _, entered, step = entering(tokens, x, x_before, s, at, places, ZOH)
                kept = tl.exp2(A * left)
                if ZOH:
                    term = tl.where(t < count, kept * step - tl.where(t == count - 1, entered, 0.0), 0.0)
                else:
                    term = kept * dt * entered
                added = tl.where(all_states == s, tl.sum(term, 0), added)
            tl.store(ends + (tl.program_id(0) * channels + c) * STATES + all_states, added)
            tl.store(totals + tl.program_id(0) * channels + c, tl.sum(dt, 0))


@triton.jit(do_not_specialize=["row", "channels"])
def carry(
    records, tiles, layers, starts, added_by, totals, coming_in, kept, row,
    channels,
    TAPS: tl.constexpr, BACK: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """From what each tile adds, what comes into it: from the tiles before, or (BACK) after it.

    `kept` (layers, channels, STATES) is what comes into the row, and then what leaves it.
    """
    layer = tl.program_id(0)
    c = tl.program_id(1)
    s = tl.arange(0, STATES)
    i = tl.arange(0, N)
    A = tl.load(records + (field_A(TAPS) + s) * channels + c) * LOG2_E
    start = tl.load(starts + layer * channels + c)
    first = tl.load(layers + layer * LAYER_FIELDS + 2)
    number = tl.load(layers + layer * LAYER_FIELDS + 3) - first
    step = 1
    if BACK:
        first = first + number - 1
        step = -1
    state = tl.load(kept + (layer * channels + c) * STATES + s)
    tl.store(coming_in + (first * channels + c) * STATES + s, state)
    done = 0
    while done < number:
        order = done + i
        index = first + step * order
        inside = order < number
        begin = first_position(layers, layer, tl.load(tiles + index * TILE_FIELDS + 1, inside, 0), row)
        alive = inside & (begin + tl.load(tiles + index * TILE_FIELDS + 2, inside, 0) > start)
        own = tl.load(added_by + (index * channels + c)[:, None] * STATES + s[None, :], alive[:, None], 0.0)
        total = tl.load(totals + index * channels + c, alive, 0.0)
        decay, added = tl.associative_scan((tl.exp2(A[None, :] * total[:, None]), own), 0, compose)
        after = decay * state[None, :] + added
        # What leaves a tile comes into the next.
        next_one = coming_in + ((index + step) * channels + c)[:, None] * STATES + s[None, :]
        tl.store(next_one, after, (order + 1 < number)[:, None])
        state = tl.sum(tl.where((order == tl.minimum(done + N, number) - 1)[:, None], after, 0.0), 0)
        done += N
    tl.store(kept + (layer * channels + c) * STATES + s, state)


@triton.jit(do_not_specialize=["row", "weights", "places", "channels"])
def outputs(
    records, tiles, layers, starts, earliest, tokens, xs, dts, states, partial, row, weights, places,
    channels,
    PER_PART: tl.constexpr, TAPS: tl.constexpr, T: tl.constexpr, ZOH: tl.constexpr,
):  # fmt: skip
    """The row's outputs, a part for each program along axis 1, (parts, weights)."""
    layer, begin, count, end = this_tile(tiles, layers, row)
    t = tl.arange(0, T)
    at = tl.program_id(0) * T + t
    u = tl.load(tokens + U * places + at)
    out = tl.zeros((T,), tl.float32)
    for n in range(PER_PART):
        c = tl.program_id(1) * PER_PART + n
        if (c < channels) & (end > tl.load(starts + layer * channels + tl.minimum(c, channels - 1))):
            place = c * places + at
            x = tl.load(xs + place)
            x_before = tl.load(xs + place - 1, t > 0, 0.0)
            dt = tl.load(dts + place)
            own = records + field_ends(TAPS) * channels + c
            y = tl.load(own) * x
            for s in range(STATES):
                A = tl.load(records + (field_A(TAPS) + s) * channels + c)
                _, entered, step = entering(tokens, x, x_before, s, at, places, ZOH)
                e = tl.exp2(A * LOG2_E * dt)
                C = tl.load(tokens + (C_ROW + s) * places + at)
                state = tl.load(states + (tl.program_id(0) * channels + c) * STATES + s)
                if ZOH:
                    decay, added = tl.associative_scan((e, e * step), 0, compose)
                    y += C * (1.0 / A) * (added + decay * state - entered)
                else:
                    decay, added = tl.associative_scan((e, dt * entered), 0, compose)
                    y += C * (added + decay * state)
            z = tl.load(own + 2 * channels) * u
            out += tl.load(own + channels) * y * z * logistic(z)
    if end > tl.load(earliest + layer):
        first = tl.load(layers + layer * LAYER_FIELDS) + begin
        tl.store(partial + tl.program_id(1).to(tl.int64) * weights + first + t, out, (t < count) & (begin + t >= 0))
