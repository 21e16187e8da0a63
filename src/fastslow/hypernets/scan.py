"""The selective state-space recurrence of the slow-net (Eq. 19-23), written to be read.

`selective_scan_reference` is the definition; `scan_chunked.selective_scan` is its fast twin, and the tests hold the two
together. Shapes, everywhere: `x` and `dt` are (batch, length, channels), `A` is (channels, state) and negative,
`B` and `C` are (batch, length, state), `D` is (channels,).
"""

import math
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Discretization = Literal["zoh", "euler"]

# phi'(z) = sum_k (k + 1) / (k + 2)! z^k; 18 terms reach the last bit of float64 for |z| <= 1.
_SLOPE_SERIES = [(k + 1) / math.factorial(k + 2) for k in range(18)]


def expm1_ratio_slope(z: Tensor) -> Tensor:
    """The derivative of phi(z) = (e^z - 1) / z, which is (e^z - phi(z)) / z.

    That quotient loses all its digits as z -> 0, so |z| < 1 takes the Taylor series instead.
    """
    series = torch.full_like(z, _SLOPE_SERIES[-1])
    for coefficient in reversed(_SLOPE_SERIES[:-1]):
        series = series * z + coefficient
    small = z.abs() < 1
    far = torch.where(small, 1.0, z)
    return torch.where(small, series, (far.exp() - far.expm1() / far) / far)


class _ExpM1Ratio(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        zero = z == 0
        return torch.where(zero, 1.0, z.expm1() / torch.where(zero, 1.0, z))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        (z,) = ctx.saved_tensors
        return grad * expm1_ratio_slope(z)


def expm1_ratio(z: Tensor) -> Tensor:
    """phi(z) = (e^z - 1) / z with phi(0) = 1, and a derivative that keeps its digits near 0."""
    return cast(Tensor, _ExpM1Ratio.apply(z))


def check_discretization(discretization: str) -> None:
    if discretization not in ("zoh", "euler"):
        raise ValueError(f"discretization={discretization!r} is unknown; use 'zoh' (Eq. 20) or 'euler' (public Mamba)")


def selective_scan_reference(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    *,
    discretization: Discretization = "zoh",
) -> Tensor:
    """The recurrence one token at a time; returns y of shape (batch, length, channels).

        h_t = Abar_t h_{t-1} + Bbar_t x_t,    y_t = C_t h_t + D x_t                          (Eq. 21, and the skip)
        Abar = exp(dt A),    Bbar = (dt A)^{-1} (exp(dt A) - 1) dt B                         (Eq. 20, "zoh")

    `discretization="euler"` takes Bbar = dt B, the first-order form that public Mamba implementations use.
    """
    check_discretization(discretization)
    dtA = dt[..., None] * A  # (batch, length, channels, state)
    Abar, Bbar = dtA.exp(), dt[..., None] * B[:, :, None]
    if discretization == "zoh":
        Bbar = expm1_ratio(dtA) * Bbar
    h = torch.zeros_like(dtA[:, 0])
    states = []
    # unbind, because the backward of every Abar[:, t] would allocate a gradient as long as Abar.
    for Abar_t, Bx_t in zip(Abar.unbind(1), (Bbar * x[..., None]).unbind(1), strict=True):
        h = Abar_t * h + Bx_t
        states.append(h)
    return (torch.stack(states, 1) * C[:, :, None]).sum(3) + D * x
