# pyright: reportGeneralTypeIssues=false
# What is inside @triton.jit is Triton's language, not Python.
"""The end of the concatenated slow-net's backward pass: from what `gradients` found through the projections.

Programs take one tile after another here too, so that sums over all of them stay in registers, in a fixed order.
"""

import triton
import triton.language as tl

from fastslow.hypernets.kernels.concat import LANES, STATES, channels_of, no_states, read_tile, spread
from fastslow.hypernets.kernels.concat_backward import D_TOKEN, add_to
from fastslow.hypernets.kernels.maths import logistic


@triton.jit(do_not_specialize=["row", "places"])
def join_groups(
    tiles, layers, starts, earliest, dtokens, row, places,
    GROUPS: tl.constexpr, SPLITS: tl.constexpr, T: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """What all groups of channels found for a token, in the place of what the first found: B, C, rate, u."""
    tile = tl.program_id(0)
    layer, _begin, count, end = read_tile(tiles, layers, tile, row)
    t = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = (t < count)[:, None] & (end > tl.load(earliest + layer))
    at = dtokens + (tile * T + t[:, None]) * D_TOKEN
    column = tl.arange(0, 2 * STATES)[None, :]
    both = tl.zeros((ROWS, 2 * STATES), tl.float32)
    rate = tl.zeros((ROWS, 1), tl.float32)
    u = tl.zeros((ROWS, 1), tl.float32)
    for g in tl.static_range(GROUPS):
        alive = inside & (end > tl.load(starts + layer * GROUPS + g))
        of_group = at + g * places.to(tl.int64) * D_TOKEN
        both += tl.load(of_group + column, alive, 0.0)
        for split in tl.static_range(SPLITS):
            rate += tl.load(of_group + 2 * STATES + split, alive, 0.0)
            u += tl.load(of_group + 2 * STATES + SPLITS + split, alive, 0.0)
    tl.store(at + column, both, inside)
    tl.store(at + 2 * STATES, rate, inside)
    tl.store(at + 2 * STATES + 1, u, inside)


@triton.jit
def read_way_back(
    xs, dx, dtokens, taps, place, places, c, ok, lane, inside, alive,
    CHANNELS: tl.constexpr, SPLITS: tl.constexpr, TAPS: tl.constexpr, Q: tl.constexpr,
):  # fmt: skip
    """For `unproject`, of Q tokens: x, parts of its gradient, gradients of B and C (a column a lane), rate and u; taps.

    Zeros for what is not `inside` of the tile. What this group of channels found counts where it is `alive`.
    """
    found = ()
    for j in tl.static_range(Q):
        at = place + j
        parts = ()
        for split in tl.static_range(SPLITS):
            part = dx + (split * places.to(tl.int64) + at) * CHANNELS + c
            parts = parts + (tl.load(part, ok & (j < inside) & alive, 0.0),)
        seen = ()
        for k in tl.static_range(TAPS):
            seen = seen + (tl.load(taps + at * TAPS + k, j < inside, 0.0),)
        x = tl.load(xs + at * CHANNELS + c, ok & (j < inside), 0.0)
        both = tl.load(dtokens + at * D_TOKEN + lane, j < inside, 0.0)
        rate = tl.load(dtokens + at * D_TOKEN + 2 * STATES, j < inside, 0.0)
        u = tl.load(dtokens + at * D_TOKEN + 2 * STATES + 1, j < inside, 0.0)
        found = found + ((x, parts, both, rate, u, seen),)
    return found


@triton.jit(do_not_specialize=["number", "row", "places"])
def unproject(
    records, token_weight_at, lre, tiles, layers, starts, earliest, taps, xs, dx, dtokens, mixed, filters, rest, edges,
    number, row, places,
    CHANNELS: tl.constexpr, PER: tl.constexpr, GROUPS: tl.constexpr, SPLITS: tl.constexpr, TAPS: tl.constexpr,
    T: tl.constexpr, Q: tl.constexpr, WANTED: tl.constexpr,
):  # fmt: skip
    """From there through projections and convolution, and the sums over tokens that are the gradients there.

    mixed (programs, 2 STATES + 1, channels): of x with the gradients of B, C and rate. filters (programs, TAPS + 1,
    channels): of the convolution's gradient with the raw tokens that each tap saw, and by itself. rest (programs,): of
    the gradient of u at the gate with the raw token. edges (layers, TAPS, channels): the convolution's gradient where
    its taps saw the embedding. A program takes one group of channels (axis 1). There is no gradient of C in a row whose
    outputs aren't WANTED.
    """
    SHARED: tl.constexpr = STATES * (1 + WANTED)  # columns of B, and of C after it
    program = tl.program_id(0)
    group = tl.program_id(1)
    lane = tl.arange(0, LANES)
    c, ok = channels_of(group, PER, CHANNELS)
    token_weight = tl.load(token_weight_at)
    bias = tl.load(records + TAPS * CHANNELS + c, ok, 0.0)
    to_rate = tl.load(records + (TAPS + 1) * CHANNELS + c, ok, 0.0)
    weights = ()
    to_both = ()
    d_weights = no_states(TAPS)
    d_both = no_states(SHARED)
    for k in tl.static_range(TAPS):
        weights = weights + (tl.load(records + (TAPS - 1 - k) * CHANNELS + c, ok, 0.0),)
    for i in tl.static_range(SHARED):
        to_both = to_both + (tl.load(records + (TAPS + 2 + i) * CHANNELS + c, ok, 0.0),)
    d_bias = tl.zeros((LANES,), tl.float32)
    d_to_rate = tl.zeros((LANES,), tl.float32)
    d_rest = tl.zeros((LANES,), tl.float32)
    tile = program
    while tile < number:
        layer, _begin, count, end = read_tile(tiles, layers, tile, row)
        if end > tl.load(earliest + layer):
            embedding = tl.load(lre + layer)
            alive = end > tl.load(starts + layer * GROUPS + group)
            done = 0
            following = read_way_back(
                xs, dx, dtokens, taps, tile * T, places, c, ok, lane, count, alive, CHANNELS, SPLITS, TAPS, Q
            )  # fmt: skip
            while done < count:
                now = following
                done += Q
                following = read_way_back(  # while these are computed
                    xs, dx, dtokens, taps, tile * T + done, places, c, ok, lane, count - done, alive, CHANNELS, SPLITS,
                    TAPS, Q,
                )  # fmt: skip
                ds = ()
                for j in tl.static_range(Q):
                    x, parts, both, d_rate, d_u, seen = now[j]
                    d = d_rate * to_rate
                    for split in tl.static_range(SPLITS):
                        d += parts[split]
                    position = end - count + done - Q + j
                    d_to_rate += d_rate * x
                    d_rest += d_u * seen[0]
                    new_d_both = ()
                    for i in tl.static_range(SHARED):
                        value = spread(both, i)
                        d += value * to_both[i]
                        new_d_both = new_d_both + (d_both[i] + value * x,)
                    d_both = new_d_both
                    pre = bias
                    for k in tl.static_range(TAPS):
                        u = seen[k] * token_weight + tl.where(position == k, embedding, 0.0)
                        pre += u * weights[k]
                    bend = logistic(pre)
                    d = tl.where(done - Q + j < count, d * (bend + x * (1.0 - bend)), 0.0)
                    d_bias += d
                    new_d_weights = ()
                    for k in tl.static_range(TAPS):
                        new_d_weights = new_d_weights + (d_weights[k] + d * seen[k],)
                    d_weights = new_d_weights
                    ds = ds + (d,)
                first = end - count + done - Q
                if first < TAPS:
                    for j in tl.static_range(Q):
                        edge = edges + (layer * TAPS + first + j) * CHANNELS + c
                        tl.store(edge, ds[j], ok & (first + j < TAPS) & (done - Q + j < count))
        tile += tl.num_programs(0)
    mixed += program * (2 * STATES + 1) * CHANNELS + c
    for i in tl.static_range(SHARED):
        add_to(mixed + i * CHANNELS, d_both[i], ok)
    add_to(mixed + 2 * STATES * CHANNELS, d_to_rate, ok)
    filters += program * (TAPS + 1) * CHANNELS + c
    for k in tl.static_range(TAPS):
        add_to(filters + k * CHANNELS, d_weights[k], ok)
    add_to(filters + TAPS * CHANNELS, d_bias, ok)
    add_to(rest + program + lane * 0, d_rest, (lane == 0) & (group == 0))  # all lanes and groups have the same
