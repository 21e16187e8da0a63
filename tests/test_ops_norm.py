"""BatchNorm, sum and ReLU in one against float64: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fastslow import ops
from fastslow.ops import norm, switch
from on_device import DEVICE, last, pytestmark  # noqa: F401


@pytest.fixture(autouse=True)
def _on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cpu":
        monkeypatch.setattr(norm, "on_current_device", lambda x: True)
        monkeypatch.setattr(norm, "trusted", lambda *args: True)


def batch_norm(channels: int, affine: bool = True, **fields: Any) -> nn.BatchNorm2d:
    bn = nn.BatchNorm2d(channels, affine=affine, **fields)
    if affine:
        nn.init.uniform_(bn.weight, -1, 2)
        nn.init.normal_(bn.bias)
    return bn


def results(bn: nn.BatchNorm2d, x: Tensor, dy: Tensor, residual: Tensor | None, relu: bool) -> dict[str, Tensor]:
    """Output, gradients and buffers after two passes."""
    inputs = {"x": x} if residual is None else {"x": x, "residual": residual}
    inputs = {name: value.detach().requires_grad_() for name, value in inputs.items()}
    variables = {**inputs, **dict(bn.named_parameters())}
    y = torch.empty(0)
    for _ in range(2):
        y = ops.norm_act(bn, inputs["x"], inputs.get("residual"), relu)
    gradients = torch.autograd.grad(y, list(variables.values()), dy)
    return {"y": y.detach(), **dict(zip(variables, gradients, strict=True)), **dict(bn.named_buffers())}


# shape, affine, residual, relu, dtype
ROWS = [
    ((3, 16, 7, 5), True, True, True, torch.float32),
    ((1, 48, 9, 3), True, False, True, torch.float32),
    ((7, 64, 1, 1), True, True, False, torch.float32),
    ((2, 80, 5, 5), False, False, False, torch.float32),
    ((2, 32, 17, 9), False, True, True, torch.bfloat16),
    ((5, 8, 3, 4), True, False, True, torch.bfloat16),
]


@pytest.mark.parametrize(("shape", "affine", "residual", "relu", "dtype"), ROWS)
def test_everything_is_float64s(
    shape: tuple, affine: bool, residual: bool, relu: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_SUM_TILE", "_MAP_TILE"):  # several programs and several rounds, of few rows
        monkeypatch.setattr(norm, name, 512)
    monkeypatch.setattr(norm, "_SPLITS", 3)
    monkeypatch.setattr(norm, "_PROGRAMS", 2)
    torch.manual_seed(0)
    x, dy, added = (part.to(dtype) for part in torch.randn(3, *shape))
    x = x + 100 if dtype == torch.float32 else x  # a mean far above the deviation: nothing may cancel
    twin = batch_norm(shape[1], affine, momentum=0.3).double()
    bn = batch_norm(shape[1], affine, momentum=0.3)
    bn.load_state_dict(twin.state_dict())
    want = results(twin, x.double(), dy.double(), added.double() if residual else None, relu)
    with ops.fused():
        assert norm.can_run(bn.to(DEVICE), last(x, dtype))
        got = results(bn, last(x, dtype), last(dy, dtype), last(added, dtype) if residual else None, relu)
    assert list(got) == list(want)
    for name, value in got.items():
        error = float((value.cpu().double() - want[name]).norm() / want[name].double().norm())
        assert error < (2e-5 if dtype == torch.float32 else 5e-3), name
    assert got["y"].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("shape", "affine", "residual", "relu", "dtype"), ROWS)
def test_evaluation_is_float64s(
    shape: tuple, affine: bool, residual: bool, relu: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(norm, "_MAP_TILE", 512)
    monkeypatch.setattr(norm, "_PROGRAMS", 2)
    torch.manual_seed(0)
    x, added = (part.to(dtype) for part in torch.randn(2, *shape))
    twin = batch_norm(shape[1], affine).double()
    twin(3 * torch.randn(5, shape[1], 2, 2).double() + 1)
    bn = batch_norm(shape[1], affine)
    bn.load_state_dict(twin.state_dict())
    before = {name: value.clone() for name, value in bn.named_buffers()}
    with torch.no_grad():
        want = ops.norm_act(twin.eval(), x.double(), added.double() if residual else None, relu)
        with ops.fused():
            assert norm.can_run(bn.to(DEVICE).eval(), last(x, dtype))
            got = ops.norm_act(bn, last(x, dtype), last(added, dtype) if residual else None, relu)
    assert float((got.cpu().double() - want).norm() / want.norm()) < (1e-6 if dtype == torch.float32 else 5e-3)
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert all(torch.equal(value.cpu(), before[name]) for name, value in bn.named_buffers())


def test_the_same_sums_every_time() -> None:
    torch.manual_seed(0)
    x, dy = (last(part) for part in torch.randn(2, 3, 16, 30, 7))
    bn = batch_norm(16).to(DEVICE)
    with ops.fused():
        first, second = (results(bn, x, dy, None, True) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in ("y", "x", "weight", "bias"))


def test_what_is_left_to_torch() -> None:
    x = last(torch.randn(2, 16, 4, 4))
    bn = batch_norm(16).to(DEVICE)
    assert norm.can_run(bn, x)
    assert not norm.can_run(bn, x, x.double())
    assert not norm.can_run(bn, x[:1, :, :1, :1])
    assert not norm.can_run(bn, x.contiguous(memory_format=torch.contiguous_format))
    assert not norm.can_run(batch_norm(16, momentum=None).to(DEVICE), x)
    assert not norm.can_run(batch_norm(16, track_running_stats=False).to(DEVICE), x)
    assert not norm.can_run(batch_norm(12).to(DEVICE), last(torch.randn(2, 12, 4, 4)))
    assert not norm.can_run(batch_norm(16).to(DEVICE).eval(), x), "it would have to be differentiated"
    with torch.no_grad():
        assert not norm.can_run(bn, x), "its statistics would have to move"
        assert norm.can_run(batch_norm(16).to(DEVICE).eval(), x)
        assert not norm.can_run(batch_norm(16, track_running_stats=False).to(DEVICE).eval(), x)
    bn.register_forward_hook(lambda *_: None)
    assert not norm.can_run(bn, x)


def test_the_kernels_are_trusted_only_where_they_agree(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    device, right = torch.device(DEVICE), norm.differentiate
    switch.trusted.cache_clear()
    with ops.fused():  # as when it is first asked; the comparison is with plain torch all the same
        assert switch.trusted("norm", torch.float32, device)
    assert switch.trusted("norm", torch.bfloat16, device)
    for wrong in (lambda *args: (1.01 * right(*args)[0], *right(*args)[1:]), lambda *args: 1 / 0):
        monkeypatch.setattr(norm, "differentiate", wrong)
        switch.trusted.cache_clear()
        assert not switch.trusted("norm", torch.float32, device)
    switch.trusted.cache_clear()
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
