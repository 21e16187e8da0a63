"""Indicators on cases small enough to do by hand, and for every method."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fastslow as fs
from fastslow import indicators
from fastslow.methods import METHODS
from toy import toy_data, toy_net

W = torch.tensor([[0.5, -0.25], [1.0, -2.0]])


def linear(method: str, w: torch.Tensor = W, **kwargs) -> nn.Linear:
    layer = nn.Linear(w.shape[1], w.shape[0], bias=False)
    with torch.no_grad():
        layer.weight.copy_(w)
    fs.binarize_(layer, method, **kwargs)
    return layer


def test_estimating_error_by_hand():
    # Identity: 1 - 0.5, -1 + 0.25, 0, -1 + 2.
    assert indicators.estimating_error(linear("binaryconnect")) == pytest.approx(math.sqrt(0.25 + 0.5625 + 1))
    # Clipped at 1: the last is exact.
    assert indicators.estimating_error(linear("bnn")) == pytest.approx(math.sqrt(0.25 + 0.5625))
    layer = linear("reste")
    layer._progress.fill_(1.0)  # cube roots, constant beyond 1.5
    errors = [1 - 0.5 ** (1 / 3), 1 - 0.25 ** (1 / 3), 0, 1 - 1.5 ** (1 / 3)]
    assert indicators.estimating_error(layer) == pytest.approx(math.hypot(*errors), rel=1e-5)


def test_sharper_schedules_have_smaller_errors():
    for name in ("irnet", "reste", "rbnn", "mirror", "quantnet"):
        layer = linear(name, torch.randn(4, 16, generator=torch.Generator().manual_seed(0)))
        first = indicators.estimating_error(layer)
        layer._progress.fill_(1.0)
        assert indicators.estimating_error(layer) < first, name


def test_gradient_stability_by_hand():
    layer = linear("ste")
    assert indicators.gradient_stability(layer) is None
    layer.weight.grad = torch.tensor([[1.0, -1.0], [3.0, -3.0]])
    assert indicators.gradient_stability(layer) == pytest.approx(1.0)


def test_flips_and_entropy_by_hand():
    layer = linear("ste")
    before = indicators.signs(layer)
    with torch.no_grad():
        layer.weight[0, 0] = -1.0
    assert indicators.flip_ratio(before, indicators.signs(layer)) == 0.25
    assert indicators.sign_entropy(layer) == pytest.approx(-(0.25 * math.log2(0.25) + 0.75 * math.log2(0.75)))
    assert indicators.sign_entropy(linear("ste")) == pytest.approx(1.0)
    assert indicators.sign_entropy(linear("ste", -W.abs())) == pytest.approx(0.0, abs=1e-5)
    with pytest.raises(ValueError, match="different models"):
        indicators.flip_ratio(before, {})


def test_cosine_to_the_float_gradient():
    """Where the estimator's gradient is the float network's own, the cosine is 1, and everything is left as it was."""
    model = toy_net()
    fs.binarize_(model, "ste", skip="stem")
    x, y = toy_data()
    plain = toy_net()
    F.cross_entropy(plain(x), y).backward()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    found = indicators.float_gradients(model, lambda: F.cross_entropy(model(x), y))
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, plain.get_submodule(name).weight.grad)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert indicators.cosine_to_float(model, lambda: F.cross_entropy(model(x), y)) is None
    for name, layer in fs.binary_layers(model).items():
        layer.weight.grad = -2 * found[name]
    assert indicators.cosine_to_float(model, lambda: F.cross_entropy(model(x), y)) == pytest.approx(-1.0)
    assert not torch.equal(model(x), plain(x)), "outside, the layers are binary again"


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_has_all_of_them(name):
    model = toy_net()
    fields = {"expand": 2, "d_state": 2, "length": 2} if name in ("fsg", "fsg-code", "fsg-lstm", "fsg-weight") else {}
    fs.binarize_(model, name, skip="stem", **fields)
    x, y = toy_data()
    optimizer = fs.optimizer(model, torch.optim.Adam(model.parameters(), lr=0.1), total_steps=4, epochs=2)
    before = indicators.signs(model)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    found = indicators.indicators(model, lambda: F.cross_entropy(model(x), y), before)
    names = ["estimating_error", "gradient_stability", "sign_entropy", "cosine_to_float", "flip_ratio"]
    assert list(found) == names
    assert all(math.isfinite(value) for value in found.values())
    for layer_name, layer in fs.binary_layers(model).items():
        values = layer.binary_weight
        above = values > values.flatten(1).mean(1).view(-1, *[1] * (values.dim() - 1))
        mixed = values.flatten(1).amin(1) < values.flatten(1).amax(1)
        bits = indicators.signs(model)[layer_name]
        if name not in ("rbnn", "recu", "surge"):  # a learned scale may be negative
            assert torch.equal(above[mixed], bits[mixed])
