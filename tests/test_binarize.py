"""Binarization as tables: input, output, gradient."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fastslow.binarize import calibration, get_binarizer, preprocess, quantize, straight_through

T = math.tanh
NAMES = ("dorefa", "sign", "scaled-sign", "scaled-sign-filter")

# (binarizer, bits, latent weights, binary weights, straight-through factors C)
TABLE = [
    ("dorefa", 1, [-2.0, -0.5, 0.0, 0.5, 1.0], [-1, -1, -1, 1, 1],
     [(1 - T(w) ** 2) / T(2.0) for w in (-2.0, -0.5, 0.0, 0.5, 1.0)]),
    ("dorefa", 2, [-1.0, -0.2, 0.2, 1.0], [-1, -1 / 3, 1 / 3, 1],
     [(1 - T(w) ** 2) / T(1.0) for w in (-1, -0.2, 0.2, 1)]),
    ("sign", 1, [-1.5, -1.0, -0.1, 0.0, 0.1, 1.0, 1.5], [-1, -1, -1, -1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 0]),
    ("scaled-sign", 1, [-1.0, -0.5, 0.0, 2.5], [-1, -1, -1, 1], [1, 1, 1, 0]),  # mean |W| = 1
    ("scaled-sign-filter", 1, [[-1.0, 3.0], [0.5, -0.5]], [[-2, 2], [0.5, -0.5]], [[1, 0], [1, 1]]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "bits", "weights", "values", "factors"), TABLE)
def test_values_and_gradients(name, bits, weights, values, factors):
    binarizer = get_binarizer(name, bits)
    w = torch.tensor(weights, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(binarizer.values(w).detach(), torch.tensor(values, dtype=torch.float64))
    torch.testing.assert_close(binarizer.calibration(w).detach(), torch.tensor(factors, dtype=torch.float64))
    g = torch.randn_like(w)
    straight_through(binarizer.values(w), w, binarizer.calibration(w)).backward(g)
    torch.testing.assert_close(w.grad, g * torch.tensor(factors, dtype=torch.float64))


def test_calibration_is_twice_the_derivative_of_the_preprocessing():
    w = torch.linspace(-2, 2, 9, dtype=torch.float64, requires_grad=True)
    preprocess(w).sum().backward()
    torch.testing.assert_close(calibration(w.detach()), 2 * w.grad)


def test_rounding_is_half_to_even_so_zero_is_minus_one():
    assert quantize(torch.tensor([0.5])).item() == -1
    assert all(get_binarizer(name).values(torch.tensor([0.0, 1.0]))[0] < 0 for name in NAMES)


@pytest.mark.parametrize("value", [0.0, -0.3, 0.7, 1e-30, -1e-30, 1e30])
@pytest.mark.parametrize("name", NAMES)
def test_constant_layers_have_defined_bits(name, value):
    w = torch.full((3, 2, 2, 2), value)
    binarizer = get_binarizer(name)
    for result in (binarizer.values(w), binarizer.calibration(w), binarizer.hat(w)):
        assert torch.isfinite(result).all()
    if name in ("dorefa", "sign"):
        assert set(binarizer.values(w).unique().tolist()) <= {-1.0, 1.0}


def test_a_layer_of_zeros_is_defined():
    w = torch.zeros(4, 3)
    assert torch.equal(preprocess(w), torch.full((4, 3), 0.5))
    assert torch.equal(calibration(w), torch.ones(4, 3))
    assert torch.equal(get_binarizer("dorefa").values(w), -torch.ones(4, 3))


@given(hnp.arrays("float64", hnp.array_shapes(min_dims=1, max_dims=4, max_side=4), elements=st.floats(-5, 5)))
def test_one_bit_values_are_bits_and_keep_shape_and_sign(array):
    w = torch.from_numpy(array)
    values = get_binarizer("dorefa").values(w)
    assert values.shape == w.shape
    assert ((values == 1) | (values == -1)).all()
    clear = w.abs() > 1e-12  # next to the threshold the sum with 1/2 rounds
    assert torch.equal(values[clear] > 0, w[clear] > 0)
    assert ((preprocess(w) >= 0) & (preprocess(w) <= 1)).all()
    for name in ("scaled-sign", "scaled-sign-filter"):
        scaled = get_binarizer(name).values(w)
        assert scaled.shape == w.shape
        assert torch.isfinite(scaled).all()


@given(st.integers(1, 8), hnp.arrays("float64", hnp.array_shapes(max_dims=2, max_side=5), elements=st.floats(-3, 3)))
def test_k_bit_values_lie_on_the_even_grid(bits, array):
    values = get_binarizer("dorefa", bits).values(torch.from_numpy(array))
    steps = (values + 1) / 2 * (2**bits - 1)
    torch.testing.assert_close(steps, steps.round())
    assert values.abs().max() <= 1


def test_empty_weights_pass():
    for name in NAMES:
        assert get_binarizer(name).values(torch.zeros(0, 3)).shape == (0, 3)


@pytest.mark.parametrize(
    ("name", "bits", "message"),
    [("dorefa", 0, "from 1 to 8"), ("dorefa", 9, "from 1 to 8"), ("dorefa", True, "from 1 to 8"),
     ("sign", 2, "has one bit"), ("doreffa", 1, "did you mean 'dorefa'")],
)  # fmt: skip
def test_bad_binarizers(name, bits, message):
    with pytest.raises(ValueError, match=message):
        get_binarizer(name, bits)
