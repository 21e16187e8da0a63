"""DoReFa's bits, all of them, and their gradient: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fastslow as fs
from fastslow import ops
from fastslow.binarize import DoReFa, Sign, calibration
from fastslow.binarize import quantize as rounded
from fastslow.ops import quantize, switch
from on_device import DEVICE, pytestmark  # noqa: F401

TOPS = [1e-42, 1e-30, 1e-5, 1.2e-4, 1.3e-4, 1e-3, *(0.05 * k for k in range(1, 21)), 1.7, 5.0, 30.0]


@pytest.fixture(autouse=True)
def _on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cpu":
        monkeypatch.setattr(quantize, "on_current_device", lambda x: True)
        monkeypatch.setattr(quantize, "trusted", lambda *args: True)


@pytest.mark.parametrize("whole", [True, False])
def test_every_bit_is_that_of_equation_2(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize, "_BLOCK", 1024 if whole else 128)
    monkeypatch.setattr(quantize, "_WHOLE", 1024 if whole else 1)
    for top in TOPS:
        weight = quantize.boundary(top).to(DEVICE)
        values, largest = quantize.bits(weight)
        # The CPU's tanh isn't always rounded correctly, as the interpreter's is; on a GPU both are one and the same.
        exact = torch.tanh(weight.abs().amax()) if DEVICE == "cuda" else weight.abs().amax().double().tanh().float()
        assert torch.equal(largest, exact)
        assert torch.equal(values, rounded(torch.tanh(weight) / (2 * largest) + 0.5))
        if DEVICE == "cuda":
            assert torch.equal(values, DoReFa().values(weight))


def test_a_tiny_weight_is_its_own_tanh() -> None:
    """What the kernel's bits rest on: every float below 2^-13 in steps, and all around the turning points."""
    w = torch.arange(0, 0x39000000, 997, dtype=torch.int32).view(torch.float32).to(DEVICE)
    assert float(w[-1]) > 0.99 * 2.0**-13
    assert torch.equal(torch.tanh(w), w)


def test_zeros_and_what_is_not_a_number() -> None:
    values, largest = quantize.bits(torch.tensor([0.0, -0.0], device=DEVICE))
    assert values.tolist() == [-1, -1]
    assert float(largest) == 1
    assert quantize.bits(torch.tensor([0.0, float("nan"), 2.0], device=DEVICE))[0][1].isnan()


def layer_weight(channels_last: bool = True) -> Tensor:
    torch.manual_seed(0)
    weight = torch.randn(6, 5, 3, 3, device=DEVICE)
    return weight.to(memory_format=torch.channels_last) if channels_last else weight


@pytest.mark.parametrize("channels_last", [True, False])
def test_the_gradient_is_calibrated_or_unchanged(channels_last: bool) -> None:
    weight = layer_weight(channels_last).requires_grad_()
    g = torch.randn(6, 5, 3, 3).to(DEVICE)
    with ops.fused():
        y = ops.binary_weight(DoReFa(), weight)
        assert y is not None
        (calibrated,) = torch.autograd.grad(y, weight, g)
        ahead = ops.binary_weight(DoReFa(), weight, torch.ones_like(weight), calibrate=False)
        assert ahead is not None
        (unchanged,) = torch.autograd.grad(ahead, weight, g)
    want = g.double() * calibration(weight.detach().double())
    assert float((calibrated - want).norm() / want.norm()) < 1e-6
    assert calibrated.stride() == y.stride() == weight.stride()
    assert torch.equal(unchanged, g)
    assert torch.equal(y, DoReFa().values(weight.detach()))
    assert torch.equal(ahead, DoReFa().values(weight.detach() - 1))


def test_what_is_left_to_the_plain_formulas() -> None:
    weight = layer_weight()
    assert quantize.can_run(DoReFa(), weight)
    assert quantize.can_run(DoReFa(), weight, torch.zeros_like(weight))
    assert not quantize.can_run(DoReFa(), weight, torch.zeros_like(weight).contiguous())
    assert not quantize.can_run(DoReFa(2), weight)
    assert not quantize.can_run(Sign(), weight)
    assert not quantize.can_run(DoReFa(), weight.double())
    assert not quantize.can_run(DoReFa(), weight[:, ::2])
    assert ops.binary_weight(DoReFa(), weight) is None  # outside `with fused():`
    with torch.no_grad():
        assert not quantize.can_run(DoReFa(), weight)


@pytest.mark.parametrize("method", ["ste", "multifc"])
def test_a_layer_uses_it_and_computes_the_same(method: str) -> None:
    results = []
    for fused in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(4, 6, 3).to(DEVICE))
        fs.binarize_(model, method)
        optimizer = fs.optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
        x = torch.randn(5, 4, 6, 6).to(DEVICE)
        for _ in range(3):
            optimizer.zero_grad()
            with ops.fused(fused):
                loss = model(x).square().mean()
            assert ("Bits" in str(loss.grad_fn.next_functions[0][0].next_functions[0][0].next_functions)) == fused
            loss.backward()
            optimizer.step()
        results.append(model[0].weight.detach())
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_the_kernels_are_trusted_only_where_they_agree(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    device, right = torch.device(DEVICE), quantize.bits
    switch.trusted.cache_clear()
    assert switch.trusted("quantize", torch.float32, device)

    def turned(*args: Tensor) -> tuple[Tensor, Tensor]:
        values, largest = right(*args)
        values[310] *= -1  # one bit of 565
        return values, largest

    for wrong in (turned, lambda *args: 1 / 0):
        monkeypatch.setattr(quantize, "bits", wrong)
        switch.trusted.cache_clear()
        assert not switch.trusted("quantize", torch.float32, device)
    switch.trusted.cache_clear()
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
