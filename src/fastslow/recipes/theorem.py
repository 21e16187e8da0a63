"""Theorem 1 as an experiment: how fast the averaged iterate of a convex problem approaches the optimum.

The theorem's iteration is ``x_{k+1} = x_k - alpha M_f(G_k) + beta M_s``, where G_k is a stochastic subgradient, M_f a
bounded positive matrix, and M_s equals the momentum ``x_k - x_{k-1}`` up to an error of mean zero. With
``alpha = C / sqrt(t + 1)`` for a run of t iterations the mean of the iterates is claimed to be within
O(1 / sqrt(t + 1)) of the optimum. The constants of the bound have a slip and its assumptions keep the iterates away
from the optimum, so what is measured is the rate: the slope of log error against log t, about -1/2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

DIMENSIONS, SAMPLES, REPEATS = 10, 64, 16
HORIZONS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
STEP = 2.0  # C of the theorem
EIGENVALUES = (0.5, 2.0)  # Omega and Theta: bounds of the fast-net's matrix


@dataclass(frozen=True)
class Case:
    """One setting of the iteration."""

    label: str
    beta: float
    noise: float = 0.0  # deviation of the slow-net's error, which has mean zero
    shrinking: bool = True  # whether that is in units of alpha
    sign: float = 1.0  # of the fast-net's matrix; the theorem assumes that it is positive


CASES = (
    Case("no momentum", 0.0),
    Case("beta 0.3", 0.3),
    Case("beta 0.9", 0.9),
    Case("beta 0.3, noisy slow-net", 0.3, noise=1.0),
)
# Outside of the theorem. A fast-net's product of factors starts with a random sign, and is assumed positive. An error
# of mean zero need not shrink with alpha: the proof drops its square, whose mean isn't zero.
OUTSIDE = (
    Case("beta 0.3, negative fast-net", 0.3, sign=-1.0),
    Case("beta 0.3, slow-net's noise stays", 0.3, noise=1.0, shrinking=False),
)


def run(seed: int = 0, horizons: tuple[int, ...] = HORIZONS) -> dict[str, Any]:
    """All cases on ``f(x) = mean_i |a_i (x - x*)|``: convex, not smooth, bounded subgradients, optimum 0."""
    return {
        "experiment": "theorem",
        "seed": seed,
        "dimensions": DIMENSIONS,
        "samples": SAMPLES,
        "repeats": REPEATS,
        "step": STEP,
        "eigenvalues": list(EIGENVALUES),
        "cases": [measure(case, seed, horizons) for case in CASES],
        "outside": [measure(case, seed, horizons) for case in OUTSIDE],
    }


def measure(case: Case, seed: int = 0, horizons: tuple[int, ...] = HORIZONS) -> dict[str, Any]:
    """Mean error of the averaged iterate for each horizon, and the slope through them."""
    errors = [float(f"{averaged_error(case, t, seed):.6g}") for t in horizons]
    return {
        "label": case.label,
        "beta": case.beta,
        "noise": case.noise,
        "noise_shrinks": case.shrinking,
        "sign": case.sign,
        "t": list(horizons),
        "error": errors,
        "slope": round(slope(horizons, errors), 4),
    }


def averaged_error(case: Case, t: int, seed: int) -> float:
    """``f(mean of x_0 .. x_t) - f(x*)`` after t iterations, averaged over independent repeats."""
    rng = np.random.default_rng(seed)  # the problem, the same for every horizon
    rows = rng.standard_normal((SAMPLES, DIMENSIONS))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    directions, _ = np.linalg.qr(rng.standard_normal((DIMENSIONS, DIMENSIONS)))
    fast = case.sign * (directions * np.linspace(*EIGENVALUES, DIMENSIONS)) @ directions.T
    x = rng.standard_normal((REPEATS, DIMENSIONS))  # measured from x*
    rng = np.random.default_rng([seed, t])
    alpha = STEP / math.sqrt(t + 1)
    scale = case.noise * (alpha if case.shrinking else 1.0)
    before, total = x.copy(), x.copy()
    picks = rng.integers(SAMPLES, size=(t, REPEATS))
    for k in range(t):
        a = rows[picks[k]]
        subgradient = a * np.sign((a * x).sum(1, keepdims=True))
        slow = x - before
        if scale:
            slow = slow + scale * rng.standard_normal(x.shape)
        before, x = x, x - alpha * subgradient @ fast + case.beta * slow
        total += x
    return float(np.abs(total / (t + 1) @ rows.T).mean())


def slope(horizons: tuple[int, ...], errors: list[float]) -> float:
    """Least squares through (log t, log error)."""
    return float(np.polyfit(np.log(horizons), np.log(errors), 1)[0])
