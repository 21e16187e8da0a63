# pyright: reportGeneralTypeIssues=false
# What is inside @triton.jit is Triton's language, not Python.
"""BatchNorm with a residual sum and a ReLU, over images that lie channels-last in memory: rows of C.

In training, two kernels each way. The first sums over ranges of rows, one partial result a range; the second adds
these up in a fixed order, each program for itself, since that is cheaper than a kernel in between, and goes through its
rows. `partial` is (2, SPLITS, C), `saved` is (2, C): mean and 1 / standard deviation.
"""

import triton
import triton.language as tl


@triton.jit
def _before_relu(x, mean, scale, offset):
    """The normalised value; one rounding after the product, so that the backward pass finds the same sign again."""
    return tl.fma(x - mean, scale, offset)


@triton.jit
def _scale_offset(weight, bias, rstd, c, inside, AFFINE: tl.constexpr):
    scale = rstd
    offset = tl.zeros_like(rstd)
    if AFFINE:
        scale = rstd * tl.load(weight + c, inside, 0.0)
        offset = tl.load(bias + c, inside, 0.0)
    return scale, offset


@triton.jit
def _write_rows(
    x, residual, y, mean, scale, offset, c, inside, positions,
    C: tl.constexpr, BR: tl.constexpr, ROUNDS: tl.constexpr, RESIDUAL: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """The output of this program's rows."""
    for i in range(ROUNDS):
        row = (tl.program_id(0) * ROUNDS + i) * BR + tl.arange(0, BR)
        mask = (row < positions)[:, None] & inside[None, :]
        at = row[:, None] * C + c[None, :]
        values = tl.load(x + at, mask, 0.0).to(tl.float32)
        out = _before_relu(values, mean[None, :], scale[None, :], offset[None, :])
        if RESIDUAL:
            out += tl.load(residual + at, mask, 0.0).to(tl.float32)
        if RELU:
            out = tl.where(out <= 0.0, 0.0, out)  # a NaN stays one
        tl.store(y + at, out.to(y.dtype.element_ty), mask)


@triton.jit
def statistics(x, partial, positions, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, ROUNDS: tl.constexpr):
    """Mean and sum of squared deviations of one range of rows, around its first row: nothing large cancels."""
    split = tl.program_id(0)
    first = split * (ROUNDS * BR)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = c < C
    pivot = tl.load(x + first * C + c, inside, 0.0).to(tl.float32)
    total = tl.zeros((BR, BC), tl.float32)
    squares = tl.zeros((BR, BC), tl.float32)
    for i in range(ROUNDS):
        row = first + i * BR + tl.arange(0, BR)
        mask = (row < positions)[:, None] & inside[None, :]
        values = tl.load(x + row[:, None] * C + c[None, :], mask, 0.0).to(tl.float32)
        deviation = tl.where(mask, values - pivot[None, :], 0.0)
        total += deviation
        squares += deviation * deviation
    count = tl.minimum(positions - first, ROUNDS * BR).to(tl.float32)
    moved = tl.sum(total, 0) / count
    to = partial + split * C + c
    tl.store(to, pivot + moved, inside)
    deviations = tl.sum(squares, 0) - count * moved * moved
    tl.store(to + tl.num_programs(0) * C, tl.maximum(deviations, 0.0), inside)


@triton.jit
def normalise(
    x, residual, y, partial, weight, bias, running_mean, running_var, tracked, saved, positions, per_split, eps,
    momentum, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, ROUNDS: tl.constexpr, SPLITS: tl.constexpr,
    PADDED: tl.constexpr, AFFINE: tl.constexpr, RESIDUAL: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """The batch's statistics from their parts, then the output; the first program keeps what others need later."""
    program = tl.program_id(0)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = c < C
    split = tl.arange(0, PADDED)
    there = (split < SPLITS)[:, None] & inside[None, :]
    parts = partial + split[:, None] * C + c[None, :]
    means = tl.load(parts, there, 0.0)
    rows = tl.minimum(positions - split * per_split, per_split)
    count = tl.where(split < SPLITS, rows, 0).to(tl.float32)[:, None]
    mean = tl.sum(count * means, 0) / positions
    apart = means - mean[None, :]
    deviations = tl.load(parts + SPLITS * C, there, 0.0) + count * apart * apart
    variance = tl.sum(tl.where(there, deviations, 0.0), 0) / positions
    rstd = 1.0 / tl.sqrt_rn(variance + eps)
    if program == 0:
        tl.store(saved + c, mean, inside)
        tl.store(saved + C + c, rstd, inside)
        old_mean = tl.load(running_mean + c, inside, 0.0)
        old_var = tl.load(running_var + c, inside, 0.0)
        unbiased = variance * (positions / (positions - 1.0))
        tl.store(running_mean + c, (1.0 - momentum) * old_mean + momentum * mean, inside)
        tl.store(running_var + c, (1.0 - momentum) * old_var + momentum * unbiased, inside)
        if tl.program_id(1) == 0:
            tl.store(tracked, tl.load(tracked) + 1)
    scale, offset = _scale_offset(weight, bias, rstd, c, inside, AFFINE)
    _write_rows(x, residual, y, mean, scale, offset, c, inside, positions, C, BR, ROUNDS, RESIDUAL, RELU)


@triton.jit
def evaluate(
    x, residual, y, weight, bias, running_mean, running_var, positions, eps,
    C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, ROUNDS: tl.constexpr,
    AFFINE: tl.constexpr, RESIDUAL: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """The output with the running statistics, which stay as they are."""
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = c < C
    mean = tl.load(running_mean + c, inside, 0.0)
    rstd = 1.0 / tl.sqrt_rn(tl.load(running_var + c, inside, 1.0) + eps)
    scale, offset = _scale_offset(weight, bias, rstd, c, inside, AFFINE)
    _write_rows(x, residual, y, mean, scale, offset, c, inside, positions, C, BR, ROUNDS, RESIDUAL, RELU)


@triton.jit
def sum_gradients(
    x, dy, y, masked, partial, weight, bias, saved, positions,
    C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, ROUNDS: tl.constexpr,
    AFFINE: tl.constexpr, RESIDUAL: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Sums of g and of g * xhat over one range of rows, g the gradient before the ReLU.

    With a residual g is also written down: it is the residual's gradient. Where the ReLU was closed says its output;
    without a residual the input says it too, and has to be read anyway.
    """
    split = tl.program_id(0)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = c < C
    mean = tl.load(saved + c, inside, 0.0)
    rstd = tl.load(saved + C + c, inside, 0.0)
    scale, offset = _scale_offset(weight, bias, rstd, c, inside, AFFINE)
    total = tl.zeros((BR, BC), tl.float32)
    product = tl.zeros((BR, BC), tl.float32)
    for i in range(ROUNDS):
        row = (split * ROUNDS + i) * BR + tl.arange(0, BR)
        mask = (row < positions)[:, None] & inside[None, :]
        at = row[:, None] * C + c[None, :]
        g = tl.load(dy + at, mask, 0.0).to(tl.float32)
        values = tl.load(x + at, mask, 0.0).to(tl.float32)
        if RELU:
            if RESIDUAL:
                g = tl.where(tl.load(y + at, mask, 0.0).to(tl.float32) <= 0.0, 0.0, g)
                tl.store(masked + at, g.to(masked.dtype.element_ty), mask)
            else:
                g = tl.where(_before_relu(values, mean[None, :], scale[None, :], offset[None, :]) <= 0.0, 0.0, g)
        total += g
        product += g * (values - mean[None, :])
    to = partial + split * C + c
    tl.store(to, tl.sum(total, 0), inside)
    tl.store(to + tl.num_programs(0) * C, tl.sum(product, 0) * rstd, inside)


@triton.jit
def input_gradient(
    x, dy, dx, partial, weight, bias, saved, dweight, dbias, positions,
    C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, ROUNDS: tl.constexpr, SPLITS: tl.constexpr,
    PADDED: tl.constexpr, AFFINE: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """dx = scale * (g - mean(g) - xhat * mean(g * xhat)); MASK: g is dy where the ReLU was open, else dy."""
    program = tl.program_id(0)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = c < C
    split = tl.arange(0, PADDED)
    there = (split < SPLITS)[:, None] & inside[None, :]
    parts = partial + split[:, None] * C + c[None, :]
    sum_g = tl.sum(tl.load(parts, there, 0.0), 0)
    sum_g_xhat = tl.sum(tl.load(parts + SPLITS * C, there, 0.0), 0)
    if AFFINE:
        first = inside & (program == 0)
        tl.store(dweight + c, sum_g_xhat, first)
        tl.store(dbias + c, sum_g, first)
    mean = tl.load(saved + c, inside, 0.0)
    rstd = tl.load(saved + C + c, inside, 0.0)
    scale, offset = _scale_offset(weight, bias, rstd, c, inside, AFFINE)
    mean_g = sum_g / positions
    slope = rstd * sum_g_xhat / positions
    for i in range(ROUNDS):
        row = (program * ROUNDS + i) * BR + tl.arange(0, BR)
        mask = (row < positions)[:, None] & inside[None, :]
        at = row[:, None] * C + c[None, :]
        g = tl.load(dy + at, mask, 0.0).to(tl.float32)
        values = tl.load(x + at, mask, 0.0).to(tl.float32)
        if MASK:
            g = tl.where(_before_relu(values, mean[None, :], scale[None, :], offset[None, :]) <= 0.0, 0.0, g)
        out = scale[None, :] * (g - mean_g[None, :] - (values - mean[None, :]) * slope[None, :])
        tl.store(dx + at, out.to(dx.dtype.element_ty), mask)
