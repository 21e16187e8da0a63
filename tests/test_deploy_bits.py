"""The bit layout of docs/format.md, by example and by round trip."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fastslow.deploy.bits import pack_signs, padding_is_zero, row_bytes, unpack_signs


def test_the_layout_by_example() -> None:
    # One filter, 2 input channels, a 1 x 5 kernel: ten bits, channel fastest, least significant bit first.
    first, second = [1, -1, 1, 1, -1], [-1, -1, 1, -1, 1]
    weight = np.array([[[first], [second]]], np.float32)
    order = [1, -1, -1, -1, 1, 1, 1, -1, -1, 1]
    expected = [sum((value > 0) << bit for bit, value in enumerate(order[:8])), 0b10]
    assert pack_signs(weight).tolist() == [expected]


def test_zero_is_minus_one() -> None:
    assert pack_signs(np.array([[0.0, -0.0, 1.0]], np.float32)).tolist() == [[0b100]]


@given(
    st.integers(1, 20), st.integers(1, 70), st.sampled_from([(), (1, 1), (3, 3), (1, 5), (7, 2)]), st.integers(0, 2**32)
)
def test_round_trip(outputs: int, inputs: int, kernel: tuple[int, ...], seed: int) -> None:
    shape = (outputs, inputs, *kernel)
    signs = np.random.default_rng(seed).choice(np.array([-1, 1], np.float32), shape)
    packed = pack_signs(signs)
    depth = signs[0].size
    assert packed.shape == (outputs, row_bytes(depth))
    assert padding_is_zero(packed, depth)
    np.testing.assert_array_equal(unpack_signs(packed, shape), signs)
