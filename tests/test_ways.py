"""Accumulation, clipping, a gradient scaler, bfloat16 and torch.compile in a loop of one's own."""

from __future__ import annotations

import pytest
import torch

from ways import train


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own, for a Function
@pytest.mark.parametrize("method", ["ste", "fsg"])
@pytest.mark.parametrize("way", ["accumulated", "scaled", "compiled"])
def test_what_must_not_change_the_training(method, way):
    torch.compiler.reset()
    expected, found = train(method, steps=10), train(method, way, steps=10)
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", ["ste", "fsg"])
@pytest.mark.parametrize("way", ["clipped", "bfloat16"])
def test_what_changes_it_trains_and_repeats(method, way):
    first, again, other = train(method, way), train(method, way), train(method)
    for key, value in first.items():
        assert value.isfinite().all()
        assert torch.equal(value, again[key])
    assert not torch.equal(first["weights"].double(), other["weights"])
