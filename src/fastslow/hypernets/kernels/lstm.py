# pyright: reportGeneralTypeIssues=false
# What is inside @triton.jit is Triton's language, not Python.
"""Steps of an LSTM with one input and a linear head with one output, for many coordinates at once.

    gates i, f, g, o = W_in x + W h + b,   c' = s(f) c + s(i) tanh(g),   h' = s(o) tanh(c'),   out = head . h' + const

A program takes BM coordinates, whose h (BM, K) stays with it, and goes through the hidden units BJ at a time: four
products of matrices, one a gate. Nothing but c' and h' is written; the way back computes the gates again. K is the
number H of hidden units, rounded up to a power of two.
"""

import triton
import triton.language as tl

from fastslow.hypernets.kernels.maths import logistic, tanh

GATES = tl.constexpr(4)  # i, f, g, o, as torch stores them


@triton.jit
def gate(
    index: tl.constexpr, hs, xs, to_input, to_state, bias, j, ok, H: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """One gate before its bend, (coordinates, hidden units)."""
    row = index * H + j
    k = tl.arange(0, K)
    weights = tl.load(to_state + row[:, None] * H + k[None, :], ok[:, None] & (k < H)[None, :], 0.0)
    of_input = tl.load(to_input + row, ok, 0.0)
    constant = tl.load(bias + row, ok, 0.0)
    given = xs[:, None] * of_input[None, :] + constant[None, :]
    return tl.dot(hs, tl.trans(weights), given, input_precision="tf32")


@triton.jit
def coordinates_of(x, h, m, n, H: tl.constexpr, K: tl.constexpr):
    """x (BM,) and h (BM, K) of some coordinates; zeros for those that there aren't."""
    inside = m < n
    k = tl.arange(0, K)
    hs = tl.load(h + m.to(tl.int64)[:, None] * H + k[None, :], inside[:, None] & (k < H)[None, :], 0.0)
    return tl.load(x + m, inside, 0.0), hs


@triton.jit
def bent_gates(
    hs, xs, to_input, to_state, bias, j, ok, H: tl.constexpr, K: tl.constexpr
):  # fmt: skip
    i = logistic(gate(0, hs, xs, to_input, to_state, bias, j, ok, H, K))
    f = logistic(gate(1, hs, xs, to_input, to_state, bias, j, ok, H, K))
    g = tanh(gate(2, hs, xs, to_input, to_state, bias, j, ok, H, K))
    o = logistic(gate(3, hs, xs, to_input, to_state, bias, j, ok, H, K))
    return i, f, g, o


@triton.jit(do_not_specialize=["n"])
def step(
    x, h, c, to_input, to_state, bias, head, constant, out, h_after, c_after, n,
    H: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    xs, hs = coordinates_of(x, h, m, n, H, K)
    found = tl.zeros((BM,), tl.float32) + tl.load(constant)
    for first in range(0, H, BJ):
        j = first + tl.arange(0, BJ)
        ok = j < H
        i, f, g, o = bent_gates(hs, xs, to_input, to_state, bias, j, ok, H, K)
        at = m.to(tl.int64)[:, None] * H + j[None, :]
        there = (m < n)[:, None] & ok[None, :]
        state = f * tl.load(c + at, there, 0.0) + i * g
        shown = o * tanh(state)
        tl.store(c_after + at, state, there)
        tl.store(h_after + at, shown, there)
        found += tl.sum(tl.where(there, shown, 0.0) * tl.load(head + j, ok, 0.0)[None, :], 1)
    tl.store(out + m, found, m < n)


@triton.jit
def way_back(i, f, g, o, before, bent, d_shown, d_state):
    """Gradients of the four gates before their bends, from those of h' and c'."""
    return (
        d_state * g * i * (1.0 - i),
        d_state * before * f * (1.0 - f),
        d_state * i * (1.0 - g * g),
        d_shown * bent * o * (1.0 - o),
    )


@triton.jit(do_not_specialize=["n"])
def step_back(
    x, h, c, to_input, to_state, bias, d_gates, d_h, d_c, d_h_before, n,
    H: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """From gradients of h' and c' those of the gates, (n, GATES * H), of h, and (in the place of that of c') of c."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    k = tl.arange(0, K)
    inside = (m < n)[:, None]
    xs, hs = coordinates_of(x, h, m, n, H, K)
    found = tl.zeros((BM, K), tl.float32)
    for first in range(0, H, BJ):
        j = first + tl.arange(0, BJ)
        ok = j < H
        i, f, g, o = bent_gates(hs, xs, to_input, to_state, bias, j, ok, H, K)
        at = m.to(tl.int64)[:, None] * H + j[None, :]
        there = inside & ok[None, :]
        before = tl.load(c + at, there, 0.0)
        bent = tanh(f * before + i * g)
        d_shown = tl.load(d_h + at, there, 0.0)
        d_state = tl.load(d_c + at, there, 0.0) + d_shown * o * (1.0 - bent * bent)
        tl.store(d_c + at, d_state * f, there)
        ds = way_back(i, f, g, o, before, bent, d_shown, d_state)
        for q in tl.static_range(GATES):
            d = tl.where(there, ds[q], 0.0)
            tl.store(d_gates + m.to(tl.int64)[:, None] * (GATES * H) + (q * H + j)[None, :], d, there)
            row = (q * H + j)[:, None] * H + k[None, :]
            weights = tl.load(to_state + row, ok[:, None] & (k < H)[None, :], 0.0)
            found = tl.dot(d, weights, found, input_precision="tf32")
    tl.store(d_h_before + m.to(tl.int64)[:, None] * H + k[None, :], found, inside & (k < H)[None, :])
