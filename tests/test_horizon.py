"""What the horizon leaves out, against the full computation; and that it leaves out nothing where it mustn't."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fastslow.hypernets import native
from fastslow.hypernets.horizon import horizon
from fastslow.hypernets.slow import MambaSlowNet

pytestmark = pytest.mark.skipif(native.library() is None, reason="the compiled slow-net wasn't built")
SIZES, LAYERS, ROWS = [700, 90], [1, 0], 6


def make(dt: float = 0.1, seed: int = 0, **options) -> MambaSlowNet:
    """A net whose steps are all about dt."""
    torch.manual_seed(seed)
    net = MambaSlowNet(2, expand=6, d_state=5, **options)
    with torch.no_grad():
        net.dt_proj.bias.fill_(dt).expm1_().log_()
    return net


def gradients(size: float, seed: int = 1) -> Tensor:
    return torch.randn(ROWS, sum(SIZES), generator=torch.Generator().manual_seed(seed)) * size


def full(net: MambaSlowNet, history: Tensor) -> Tensor:
    return native.concat(net, history, SIZES, LAYERS, None).detach()


def largest_error(net: MambaSlowNet, history: Tensor, starts: Tensor) -> float:
    """The largest deviation from the full computation, relative to the layer's largest output."""
    want = full(net, history).split(SIZES)
    got = native.concat(net, history, SIZES, LAYERS, None, starts).detach().split(SIZES)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("discretization", ["zoh", "euler"])
@pytest.mark.parametrize("size", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("tolerance", [1e-3, 1e-7])
def test_what_is_left_out_stays_below_the_tolerance(discretization: str, size: float, tolerance: float) -> None:
    """Over many nets: the bound holds wherever the guess of the largest output does."""
    for seed in range(8):
        net, history = make(seed=seed, discretization=discretization), gradients(size, seed)
        starts, guess = horizon(net, history, SIZES, LAYERS, None, tolerance)
        largest = torch.stack([part.abs().max() for part in full(net, history).split(SIZES)])
        starts = torch.where((largest >= guess)[:, None, None], starts, 0)
        assert largest_error(net, history, starts) < tolerance + 1e-6


def test_old_tokens_of_a_forgetful_net_are_left_out() -> None:
    net, history = make(), gradients(1e-4)
    starts, _ = horizon(net, history, SIZES, LAYERS, None, 1e-7)
    first_output = 5 * SIZES[0] + 1
    assert (starts[0] > first_output - 300).all()
    assert (starts[0] < first_output).all(), "some of the past is always needed"
    assert (starts[1][:, 0] < starts[1][:, -1]).all(), "a faster decay needs less of it"


@pytest.mark.parametrize("dt", [1e-5, 1e-12])
def test_a_net_that_forgets_nothing_reads_everything(dt: float) -> None:
    net, history = make(dt), gradients(1e-4)
    starts, _ = horizon(net, history, SIZES, LAYERS, None, 1e-7)
    assert (starts == 0).all()
    assert torch.equal(native.concat_to_horizon(net, history, SIZES, LAYERS, None), full(net, history))


def test_one_slow_channel_among_fast_ones_reads_everything_alone() -> None:
    net, history = make(), gradients(1e-4)
    with torch.no_grad():
        net.dt_proj.bias[2] = -30.0
    starts, _ = horizon(net, history, SIZES, LAYERS, None, 1e-7)
    assert (starts[:, 2] == 0).all()
    assert (starts[0][[0, 1, 3, 4, 5]] > 3000).all()
    assert largest_error(net, history, starts) < 1e-6


def test_large_gradients_widen_the_bound() -> None:
    """With a huge |u| a step may be tiny somewhere: nothing may be assumed of it."""
    net = make()
    small, large = (horizon(net, gradients(size), SIZES, LAYERS, None, 1e-7).starts for size in (1e-4, 1e4))
    assert (large <= small).all()
    assert (large == 0).any()


def test_a_guess_that_was_too_large_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    net, history = make(), gradients(1e-4)

    def wrong(*args) -> tuple[Tensor, Tensor]:
        starts, guess = horizon(*args)
        return torch.full_like(starts, 10**6), guess * torch.tensor([1e6, 1.0])

    monkeypatch.setattr(native, "horizon", wrong)
    out = native.concat_to_horizon(net, history, SIZES, LAYERS, None).detach()
    want = full(net, history)
    assert torch.equal(out[: SIZES[0]], want[: SIZES[0]]), "read again, to the beginning"
    assert not torch.equal(out[SIZES[0] :], want[SIZES[0] :])


@pytest.mark.parametrize("value", [0.0, 1e-30])
def test_vanishing_gradients(value: float) -> None:
    net = make()
    out = net.concat(torch.full((ROWS, sum(SIZES)), value), SIZES, LAYERS)
    assert out.isfinite().all()
    assert out.abs().max() <= 10 * value


def test_zero_tolerance_reads_everything() -> None:
    net, history = make(horizon_tol=0.0), gradients(1e-4)
    assert torch.equal(net.concat(history, SIZES, LAYERS), full(net, history))
