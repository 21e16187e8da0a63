# pyright: reportGeneralTypeIssues=false
# What is inside @triton.jit is Triton's language, not Python.
"""DoReFa's bits of a layer or of many, and the straight-through factor of their gradient (`binarize.py`, Eq. 1 and 2).

tanh is monotone, so max|tanh W| is tanh(max|W|): one tanh a layer. And a bit needs none at all. It is +1 where
fl(fl(tanh(w) / 2 max) + 1/2) > 1/2, that is where the quotient is above 2^-25; there tanh(w) = w in float32, and for
larger w both are far above.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _ahead(w, shift, at, mask, shifted, LOOKS_AHEAD: tl.constexpr):
    value = tl.load(w + at, mask, 0.0)
    if LOOKS_AHEAD:
        value = value - tl.load(shift + at, shifted, 0.0)
    return value


@triton.jit
def _largest_tanh(m, LIBDEVICE: tl.constexpr):
    """tanh(m) for m >= 0, and 1 for 0: as torch computes it on a GPU, or (in the interpreter) rounded correctly."""
    if LIBDEVICE:
        t = libdevice.tanh(m)
    else:
        wide = m.to(tl.float64)
        e = tl.exp(-2.0 * wide)
        near = wide - wide * wide * wide / 3.0
        t = tl.where(m < 1e-3, near, (1.0 - e) / (1.0 + e)).to(tl.float32)
    t = tl.where(m < 0.0001220703125, m, t)  # where it is m itself, also for numbers that libdevice would flush to 0
    return tl.where(t > 0.0, t, 1.0)


@triton.jit
def _store_bits(values, value, top, at, mask):
    """The bits of ``value`` in a layer whose max|tanh| is ``top``."""
    hat = tl.div_rn(value, tl.zeros_like(value) + 2.0 * top) + 0.5
    bit = tl.where(hat > 0.5, 1.0, -1.0)
    tl.store(values + at, tl.where(value != value, value, bit), mask)  # a NaN stays one


@triton.jit
def part_maxima(w, shift, parts, size, LOOKS_AHEAD: tl.constexpr, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):
    """max|w - shift| of one range of weights."""
    best = tl.zeros((BLOCK,), tl.float32)
    for i in range(ROUNDS):
        at = (tl.program_id(0) * ROUNDS + i) * BLOCK + tl.arange(0, BLOCK)
        best = tl.maximum(best, tl.abs(_ahead(w, shift, at, at < size, at < size, LOOKS_AHEAD)))
    tl.store(parts + tl.program_id(0), tl.max(best, 0))


@triton.jit
def binary_values(
    w, shift, parts, values, largest, size, LOOKS_AHEAD: tl.constexpr, LIBDEVICE: tl.constexpr, BLOCK: tl.constexpr,
    ROUNDS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """One block of bits. PARTS > 0: the maximum comes from `part_maxima`; else it is found here, in the whole layer."""
    if PARTS > 0:
        part = tl.arange(0, BLOCK)
        best = tl.load(parts + part, part < PARTS, 0.0)
    else:
        best = tl.zeros((BLOCK,), tl.float32)
        for i in range(ROUNDS):
            at = i * BLOCK + tl.arange(0, BLOCK)
            best = tl.maximum(best, tl.abs(_ahead(w, shift, at, at < size, at < size, LOOKS_AHEAD)))
    top = _largest_tanh(tl.max(best, 0), LIBDEVICE)
    if tl.program_id(0) == 0:
        tl.store(largest, top)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    _store_bits(values, _ahead(w, shift, at, at < size, at < size, LOOKS_AHEAD), top, at, at < size)


@triton.jit
def binary_values_of_many(
    table, values, largest, LOOKS_AHEAD: tl.constexpr, LIBDEVICE: tl.constexpr, ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr, STEP: tl.constexpr, ROUNDS: tl.constexpr, APART: tl.constexpr,
):  # fmt: skip
    """One block of bits of one of many layers. Six numbers a program, `ahead.Table`, say which and where.

    Every program looks for its layer's maximum itself, in wide steps: that takes most of the time. There are as many of
    them as the largest layer needs; past its own end a layer loads nothing.
    """
    row = table + 6 * tl.program_id(0)
    w = tl.load(row).to(tl.pointer_type(tl.float32))
    looks_ahead = tl.load(row + 1) != 0
    shift = tl.load(row + 1).to(tl.pointer_type(tl.float32))
    size = tl.load(row + 2).to(tl.int32)
    first = tl.load(row + 3).to(tl.int32)
    start = tl.load(row + 4)
    if ALIGNED:  # so that loads and stores are of four weights at once
        w = tl.multiple_of(w, 16)
        shift = tl.multiple_of(shift, 16)
        size = tl.multiple_of(size, 16)
    best = tl.zeros((STEP,), tl.float32)
    for i in range(ROUNDS):
        at = i * STEP + tl.arange(0, STEP)
        best = tl.maximum(best, tl.abs(_ahead(w, shift, at, at < size, (at < size) & looks_ahead, LOOKS_AHEAD)))
    top = _largest_tanh(tl.max(best, 0), LIBDEVICE)
    if first == 0:
        tl.store(largest + APART * tl.load(row + 5), top)
    at = tl.multiple_of(first, BLOCK) + tl.arange(0, BLOCK)
    value = _ahead(w, shift, at, at < size, (at < size) & looks_ahead, LOOKS_AHEAD)
    _store_bits(values + tl.multiple_of(start, APART), value, top, at, at < size)


@triton.jit
def calibrated(g, w, largest, out, size, BLOCK: tl.constexpr):
    """g * (1 - tanh(w)^2) / max|tanh w|, with 1 - tanh^2 = 4 e / (1 + e)^2, e = exp(-2|w|)."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    e = tl.exp(-2.0 * tl.abs(tl.load(w + at, at < size, 0.0)))
    slope = 4.0 * e / ((1.0 + e) * (1.0 + e))
    tl.store(out + at, tl.load(g + at, at < size, 0.0) * (slope / tl.load(largest)), at < size)
