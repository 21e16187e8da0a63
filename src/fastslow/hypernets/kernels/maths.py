# pyright: reportGeneralTypeIssues=false
# What is inside @triton.jit is Triton's language, not Python.
"""Elementary functions inside Triton kernels, with full float32 accuracy where plain formulas lose it."""

import triton
import triton.language as tl


@triton.jit
def expm1_negative(z):
    """exp(z) - 1 for z <= 0: near 0 the difference would cancel, and the polynomial doesn't."""
    p = 1.0 / 120 + z * (1.0 / 720)
    p = 1.0 / 24 + z * p
    p = 1.0 / 6 + z * p
    p = 0.5 + z * p
    p = z + z * z * p
    return tl.where(z > -0.25, p, tl.exp(z) - 1.0)


@triton.jit
def grown_by(z, e):
    """e - 1 of e = exp(z), z <= 0: as `expm1_negative`, for less where e is known, and to 2e-6 at worst."""
    p = 1.0 / 6 + z * (1.0 / 24)
    p = z + z * z * (0.5 + z * p)
    return tl.where(z > -0.03, p, e - 1.0)


@triton.jit
def logistic(v):
    return 1.0 / (1.0 + tl.exp2(v * -1.4426950408889634))


@triton.jit
def softplus(v):
    """max(v, 0) + log1p(exp(-|v|)), with log1p(w) = 2 atanh(w / (2 + w)) as a series in a square <= 1/9."""
    w = tl.exp(-tl.abs(v))
    s = w / (2.0 + w)
    q = s * s
    series = 1.0 / 11 + q * (1.0 / 13)
    series = 1.0 / 9 + q * series
    series = 1.0 / 7 + q * series
    series = 1.0 / 5 + q * series
    series = 1.0 / 3 + q * series
    series = 1.0 + q * series
    return tl.maximum(v, 0.0) + 2.0 * s * series


@triton.jit
def tanh(v):
    """Near 0 the difference below would lose its digits, and the series doesn't."""
    q = v * v
    series = v + v * q * (-1.0 / 3 + q * (2.0 / 15 - q * (17.0 / 315)))
    return tl.where(q < 0.01, series, 2.0 * logistic(2.0 * v) - 1.0)
