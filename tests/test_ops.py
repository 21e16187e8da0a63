"""The switch of the fused operations: who sees them, and who sees plain torch."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fastslow as fs
from fastslow import ops
from fastslow.ops import conv, plain, switch


def test_fused_is_entered_by_one_thread_and_left_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    with ops.fused():
        thread = threading.Thread(target=lambda: seen.append(ops.is_fused()))
        thread.start()
        thread.join()
        with ops.fused(False):
            seen.append(ops.is_fused())
        seen.append(ops.is_fused())
    assert [*seen, ops.is_fused()] == [False, False, True, False]
    monkeypatch.setenv(switch.SWITCH, "0")
    with ops.fused():
        assert not ops.is_fused()


def test_a_trainer_fuses_on_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from tiny import config, step, trainer

    seen = []
    made = trainer(config("ste"))
    made.model.register_forward_pre_hook(lambda *_: seen.append(ops.is_fused()))
    step(made, 1)
    made.device = torch.device("cuda")  # which is all that the switch looks at
    monkeypatch.setattr(made, "_autocast", lambda: torch.autocast("cpu", enabled=False))
    made.update(*next(iter(made.train_batches.epoch(0, 0))))
    assert seen == [False, True]


def test_on_the_cpu_a_fused_pass_is_the_plain_one() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding="same"))
    fs.binarize_(model, "ste", skip=["0"])
    x = torch.randn(2, 3, 6, 6)
    results = []
    for fused in (False, True):
        with ops.fused(fused):
            y = model(x)
        results.append([y, *torch.autograd.grad(y.sum(), list(model.parameters()))])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize(("channels", "groups", "dtype"), [(24, 1, "float32"), (80, 1, "float32"), (32, 2, "float32")])
def test_what_the_convolution_leaves_to_torch(channels: int, groups: int, dtype: str) -> None:
    x = torch.randn(1, channels, 4, 4).to(memory_format=torch.channels_last)
    w = torch.randn(channels, channels // groups, 3, 3, requires_grad=True)
    assert not conv.can_run(x, w.to(memory_format=torch.channels_last), groups)


def test_plain_convolutions_are_fused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def noted(*args):
        seen.append(ops.is_fused())
        return conv.conv2d(*args)

    monkeypatch.setattr(plain, "conv2d", noted)
    layer, x = nn.Conv2d(2, 3, 3, padding=1), torch.randn(1, 2, 5, 5)
    want = layer(x)
    assert seen == []
    with ops.fused():
        assert torch.equal(layer(x), want)
        with ops.fused(False):
            assert torch.equal(layer(x), want)
        # Called in other ways than a layer does, it is torch's own.
        assert torch.equal(F.conv2d(x, layer.weight, layer.bias, padding=1), want)
        assert torch.equal(F.conv2d(x, layer.weight, layer.bias, 1, "same"), want)
    assert seen == [True, False]
    layer(x)
    assert len(seen) == 2
