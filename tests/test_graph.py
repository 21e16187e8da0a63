"""A run whose steps are one CUDA graph against the same run one kernel at a time, and what its memory grows with."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import fastslow as fs
import tiny
from fastslow.training.checkpoint import flatten
from fastslow.training.graphed import without_collector
from fastslow.training.precision import float32_products

METHODS = list(tiny.METHODS)
STEPS = 50


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("method", METHODS)
def test_fifty_steps_of_a_graph_are_fifty_eager_ones(method):
    """What a weight moved by, not bit for bit: cuDNN's sums have no fixed order, and a bit may turn a step earlier."""
    config = tiny.config(method, model="bare", epochs=STEPS // 5)
    moves = []
    for graphed in (False, True):
        trainer = tiny.trainer(config, device="cuda")
        before = joined(trainer.model)
        if not graphed:
            trainer._graphed = None
        with float32_products(trainer.device, tf32=False):
            for epoch in range(config.epochs):
                for _ in trainer._steps(epoch, 0):
                    pass
                trainer._end_epoch(epoch)
        assert trainer.done == STEPS
        assert not graphed or (trainer._graphed is not None and trainer._graphed.graph is not None)
        moves.append(joined(trainer.model) - before)
    assert float((moves[1] - moves[0]).norm() / moves[0].norm()) < 0.15  # a bit that turns elsewhere is 0.04 to 0.09


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("method", ["ste", "fsg", "fsg-weight"])
def test_a_state_loaded_into_a_captured_run(method):
    """Four epochs, back to the end of the second, and the last two once more."""
    trainer = tiny.trainer(tiny.config(method, model="bare", epochs=6), device="cuda")
    ends = []
    with float32_products(trainer.device, tf32=False):
        for epoch in (0, 1, 2, 3, 2, 3):
            if epoch == 2 and not ends:
                saved = copy.deepcopy(trainer.state_dict())
            elif epoch == 2:
                assert trainer._graphed is not None
                assert trainer._graphed.graph is not None
                trainer.load_state_dict(saved)
                assert trainer._graphed.graph is None
            for _ in trainer._steps(epoch, 0):
                pass
            trainer._end_epoch(epoch)
            if epoch == 3:
                ends.append(joined(trainer.model))
    assert float((ends[1] - ends[0]).norm() / ends[0].norm()) < 1e-2


class Cycle:
    """Only Python's collector deletes one."""

    def __init__(self, held: object = None) -> None:
        self.me, self.held = self, held


def test_nothing_is_collected_during_a_capture():
    with without_collector():
        kept = weakref.ref(Cycle())
        assert not gc.isenabled()
        assert [Cycle() for _ in range(5000)]  # enough for the collector to come by
        assert kept() is not None
    assert gc.isenabled()


def test_what_was_garbage_before_goes_first_and_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        before = weakref.ref(Cycle())
        assert before() is not None
        with without_collector():
            assert before() is None
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_graph_that_becomes_garbage_while_another_is_captured(monkeypatch):
    """As where one run follows another in a process; the collector is made to come by at every object."""
    config = tiny.config("ste", model="bare", epochs=2)
    first, second = (tiny.trainer(config, device="cuda") for _ in range(2))
    for _ in first._steps(0, 0):
        pass
    assert first._graphed is not None
    old = Cycle(first._graphed.graph)
    first._graphed.graph = None
    update = second.update

    def letting_go(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        nonlocal old
        if torch.cuda.is_current_stream_capturing():
            old = Cycle()
        return update(x, y)

    monkeypatch.setattr(second, "update", letting_go)
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in second._steps(0, 0):
            pass
    finally:
        gc.set_threshold(*threshold)
    assert second._graphed is not None
    assert second._graphed.graph is not None


def joined(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().double().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize("method", METHODS)
def test_what_a_method_keeps_is_linear_in_the_weights(method):
    def kept(width: int) -> int:
        model = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 16))
        fs.binarize_(model, fs.get_method(method, **tiny.METHODS[method]))
        optimizer = fs.optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1), total_steps=9)
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.ones(2, 16)).square().mean().backward()
            optimizer.step()
        return sum(tensor.nbytes for tensor in flatten(optimizer.state_dict()["fastslow"])[0].values())

    one, two, four = (kept(width) for width in (32, 64, 128))
    assert four - two == 2 * (two - one)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("method", ["fsg", "fsg-weight"])
def test_a_step_needs_memory_linear_in_the_weights(method):
    def peak(width: int) -> int:
        model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)).cuda()
        fs.binarize_(model, fs.get_method(method, **tiny.METHODS[method]))
        optimizer = fs.optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(8):
            if step == 7:
                torch.cuda.reset_peak_memory_stats()
            optimizer.zero_grad()
            optimizer.prepare()
            model(torch.ones(2, width, device="cuda")).square().mean().backward()
            optimizer.step()
        return torch.cuda.max_memory_allocated()

    small, middle, large = (peak(width) for width in (128, 256, 512))  # each four times the weights of the one before
    assert large - middle < 5 * (middle - small)
