"""A whole training step with the fused operations against the plain one, and on a GPU twenty of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fastslow as fs
import tiny
from fastslow import ops
from fastslow.ops import ahead, conv, norm, quantize, switch
from fastslow.training.precision import float32_products
from on_device import DEVICE, last, pytestmark, wide_tiles  # noqa: F401


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each operation ran; on the CPU in the interpreter."""
    counted: Counter[str] = Counter()
    if DEVICE == "cuda":  # where each is tried once before it is trusted, which doesn't count
        model = fs.models.resnet8()
        fs.binarize_(model, "ste")
        model.to(DEVICE, memory_format=torch.channels_last)
        with float32_products(torch.device(DEVICE), tf32=True), ops.fused():
            model(last(torch.randn(3, 3, 8, 8))).sum().backward()

    def count(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any) -> Any:
            counted[name] += 1
            return function(*args)

        return counting

    for module, name in ((conv, "weight_gradient"), (conv, "convolve"), (norm, "normalise"), (norm, "differentiate"),
                         (norm, "evaluate"), (quantize, "bits"), (ahead, "bits_of_many")):  # fmt: skip
        monkeypatch.setattr(module, name, count(name, getattr(module, name)))
    if DEVICE == "cpu":
        for module in (conv, norm, quantize):
            monkeypatch.setattr(module, "on_current_device", lambda x: True)
            monkeypatch.setattr(module, "trusted", lambda *args: True)
        monkeypatch.setattr(conv, "tf32_allowed", lambda: True)
        monkeypatch.setattr(conv, "_COLUMNS", 1 << 14)
        monkeypatch.setattr(conv, "_MULTIPROCESSORS", 1)
        wide_tiles(monkeypatch)
    return counted


@pytest.mark.parametrize("method", ["ste", pytest.param("multifc", marks=pytest.mark.slow)])
def test_one_step_of_a_resnet(method: str, calls: Counter[str]) -> None:
    torch.manual_seed(0)
    x, y = last(torch.randn(3, 3, 8, 8)), torch.tensor([0, 1, 2], device=DEVICE)
    start = fs.models.resnet8().state_dict()
    results = []
    for fused in (False, True):
        model = fs.models.resnet8()
        model.load_state_dict(start)
        fs.binarize_(model, method, skip=fs.first_and_last(model))
        model.to(DEVICE, memory_format=torch.channels_last)
        optimizer = fs.optimizer(model, torch.optim.SGD(model.parameters(), lr=0.01))
        model.train()
        with float32_products(torch.device(DEVICE), tf32=True):
            with ops.fused(fused):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        results.append({"loss": loss.detach(), **gradients, **dict(model.named_buffers())})
    layers, norms = fs.binary_layers(model).values(), sum(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    plain = [max(m.weight.shape[:2]) for m in layers if isinstance(m, nn.Conv2d) and m.stride == (1, 1)]
    own = sum(widest in chosen for widest in plain for chosen in (conv.FORWARD_CHANNELS, conv.BACKWARD_CHANNELS))
    assert calls == {
        "weight_gradient": len(layers), "convolve": own, "normalise": norms, "differentiate": norms,
        "bits": len(layers),
    }  # fmt: skip
    for name, want in results[0].items():
        error = float((results[1][name] - want).double().norm() / want.double().norm())
        assert error < (3e-2 if DEVICE == "cuda" else 3e-3), name


def test_a_teacher_is_fused_too(calls: Counter[str]) -> None:
    torch.manual_seed(0)
    model = fs.models.resnet8()
    model(torch.randn(20, 3, 8, 8))  # statistics of its own
    model.to(DEVICE, memory_format=torch.channels_last).eval().requires_grad_(False)
    x = last(torch.randn(3, 3, 8, 8))
    with torch.no_grad(), float32_products(torch.device(DEVICE), tf32=True):
        want = model(x)
        with ops.fused():
            got = model(x)
    norms = sum(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    own = sum(isinstance(m, nn.Conv2d) and m.stride == (1, 1) and m.in_channels > 3 for m in model.modules())
    assert calls == {"evaluate": norms, "convolve": own}
    assert float((got - want).norm() / want.norm()) < 3e-3


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["tf32", "bf16", "float32"])
@pytest.mark.parametrize("method", ["ste", "fsg-weight"])
def test_twenty_steps_of_a_run(
    method: str, precision: str, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Captured in a graph as always. A bit may turn a step earlier or later, so distances are compared, not numbers."""
    config = tiny.config(method, precision=precision, optimizer="momentum", lr=0.01, epochs=4)
    config = replace(config, model="resnet8")
    weights, losses = [], []
    for wanted in ("0", "1"):
        monkeypatch.setenv(switch.SWITCH, wanted)
        assert not calls
        trainer = fs.Trainer(config, tiny.dataset(), device="cuda")
        before = [p.detach().clone() for p in trainer.model.parameters()]
        result = trainer.fit()
        moved = [p.detach() - old for p, old in zip(trainer.model.parameters(), before, strict=True)]
        weights.append(torch.cat([part.reshape(-1) for part in moved]).double())
        losses.append(torch.tensor([row["train_loss"] for row in result["curve"]]))
    convolutions = {"weight_gradient", "convolve"}
    others = {"normalise", "differentiate", "evaluate", "bits", "bits_of_many"}
    assert set(calls) == (others if precision == "float32" else others | convolutions)
    assert float((weights[1] - weights[0]).norm() / weights[0].norm()) < 0.5
    assert float(torch.cosine_similarity(*weights, dim=0)) > 0.9
    torch.testing.assert_close(*losses, rtol=0.1, atol=0.05)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
@pytest.mark.parametrize("method", ["ste", "multifc"])
def test_bits_made_ahead_in_a_graph(method: str) -> None:
    """A captured launch reads the weights as they are when it is replayed, also once the table has been replaced."""
    model = fs.models.resnet20()
    fs.binarize_(model, method)
    model.to(DEVICE, memory_format=torch.channels_last)
    weights = {layer.weight: layer._shift for layer in fs.binary_layers(model).values()}
    asked, bits = list(weights.items()), ops.BitsAhead()

    def run() -> list[ahead.Bits]:
        with ops.fused(), bits.made():
            return [made for pair in asked if (made := bits.take(*pair)) is not None]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        assert [len(run()) for _ in range(2)] == [0, len(asked)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured = run()
        assert len(captured) == len(asked)
        asked = asked[3:]
        for _ in range(3):  # another table
            run()
        for _ in range(2):
            for weight, shift in weights.items():
                weight.detach().normal_()
                if shift is not None:
                    shift.normal_()
            graph.replay()
            for (weight, shift), made in zip(weights.items(), captured, strict=True):
                want = quantize.bits(weight.detach(), shift)
                assert all(map(torch.equal, made, want))
                assert made.values.stride() == weight.stride()


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
def test_every_operation_is_trusted_here() -> None:
    switch.trusted.cache_clear()
    for operation, dtype in (("conv", torch.float32), ("conv", torch.bfloat16), ("norm", torch.float32),
                             ("norm", torch.bfloat16), ("quantize", torch.float32)):  # fmt: skip
        assert switch.trusted(operation, dtype, torch.device("cuda", torch.cuda.current_device()))
