"""The convergence theorem as an experiment, on shorter horizons than the recorded one."""

from __future__ import annotations

import pytest

from fastslow.recipes import theorem

HORIZONS = (64, 128, 256, 512, 1024)


@pytest.mark.parametrize("case", theorem.CASES, ids=lambda case: case.label)
def test_the_rate_is_reached(case: theorem.Case) -> None:
    found = theorem.measure(case, horizons=HORIZONS)
    assert found["slope"] < -0.45  # the bound is an upper one: faster agrees with it
    assert found["error"][-1] < found["error"][0] / 3


@pytest.mark.parametrize("case", theorem.OUTSIDE, ids=lambda case: case.label)
def test_outside_of_the_assumptions_nothing_converges(case: theorem.Case) -> None:
    assert theorem.measure(case, horizons=HORIZONS)["slope"] > 0.1


def test_slope_by_hand() -> None:
    assert theorem.slope((1, 10, 100), [1.0, 0.1**0.5, 0.1]) == pytest.approx(-0.5)


def test_the_same_seed_gives_the_same_numbers() -> None:
    case = theorem.CASES[3]
    assert theorem.averaged_error(case, 64, 1) == theorem.averaged_error(case, 64, 1)
    assert theorem.averaged_error(case, 64, 1) != theorem.averaged_error(case, 64, 2)
