"""``optimizer.prepare()`` before a forward pass: the same training, whatever happens in between."""

from __future__ import annotations

import copy

import pytest
import torch

import fastslow as fs
from fastslow.training.checkpoint import flatten
from toy import BATCHES, ToyNet, toy_net, train

METHODS = ["ste", "fcgrad", "multifc", "lstmfc", "fsg", "fsg-code", "fsg-weight", "fsg-lstm", "fsg-plus"]
LSTM_WHAT = fs.get_method("fsg", slow="lstm-what")
STEPS = 5


def start(method: str | fs.Method) -> tuple[ToyNet, fs.BinaryOptimizer]:
    model = toy_net()
    fs.binarize_(model, method, skip=["stem"])
    return model, fs.optimizer(model, torch.optim.SGD(model.parameters(), lr=0.05), total_steps=BATCHES)


def assert_same(*pairs: tuple[ToyNet, fs.BinaryOptimizer]) -> None:
    (model, optimizer), (other_model, other_optimizer) = pairs
    for (name, value), other in zip(model.state_dict().items(), other_model.state_dict().values(), strict=True):
        assert torch.equal(value, other), name
    (tensors, rest), (others, other_rest) = (flatten(each.state_dict()) for each in (optimizer, other_optimizer))
    assert rest == other_rest
    for key, value in tensors.items():
        assert torch.equal(value, others[key]), key


@pytest.mark.parametrize("method", [*METHODS, pytest.param(LSTM_WHAT, id="lstm-what")])
def test_changes_no_number(method):
    plain, prepared = start(method), start(method)
    losses = train(*plain, 0, STEPS)
    assert train(*prepared, 0, STEPS, prepare=True) == losses
    assert_same(plain, prepared)


@pytest.mark.parametrize("method", ["lstmfc", "fsg-weight"])
def test_a_weight_changed_after_it_counts_as_it_is(method):
    runs = [start(method), start(method)]
    for model, optimizer in runs:
        train(model, optimizer, 0, 2)
        if optimizer is runs[1][1]:
            optimizer.prepare()
        with torch.no_grad():
            model.hidden.weight.mul_(0.5)
        train(model, optimizer, 2, STEPS)
    assert_same(*runs)


@pytest.mark.parametrize("method", ["lstmfc", "fsg-weight", pytest.param(LSTM_WHAT, id="lstm-what")])
def test_a_step_without_the_layers_it_was_for(method):
    """Some of the layers get no gradient, then none does."""
    runs = [start(method), start(method)]
    for model, optimizer in runs:
        train(model, optimizer, 0, 2)
        for frozen in (["hidden"], ["hidden", "conv", "out"]):
            if optimizer is runs[1][1]:
                optimizer.prepare()
            x = torch.ones(4, 1, 6, 6)
            optimizer.zero_grad()
            model(x).square().sum().backward()
            for name in frozen:
                getattr(model, name).weight.grad = None
            optimizer.step()
        train(model, optimizer, 2, STEPS)
    assert_same(*runs)


@pytest.mark.parametrize("method", ["lstmfc", "fsg-weight"])
def test_a_state_loaded_after_it_counts_as_it_is(method):
    runs = [start(method), start(method)]
    for model, optimizer in runs:
        train(model, optimizer, 0, 2)
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        train(model, optimizer, 2, 4)
        if optimizer is runs[1][1]:
            optimizer.prepare()
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        train(model, optimizer, 2, STEPS)
    assert_same(*runs)
