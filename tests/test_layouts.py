"""The slow-net on all layers at once: every fast path against the loop over layers, in float64 where it can be."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastslow as fs
from fastslow.hypernets import native
from fastslow.hypernets.slow import LSTMSlowNet, MambaSlowNet

SIZES = [5, 131, 1, 64, 17]  # below, at, and across the widths of vectors and blocks
LAYERS = [2, 0, 4, 1, 3]
NETS = [
    {"d_state": 4, "expand": 16},
    {"d_state": 16, "expand": 10},
    {"d_state": 3, "expand": 5, "d_conv": 2, "discretization": "euler"},
    {"d_state": 5, "expand": 3, "d_conv": 8, "projections": False},
]
needs_library = pytest.mark.skipif(native.library() is None, reason="the compiled slow-net wasn't built")


def make(seed: int = 0, **options) -> tuple[MambaSlowNet, MambaSlowNet]:
    """A net away from its initial values, and its twin in float64."""
    torch.manual_seed(seed)
    net, twin = MambaSlowNet(5, **options), MambaSlowNet(5, **options).double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    twin.load_state_dict(net.state_dict())
    return net, twin


def gradients(net: nn.Module, out: Tensor, cotangent: Tensor) -> dict[str, Tensor]:
    names, parameters = zip(*net.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(out, parameters, cotangent.to(out.dtype)), strict=True))


def assert_close(got: Tensor, want: Tensor, what: str, tolerance: float = 1e-5) -> None:
    error = float((got.detach().double() - want.detach()).norm() / want.detach().norm().clamp_min(1e-300))
    assert error < tolerance, f"{what}: off by {error:.1e}"


@needs_library
@pytest.mark.parametrize("layout", ["per_weight", "concat"])
@pytest.mark.parametrize("options", NETS)
@pytest.mark.parametrize("size", [1.0, 1e-4, 30.0])
def test_compiled_code_is_the_float64_reference(layout: str, options: dict, size: float) -> None:
    net, twin = make(**options)
    history = torch.randn(6, sum(SIZES)) * size
    scales = torch.rand(len(SIZES)) * size + size if size < 1 else None
    cotangent = torch.randn(sum(SIZES))
    want = getattr(twin, layout)(
        history.double(), SIZES, LAYERS, scales=None if scales is None else scales.double(), reference=True
    )
    expected = gradients(twin, want, cotangent)
    for level in range(native.best_level() + 1):
        got = getattr(native, layout)(net, history, SIZES, LAYERS, scales, level=level, threads=2)
        assert_close(got, want, f"output at level {level}")
        for name, gradient in gradients(net, got, cotangent).items():
            assert_close(gradient, expected[name], f"{name} at level {level}", 3e-5)


@needs_library
@pytest.mark.parametrize("layout", ["per_weight", "concat"])
def test_the_number_of_threads_changes_nothing(layout: str) -> None:
    net, _ = make(d_state=4, expand=6)
    history = torch.randn(3, 5000)
    results = []
    for threads in (1, 3):
        out = getattr(native, layout)(net, history, [1800, 3200], [0, 1], None, threads=threads)
        results.append([out, *gradients(net, out, torch.cos(history[0])).values()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@needs_library
@pytest.mark.parametrize("layout", ["per_weight", "concat"])
@pytest.mark.parametrize("value", [0.0, 1e-30])
def test_vanishing_gradients_give_no_nan(layout: str, value: float) -> None:
    net, _ = make(d_state=4, expand=6)
    out = getattr(net, layout)(torch.full((6, 40), value), [40], [1])
    assert out.abs().max() <= 10 * value
    assert all(g.isfinite().all() for g in gradients(net, out, torch.ones(40)).values())


@pytest.mark.parametrize("layout", ["per_weight", "concat"])
@pytest.mark.parametrize(
    "net",
    [
        MambaSlowNet(5, d_state=4, expand=6),
        MambaSlowNet(5, d_state=3, expand=2, d_model=2, patch=4),
        LSTMSlowNet(5, hidden=4, patch=3),
    ],
)
@pytest.mark.parametrize("rows", [1, 4])
def test_all_layers_at_once_is_each_alone(layout: str, net: MambaSlowNet, rows: int) -> None:
    net = net.double()
    history = torch.randn(rows, sum(SIZES), dtype=torch.float64)
    scales = torch.rand(len(SIZES), dtype=torch.float64) + 0.5
    read = getattr(net, layout)
    together = read(history, SIZES, LAYERS, scales=scales)
    parts = zip(history.split(SIZES, 1), SIZES, LAYERS, scales, strict=True)
    alone = torch.cat([read(h, [n], [i], scales=s[None], reference=True) for h, n, i, s in parts])
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-12)
    unscaled = read(history[:, :5] / scales[0], [5], [2])
    torch.testing.assert_close(unscaled * scales[0], together[:5], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("layout", ["per_weight", "concat"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_known_value_has_the_same_gradient(layout: str, dtype: torch.dtype) -> None:
    net, _ = make(d_state=4, expand=6)
    net = net.to(dtype)
    history, scales = torch.randn(4, 80, dtype=dtype), torch.tensor([0.5, 2.0], dtype=dtype)
    read = getattr(net, layout)
    out = read(history, [30, 50], [0, 3], scales=scales)
    again = read(history, [30, 50], [0, 3], scales=scales, known=out.detach())
    torch.testing.assert_close(again, out)
    want = gradients(net, out, torch.cos(history[0]))
    for name, gradient in gradients(net, again, torch.cos(history[0])).items():
        torch.testing.assert_close(gradient, want[name], msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("name", ["fsg", "fsg-weight"])
def test_training_with_and_without_the_compiled_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten steps, no more apart than float32 makes them; and a step trains on what the look-ahead before it made."""
    fields = {"expand": 4, "d_state": 3, "fast_hidden": 6}

    def train() -> tuple[list[float], dict[str, Tensor]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, 3))
        x, y = torch.randn(10, 20, 6), torch.randint(3, (10, 20))
        fs.binarize_(model, name, skip="4", **fields)
        optimizer = fs.optimizer(model, torch.optim.SGD(model.parameters(), lr=0.05))
        losses = []
        for a, b in zip(x, y, strict=True):
            loss = F.cross_entropy(model(a), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        return losses, model.state_dict()

    quick = train()
    monkeypatch.setattr(native, "library", lambda: None)
    slow = train()
    torch.testing.assert_close(quick, slow, rtol=1e-4, atol=1e-5)


def test_a_missing_library_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(native, "EXTENSION_SUFFIXES", [])
    native.library.cache_clear()
    net = MambaSlowNet(5, d_state=4, expand=6)
    with caplog.at_level(logging.INFO, "fastslow"):
        for _ in range(2):
            net.per_weight(torch.randn(2, 9), [9], [0])
    native.library.cache_clear()
    assert sum("wasn't built" in record.message for record in caplog.records) == 1


def test_what_the_kernels_take() -> None:
    history = torch.zeros(2, 3)
    if native.library() is not None:
        assert native.can_run(MambaSlowNet(1, d_state=16, d_conv=8), history)
    for options in ({"d_model": 2}, {"dt_rank": 2}, {"patch": 2}, {"d_state": 17}, {"d_conv": 9}):
        assert not native.can_run(MambaSlowNet(1, **options), history)
    assert not native.can_run(MambaSlowNet(1), history.double())
    assert not native.can_run(MambaSlowNet(1), history.requires_grad_())


def test_memory_for_partial_sums_is_bounded() -> None:
    """Each task keeps gradients for all parameters: their number must not grow with the weights."""
    for sizes in ([10], [36_864] * 6, [36_864] * 100, [2_400_000] * 5):
        ranges, layer = native._partition(tuple(sizes))
        assert len(ranges) <= 600 + len(sizes)
        assert len(layer) == len(ranges)
        assert sum(stop - start for start, stop in ranges) == sum(sizes)
