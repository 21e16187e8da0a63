"""Statistics against printed tables and hand-counted cases."""

from __future__ import annotations

import math

import pytest

from fastslow.report.statistics import (
    deviation,
    incomplete_beta,
    mean,
    paired,
    student_quantile,
    student_two_sided,
    wilcoxon,
)


# Critical values of Student's t, two-sided, as every textbook prints them.
@pytest.mark.parametrize(
    ("degrees", "p", "t"),
    [
        (1, 0.05, 12.706),
        (1, 0.50, 1.000),
        (2, 0.05, 4.303),
        (2, 0.01, 9.925),
        (3, 0.10, 2.353),
        (4, 0.05, 2.776),
        (4, 0.01, 4.604),
        (4, 0.001, 8.610),
        (9, 0.05, 2.262),
        (30, 0.05, 2.042),
        (120, 0.05, 1.980),
    ],
)
def test_student_table(degrees: int, p: float, t: float) -> None:
    assert student_two_sided(t, degrees) == pytest.approx(p, rel=2e-3)
    assert student_quantile(1 - p / 2, degrees) == pytest.approx(t, abs=6e-4)
    assert student_two_sided(-t, degrees) == student_two_sided(t, degrees)


def test_student_closed_forms() -> None:
    for t in (0.1, 1.0, 3.0, 40.0):
        assert student_two_sided(t, 1) == pytest.approx(1 - 2 * math.atan(t) / math.pi, rel=1e-11)
        assert student_two_sided(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-9)
    assert student_two_sided(0.0, 7) == pytest.approx(1.0)


def test_incomplete_beta_closed_forms() -> None:
    for x in (0.0, 0.01, 0.3, 0.5, 0.9, 1.0):
        assert incomplete_beta(1, 1, x) == pytest.approx(x, abs=1e-14)
        assert incomplete_beta(3, 1, x) == pytest.approx(x**3, abs=1e-14)
        assert incomplete_beta(1, 4, x) == pytest.approx(1 - (1 - x) ** 4, abs=1e-14)
        assert incomplete_beta(2, 3, x) == pytest.approx(6 * x**2 - 8 * x**3 + 3 * x**4, abs=1e-14)
        assert incomplete_beta(0.5, 0.5, x) == pytest.approx(2 / math.pi * math.asin(math.sqrt(x)), abs=1e-13)


def test_paired_by_hand() -> None:
    # Differences 1, 2, 3: mean 2, deviation 1, t = 2 sqrt(3) with 2 degrees: p = 1 - t / sqrt(2 + t^2).
    found = paired([11.0, 12.0, 13.0], [10.0, 10.0, 10.0])
    t = 2 * math.sqrt(3)
    assert (found.n, found.difference, found.effect) == (3, 2.0, 2.0)
    assert found.p == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert found.interval is not None
    assert found.interval[1] == pytest.approx(2 + 4.302653 / math.sqrt(3), abs=1e-5)
    assert found.wilcoxon is None


def test_sleep_data_of_student_1908() -> None:
    """Extra hours of sleep of ten patients under two drugs: the example of the paper that introduced the test."""
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    found = paired(second, first)
    assert found.difference == pytest.approx(1.58)
    assert found.p == pytest.approx(0.002833, abs=1e-6)
    assert found.interval == pytest.approx((0.7001142, 2.4598858), abs=1e-6)


def test_pairs_that_say_nothing() -> None:
    single = paired([90.0], [89.0])
    assert (single.n, single.difference, single.p, single.effect) == (1, 1.0, None, None)
    two = paired([1.0, 3.0], [0.0, 1.0])
    assert (two.difference, two.reference, two.p, two.effect, two.interval) == (1.5, 0.5, None, None, None)
    assert paired([90.1, 91.2, 92.3], [90.0, 91.1, 92.2]).p is None  # equal but for the last bits
    with pytest.raises(ValueError, match="pairs are needed: 2 and 1"):
        paired([1.0, 2.0], [1.0])


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([1, 2, 3, 4, 5, 6], 2 / 64),  # all of one sign: the smallest p that six pairs can give
        ([-1, 2, 3, 4, 5, 6], 4 / 64),
        ([-1, -2, 3, 4, 5, 6], 10 / 64),  # sums up to 3: {}, 1, 2, 3 and 1 + 2
        ([1, -2, 3, -4], 14 / 16),  # sums up to 4: {}, 1, 2, 3, 4, 1 + 2, 1 + 3
        ([0, 1, 2, 3, 4, 5, 6], 2 / 64),
        ([1, 1, 1, 1, 1, 1], 2 / 64),
        ([-1, 1, 1, 1, 1, 1], 14 / 64),
    ],
)
def test_wilcoxon_counted(differences: list[float], p: float) -> None:
    assert wilcoxon(differences) == pytest.approx(p)
    assert wilcoxon([-d for d in differences]) == pytest.approx(p)


def test_wilcoxon_only_from_six_pairs_on() -> None:
    assert paired([float(i) for i in range(1, 6)], [0.0] * 5).wilcoxon is None
    assert paired([float(i) for i in range(1, 7)], [0.0] * 6).wilcoxon == pytest.approx(2 / 64)
    assert wilcoxon([0.0, 0.0]) is None
    first, second = [90.1, 91.2, 92.3, 93.4, 94.0, 95.0], [90.0, 91.1, 92.2, 93.3, 94.1, 94.9]
    assert paired(first, second).wilcoxon == pytest.approx(14 / 64)  # all of one size, one of them negative


def test_mean_and_deviation() -> None:
    assert mean([1.0, 2.0, 6.0]) == 3.0
    assert deviation([1.0, 2.0, 6.0]) == pytest.approx(math.sqrt(7))
    assert deviation([1.0]) is None
