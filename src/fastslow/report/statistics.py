"""The few statistics of the tables, without SciPy: mean, deviation, the paired t-test, the signed-rank test.

Runs of two methods with the same seed see the same images in the same order, so they are compared in pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

PAIRS_LEAST = 3  # two pairs say next to nothing of their spread: p, d and interval would be accidents
WILCOXON_LEAST = 6  # with fewer pairs the smallest possible p-value is above 0.05: the test could only say no


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float | None:
    """Standard deviation of a sample (n - 1 below the line); None for a single value."""
    if len(values) < 2:
        return None
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))


@dataclass(frozen=True)
class Paired:
    """A comparison in pairs: ``a - b``."""

    n: int
    reference: float  # the mean of b, over the seeds that a has too
    difference: float
    p: float | None  # two-sided, of the t-test; None where it isn't defined
    effect: float | None  # Cohen's d of the differences: their mean in units of their deviation
    interval: tuple[float, float] | None  # 95 % confidence interval of the difference
    wilcoxon: float | None  # p of the signed-rank test, from six pairs on


def paired(a: Sequence[float], b: Sequence[float]) -> Paired:
    """Compare two methods over the same seeds."""
    if len(a) != len(b) or not a:
        raise ValueError(f"pairs are needed: {len(a)} and {len(b)} values")
    # Accuracies have two decimals, their differences in binary don't: equal ones must be equal.
    differences = [round(x - y, 9) for x, y in zip(a, b, strict=True)]
    n, difference, spread = len(differences), mean(differences), deviation(differences)
    ranks = wilcoxon(differences) if sum(d != 0 for d in differences) >= WILCOXON_LEAST else None
    reference = mean(b)
    if n < PAIRS_LEAST or spread is None or spread < 1e-9:  # or all differences equal: nothing to measure them with
        return Paired(n, reference, difference, None, None, None, ranks)
    error = spread / math.sqrt(n)
    reach = student_quantile(0.975, n - 1) * error
    p = student_two_sided(difference / error, n - 1)
    interval = (difference - reach, difference + reach)
    return Paired(n, reference, difference, p, difference / spread, interval, ranks)


# -- Student's t ------------------------------------------------------------------------------------------------------


def student_two_sided(t: float, degrees: int) -> float:
    """P(|T| >= |t|) for Student's t: the regularised incomplete beta function at ``nu / (nu + t^2)``."""
    return incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))


def student_quantile(share: float, degrees: int) -> float:
    """The t below which a share of at least one half lies."""
    tail = 2 * (1 - share)
    low, high = 0.0, 1.0
    while student_two_sided(high, degrees) > tail:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if student_two_sided(middle, degrees) > tail else (low, middle)
    return (low + high) / 2


def incomplete_beta(a: float, b: float, x: float) -> float:
    """I_x(a, b), by its continued fraction; the symmetry I_x(a, b) = 1 - I_{1-x}(b, a) keeps that fast."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - incomplete_beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    return front * _beta_fraction(a, b, x) / a


def _beta_fraction(a: float, b: float, x: float) -> float:
    """1 / (1 + d_1 / (1 + d_2 / ...)), evaluated from the front (modified Lentz)."""
    tiny = 1e-300
    c, d, value = 1.0, 0.0, 1.0
    for n in range(1, 500):
        m = n // 2
        if n % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1.0 / ((1.0 + term * d) or tiny)
        c = (1.0 + term / c) or tiny
        value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return 1.0 / value


# -- Wilcoxon's signed ranks ------------------------------------------------------------------------------------------


def wilcoxon(differences: Sequence[float]) -> float | None:
    """Two-sided exact p-value; zero differences are left out, equal sizes share their mean rank."""
    kept = sorted((d for d in differences if d != 0), key=abs)
    if not kept:
        return None
    doubled = _doubled_ranks([abs(d) for d in kept])  # mean ranks are halves: twice them are whole numbers
    positive = sum(rank for rank, d in zip(doubled, kept, strict=True) if d > 0)
    # How many of the 2^n assignments of signs have each sum of positive ranks.
    ways = [1] + [0] * sum(doubled)
    for rank in doubled:
        for total in range(len(ways) - 1, rank - 1, -1):
            ways[total] += ways[total - rank]
    least = min(positive, sum(doubled) - positive)
    return min(1.0, 2 * sum(ways[: least + 1]) / 2 ** len(kept))


def _doubled_ranks(ordered: list[float]) -> list[int]:
    ranks: list[int] = []
    start = 0
    while start < len(ordered):
        end = start
        while end < len(ordered) and ordered[end] == ordered[start]:
            end += 1
        ranks += [start + 1 + end] * (end - start)  # twice the mean of start + 1 ... end
        start = end
    return ranks
