# pyright: reportGeneralTypeIssues=false
# What is inside @triton.jit is Triton's language, not Python.
"""A convolution of channels-last images with stride 1; its input gradient is one too.

    y[p, co] = sum over taps and ci of w[co, tap, ci] * x[position of p moved by the tap, ci]

A program is one warp with BM places side by side, ROWS output rows below each other, and BLOCKS times 16 output
channels. A pixel that it has read serves every tap that looks at it from one of the rows.

What is read goes straight into the registers from which a tensor core takes it. Lane 4g + t (g < 8, t < 4) holds of
the product's left side rows g and g + 8, of its right side column g, of both the same four of the sum's 16 terms, and
of the result rows g and g + 8 at columns 2t and 2t + 1. Which channel is which row or term is free, and chosen such
that a lane's are neighbours in memory. As long as a program is one warp, this needs neither shared memory nor barriers;
with more warps Triton inserts both, and the result is the same.
"""

import triton
import triton.language as tl


@triton.jit
def nearest_tf32(x):
    """`x` rounded to the 11 leading bits that TF32 keeps; tensor cores on their own would cut off the rest.

    The last of the 24 bits of 8193x is the 11th of x: the product is rounded there, and taking 8192x off it is exact.
    From 2^115 on, where 8193x is too large for a float, the result is NaN.
    """
    return tl.fma(x, -8192.0, x * 8193.0)


@triton.jit
def factor(x, CUT: tl.constexpr):
    return nearest_tf32(x) if CUT else x


@triton.jit
def in_lanes(x, CUT: tl.constexpr, SIZE: tl.constexpr, PAIR: tl.constexpr):
    """(SIZE, 16 channels) as a factor: channels 4t to 4t + 3 become the sum's terms that lanes 4g + t hold.

    These are t, t + 4, t + 8 and t + 12 in float32, and 2t, 2t + 1, 2t + 8 and 2t + 9 in 16 bits, where PAIR is 2.
    """
    parts = tl.reshape(factor(x, CUT), (SIZE, 4, 4 // PAIR, PAIR))
    return tl.reshape(tl.permute(parts, (0, 2, 1, 3)), (SIZE, 16))


@triton.jit
def lanes(MORE: tl.constexpr):
    """Indices t, g, n < MORE and i < 2 of a tile of which lane 4g + t holds all n, with i = 0 and 1 side by side.

    Triton gives a tile's numbers to lanes in the order of its dimensions, once the contiguous one is served.
    """
    t = tl.arange(0, 4)[:, None, None, None]
    g = tl.arange(0, 8)[None, :, None, None]
    n = tl.arange(0, MORE)[None, None, :, None]
    i = tl.arange(0, 2)[None, None, None, :]
    return t, g, n, i


@triton.jit
def weight_factor(w, taps, tap, co, ci, CI: tl.constexpr, CO: tl.constexpr, MIRRORED: tl.constexpr,
                  CUT: tl.constexpr, PAIR: tl.constexpr):  # fmt: skip
    """16 output channels from `co` on and 16 input channels from `ci` on, of one tap. Row 8i + g is channel 2g + i."""
    if MIRRORED:  # (CI, taps, CO) in memory
        t, g, j, i = lanes(4)
        at = ((4 * t + j) * taps + taps - 1 - tap) * CO + 2 * g + i
        tile = factor(tl.load(w + (ci * taps * CO + co) + tl.max_contiguous(at, (1, 1, 1, 2))), CUT)
        parts = tl.reshape(tile, (4, 8, 4 // PAIR, PAIR, 2))
        return tl.reshape(tl.permute(parts, (4, 1, 2, 0, 3)), (16, 16))
    row = tl.arange(0, 16)  # (CO, taps, CI) in memory
    at = ((row % 8 * 2 + row // 8) * taps + tap)[:, None] * CI + tl.arange(0, 16)[None, :]
    return in_lanes(tl.load(w + (co * taps * CI + ci) + tl.max_contiguous(at, (1, 4))), CUT, 16, PAIR)


@triton.jit
def pixels_at(images, origin, m, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OW: tl.constexpr,
              BANDS: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """Where the first row of place `origin + m` begins in images of this height, width and number of channels."""
    if ROWS == 1 and H == BANDS and W == OW:  # one address for all, and differences known to the compiler
        return images + origin * C + m * C
    place = origin + m
    return images + ((place // (OW * BANDS) * H + place // OW % BANDS * ROWS) * W + place % OW) * C


@triton.jit
def convolve(
    x, w, y, places,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, MIRRORED: tl.constexpr,
    CUT: tl.constexpr, PAIR: tl.constexpr, BM: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """BM places (image, band of ROWS output rows, column) and BLOCKS * 16 output channels; CUT: products in TF32."""
    BANDS: tl.constexpr = (OH + ROWS - 1) // ROWS
    origin = tl.program_id(0) * BM
    first = tl.program_id(1) * (BLOCKS * 16)
    m = tl.arange(0, BM)
    m = m // 8 * 8 + m % 2 * 4 + m % 8 // 2  # column 8q + 2t + e is place 8q + 4e + t
    place = origin + m
    top = place // OW % BANDS * ROWS - PH
    left = place % OW - PW
    c = tl.max_contiguous(tl.arange(0, 16)[None, :], (1, 4))
    corner = pixels_at(x, origin, m, H, W, CI, OW, BANDS, ROWS)[:, None] + c
    sums = ()
    for _ in tl.static_range(ROWS * BLOCKS):
        sums = sums + (tl.zeros((16, BM), tl.float32),)
    for ci in range(0, CI, 16):
        for kw in tl.static_range(KW):
            beside = (place < places) & (left + kw >= 0) & (left + kw < W)
            taps = ()
            for kh in tl.static_range(KH):
                for b in tl.static_range(BLOCKS):
                    co = first + b * 16
                    tap = weight_factor(w, KH * KW, kh * KW + kw, co, ci, CI, CO, MIRRORED, CUT, PAIR)
                    taps = taps + (tap,)
            for i in tl.static_range(ROWS + KH - 1):
                seen = beside & (top + i >= 0) & (top + i < H)
                pixels = tl.load(corner + ((i - PH) * W + kw - PW) * CI, seen[:, None], 0.0)
                moved = tl.trans(in_lanes(pixels, CUT, BM, PAIR))
                after = ()
                for r in tl.static_range(ROWS):
                    for b in tl.static_range(BLOCKS):
                        if i >= r and i - r < KH:
                            tile = tl.dot(taps[(i - r) * BLOCKS + b], moved, sums[r * BLOCKS + b],
                                          input_precision="tf32" if CUT else "ieee")  # fmt: skip
                            after = after + (tile,)
                        else:
                            after = after + (sums[r * BLOCKS + b],)
                sums = after
        corner += 16
    t, g, n, i = lanes(BM // 4)
    place = origin + 4 * n + t
    to = pixels_at(y + first, origin, 4 * n + t, OH, OW, CO, OW, BANDS, ROWS)
    to = to + tl.max_contiguous(2 * g + i, (1, 1, 1, 2))
    for r in tl.static_range(ROWS):
        written = (place < places) & (place // OW % BANDS * ROWS + r < OH)
        for b in tl.static_range(BLOCKS):
            parts = tl.permute(tl.reshape(sums[r * BLOCKS + b], (2, 8, BM // 8, 4, 2)), (3, 1, 2, 4, 0))
            tile = tl.reshape(parts, (4, 8, BM // 4, 2)).to(y.dtype.element_ty)
            tl.store(to + (r * OW * CO + b * 16), tile, written)
