"""The convolution and both its gradients against float64: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fastslow import ops
from fastslow.ops import conv, switch
from on_device import DEVICE, last, pytestmark, wide_tiles  # noqa: F401

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
NARROW = {name: SHAPES[name] for name in ("3x3", "three blocks of 16 channels")} | {
    "mostly padding": (1, 16, 64, 2, 1, (3, 3), (1, 1), (2, 2), (1, 1)),
    "more channels": (2, 16, 32, 3, 6, (3, 3), (1, 1), (1, 1), (1, 1)),
    "fewer channels": (1, 64, 16, 3, 4, (3, 3), (1, 1), (0, 1), (1, 1)),
    "more padding than kernel": (1, 32, 32, 3, 2, (3, 3), (1, 1), (3, 4), (1, 1)),
    "wide kernel": (1, 16, 16, 2, 5, (1, 3), (1, 1), (0, 1), (1, 1)),
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


def nearest(x: Tensor) -> Tensor:
    """TF32's neighbour of each float32, by halves of its last place; in float64."""
    exponent = torch.frexp(x.float())[1]
    return torch.ldexp(torch.round(torch.ldexp(x.float().double(), 11 - exponent)), exponent - 11)


def both_passes(shape: tuple, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """Output and input gradient: the kernel's, and float64's of the same rounded factors."""
    x, w, (stride, padding, _) = problem(shape)
    dy = torch.randn(F.conv2d(x, w, None, stride, padding).shape).double()
    rounded = [nearest(part) if dtype == torch.float32 else part.to(dtype).double() for part in (x, w, dy)]
    y = F.conv2d(*rounded[:2], None, stride, padding)
    dx = torch.nn.grad.conv2d_input(x.shape, rounded[1], rounded[2], stride, padding)
    x, w, dy = (last(part, dtype) for part in (x, w, dy))
    return [conv.convolve(x, w, padding, False).cpu(), conv.convolve(dy, w, padding, True).cpu()], [y, dx]


@pytest.mark.parametrize("name", NARROW)
def test_output_and_input_gradient_are_float64s_of_rounded_factors(name: str) -> None:
    # Cutting factors off instead of rounding them would be wrong by 5e-4. The interpreter is slow and has no bfloat16.
    short = torch.bfloat16 if DEVICE == "cuda" else torch.float16
    for dtype in (torch.float32, short) if DEVICE == "cuda" or name == "3x3" else (torch.float32,):
        for got, want in zip(*both_passes(NARROW[name], dtype), strict=True):
            assert float((got - want).norm() / want.norm()) < (5e-5 if dtype == torch.float32 else 5e-3)


@pytest.mark.parametrize("tile", [(8, 3, 1, 1), (32, 2, 2, 1), (64, 1, 4, 4)])
def test_a_tile_changes_nothing_but_time(tile: conv.Tile, monkeypatch: pytest.MonkeyPatch) -> None:
    for tiles in (conv._FORWARD, conv._BACKWARD):
        monkeypatch.setitem(tiles, 32, tile)
    for got, want in zip(*both_passes((2, 32, 32, 5, 3, (3, 3), (1, 1), (1, 1), (1, 1)), torch.float32), strict=True):
        assert float((got - want).norm() / want.norm()) < 5e-5


def test_what_is_not_a_number_stays_so() -> None:
    x, w = last(torch.full((1, 16, 3, 3), 1.0)), last(torch.ones(16, 16, 3, 3))
    x[0, 5, 1, 1] = torch.nan
    assert conv.convolve(x, w, (1, 1), False).isnan().all()  # every output looks at the centre


@pytest.mark.parametrize(
    ("name", "bias", "own"), [("stride 2", True, []), ("3x3", False, [False, True]), ("3x3", True, [True])]
)
def test_all_three_gradients_and_the_layout(
    name: str, bias: bool, own: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    if DEVICE == "cpu":
        monkeypatch.setattr(conv, "can_run", lambda *args: True)
    else:
        switch.trusted("conv", torch.float32, torch.device(DEVICE, torch.cuda.current_device()))  # doesn't count
    convolve, mirrored = conv.convolve, []
    monkeypatch.setattr(conv, "convolve", lambda *args: mirrored.append(args[-1]) or convolve(*args))
    x, w, geometry = problem(SHAPES[name])
    variables = [x, w, *([torch.randn(w.shape[0]).double()] if bias else [])]
    results = []
    for fused in (False, True):
        inputs = [(last(v) if v.dim() == 4 else v.float().to(DEVICE)) if fused else v for v in variables]
        inputs = [v.detach().requires_grad_() for v in inputs]
        with ops.fused(fused):
            y = ops.conv2d(*inputs[:2], inputs[2] if bias else None, *geometry)
        assert ("_Conv" in type(y.grad_fn).__name__) == fused
        results.append([y.detach(), *torch.autograd.grad(y.square().sum(), inputs)])
    assert mirrored == own
    for want, got in zip(*results, strict=True):
        assert float((got.cpu() - want).norm() / want.norm()) < (5e-3 if own or DEVICE == "cuda" else 1e-5)
    assert all(part.is_contiguous(memory_format=torch.channels_last) for part in results[1][:3])


def test_the_kernel_is_trusted_only_where_it_agrees(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    device = torch.device(DEVICE)
    if DEVICE == "cpu":
        wide_tiles(monkeypatch)
    switch.trusted.cache_clear()
    assert switch.trusted("conv", torch.float32, device)
    for name, wrong in (
        ("weight_gradient", lambda *args: 1 / 0),
        ("weight_gradient", lambda *args, right=conv.weight_gradient: 1.01 * right(*args)),
        ("convolve", lambda *args, right=conv.convolve: 1.01 * right(*args)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(conv, name, wrong)
            switch.trusted.cache_clear()
            assert not switch.trusted("conv", torch.float32, device)
    switch.trusted.cache_clear()
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
