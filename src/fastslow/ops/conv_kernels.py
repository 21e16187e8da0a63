# pyright: reportGeneralTypeIssues=false
# What is inside @triton.jit is Triton's language, not Python.
"""The weight gradient of a convolution as a product of matrices, over images that lie channels-last in memory.

    dW[co, (tap, ci)] = sum over output positions k of dy[k, co] * x[position of k moved by the tap, ci]

That is (CO, K) times (K, TAPS * CI), where K, all pixels of a batch, is thousands of times the other sizes. So programs
share out K: each sums its own range of positions for some rows and some columns and writes a partial sum; a second
kernel adds these up in a fixed order. No matrix of patches is written: a program reads the pixels a tap looks at, and
since it goes on to the next tap at the same positions, they come from the cache.
"""

import triton
import triton.language as tl


@triton.jit
def weight_gradient(
    x, dy, partial, positions,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TILES: tl.constexpr,
    ROUNDS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Partial sums of one range of positions, BM output channels and TILES * BN columns (tap, ci)."""
    N: tl.constexpr = KH * KW * CI
    split = tl.program_id(0)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    first = tl.program_id(2) * (TILES * BN)
    sums = ()
    for _ in tl.static_range(TILES):
        sums = sums + (tl.zeros((BM, BN), tl.float32),)
    for i in range(ROUNDS):
        k = (split * ROUNDS + i) * BK + tl.arange(0, BK)
        inside = k < positions
        row = k // OW
        image = row // OH
        top = (row % OH) * SH - PH
        left = (k % OW) * SW - PW
        corner = ((image * H + top) * W + left) * CI
        rows = tl.load(dy + k[:, None] * CO + m[None, :], inside[:, None] & (m < CO)[None, :], 0.0)
        columns = tl.trans(rows)
        after = ()
        for t in tl.static_range(TILES):
            n = first + t * BN + tl.arange(0, BN)
            tap = n // CI
            down = tap // KW * DH
            right = tap % KW * DW
            h = top[:, None] + down[None, :]
            w = left[:, None] + right[None, :]
            seen = inside[:, None] & (n < N)[None, :] & (h >= 0) & (h < H) & (w >= 0) & (w < W)
            at = corner[:, None] + ((down * W + right) * CI + n % CI)[None, :]
            pixels = tl.load(x + at, seen, 0.0)
            after = after + (tl.dot(columns, pixels, sums[t], input_precision=PRECISION),)
        sums = after
    for t in tl.static_range(TILES):
        n = first + t * BN + tl.arange(0, BN)
        to = partial + split * (CO * N) + m[:, None] * N + n[None, :]
        tl.store(to, sums[t], (m < CO)[:, None] & (n < N)[None, :])


@triton.jit
def sum_partials(partial, out, size, SPLITS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """out = the sum of SPLITS rows of `size` numbers, in an order that depends on these two sizes only."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, SPLITS, ROWS):
        row = start + tl.arange(0, ROWS)
        mask = (row < SPLITS)[:, None] & (column < size)[None, :]
        total += tl.load(partial + row[:, None] * size + column[None, :], mask, 0.0)
    tl.store(out + column, tl.sum(total, 0), column < size)
