"""The convolution's weight gradient against float64: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fastslow import ops
from fastslow.ops import conv, switch
from on_device import DEVICE, last, pytestmark  # noqa: F401

# batch, input channels, output channels, height, width, kernel, stride, padding, dilation
SHAPES = {
    "3x3": (3, 16, 16, 7, 5, (3, 3), (1, 1), (1, 1), (1, 1)),
    "stride 2": (2, 32, 32, 9, 8, (3, 3), (2, 2), (1, 1), (1, 1)),
    "three blocks of 16 channels": (1, 48, 48, 5, 6, (3, 3), (1, 1), (0, 0), (1, 1)),
    "shortcut": (7, 16, 32, 5, 7, (1, 1), (2, 2), (0, 0), (1, 1)),
    "1x1 of 64": (3, 64, 16, 3, 3, (1, 1), (1, 1), (0, 0), (1, 1)),
    "dilated": (1, 16, 64, 9, 7, (3, 3), (1, 1), (2, 2), (2, 2)),
    "crooked": (2, 32, 16, 6, 5, (2, 3), (2, 1), (0, 2), (1, 2)),
    "mostly padding": (1, 64, 64, 2, 1, (3, 3), (1, 1), (2, 2), (1, 1)),
}


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cpu":  # the interpreter runs them one after the other
        monkeypatch.setattr(conv, "_COLUMNS", 4096)
        monkeypatch.setattr(conv, "_MULTIPROCESSORS", 1)  # so that one takes several steps


def problem(shape: tuple) -> tuple[Tensor, Tensor, tuple]:
    """Input, weight, geometry: on the CPU, in float64."""
    torch.manual_seed(0)
    n, CI, CO, H, W, kernel, *geometry = shape
    return torch.randn(n, CI, H, W).double(), torch.randn(CO, CI, *kernel).double(), tuple(geometry)


@pytest.mark.parametrize("name", SHAPES)
def test_the_weight_gradient_is_float64s(name: str) -> None:
    x, w, geometry = problem(SHAPES[name])
    w.requires_grad_()
    y = F.conv2d(x, w, None, *geometry)
    dy = torch.randn(y.shape).double()
    (want,) = torch.autograd.grad(y, w, dy)
    # A GPU rounds the factors to TF32 or bfloat16; the interpreter computes with float32.
    for dtype, tolerance in {torch.float32: 2e-3, torch.bfloat16: 1e-2}.items() if DEVICE == "cuda" else [(None, 1e-6)]:
        parts = [last(part.detach(), dtype or torch.float32) for part in (x, dy)]
        runs = 2 if name == "3x3" else 1
        got = [conv.weight_gradient(*parts, torch.empty_like(last(w.detach())), *geometry).cpu() for _ in range(runs)]
        assert torch.equal(got[0], got[-1])  # the same sums in the same order
        assert float((got[0] - want).norm() / want.norm()) < tolerance


def test_all_three_gradients_and_the_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cpu":
        monkeypatch.setattr(conv, "can_run", lambda *args: True)
    x, w, geometry = problem(SHAPES["stride 2"])
    variables = [x, w, torch.randn(w.shape[0]).double()]
    results = []
    for fused in (False, True):
        inputs = [(last(v) if v.dim() == 4 else v.float().to(DEVICE)) if fused else v for v in variables]
        inputs = [v.detach().requires_grad_() for v in inputs]
        with ops.fused(fused):
            y = ops.conv2d(*inputs, *geometry)
        assert ("_Conv" in type(y.grad_fn).__name__) == fused
        results.append([y.detach(), *torch.autograd.grad(y.square().sum(), inputs)])
    for want, got in zip(*results, strict=True):
        assert float((got.cpu() - want).norm() / want.norm()) < (5e-3 if DEVICE == "cuda" else 1e-5)
    assert results[1][2].is_contiguous(memory_format=torch.channels_last)


def test_the_kernel_is_trusted_only_where_it_agrees(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    device, right = torch.device(DEVICE), conv.weight_gradient
    switch.trusted.cache_clear()
    assert switch.trusted("conv", torch.float32, device)
    for wrong in (lambda *args: 1.01 * right(*args), lambda *args: 1 / 0):
        monkeypatch.setattr(conv, "weight_gradient", wrong)
        switch.trusted.cache_clear()
        assert not switch.trusted("conv", torch.float32, device)
    switch.trusted.cache_clear()
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
