"""The slow-nets against their sequential twins, hand-written loops and an independent Mamba."""

import math
from typing import Any, TypeVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastslow.hypernets.scan_chunked import BLOCK
from fastslow.hypernets.slow import LSTMSlowNet, MambaSlowNet

Net = TypeVar("Net", MambaSlowNet, LSTMSlowNet)


def make(net: type[Net], seed: int = 0, **options: Any) -> Net:
    torch.manual_seed(seed)
    return net(5, **options).double()


def tokens_and_layers(batch: int, length: int, patch: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randn(batch, length, patch, generator=generator, dtype=torch.float64)
    return tokens, torch.arange(batch) % 5


def assert_twins(net: nn.Module, actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)
    weights = torch.cos(torch.arange(expected.numel(), dtype=expected.dtype)).view_as(expected)
    names, parameters = zip(*net.named_parameters(), strict=True)
    got = torch.autograd.grad((actual * weights).sum(), parameters)
    want = torch.autograd.grad((expected * weights).sum(), parameters)
    for name, a, b in zip(names, got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize(
    "options",
    [
        {"d_state": 4, "expand": 12},
        {"d_state": 3, "expand": 3, "d_model": 4, "patch": 2, "dt_rank": 2},
        {"d_state": 4, "expand": 12, "d_conv": 8, "projections": False, "discretization": "euler"},
        {"d_state": 2, "expand": 4, "d_model": 4, "patch": 4, "projections": False, "d_conv": 1},
    ],
)
@pytest.mark.parametrize(("batch", "length", "outputs"), [(1, 1, 1), (3, 6, 1), (1, 200, 33), (2, 40, 40)])
def test_mamba_chunked_is_sequential(options: dict, batch: int, length: int, outputs: int) -> None:
    net = make(MambaSlowNet, **options)
    tokens, layer = tokens_and_layers(batch, length, options.get("patch", 1))
    actual = net(tokens, layer, outputs)
    assert actual.shape == (batch, outputs, tokens.shape[2])
    assert_twins(net, actual, net(tokens, layer, outputs, reference=True))


@pytest.mark.parametrize("net", [make(MambaSlowNet, expand=8, d_state=4), make(LSTMSlowNet, hidden=6)])
def test_last_outputs_are_a_slice_of_all(net: nn.Module) -> None:
    tokens, layer = tokens_and_layers(3, 30, 1)
    assert_twins(net, net(tokens, layer, 4), net(tokens, layer, 30)[:, -4:])


def test_lstm_tells_weights_apart_in_units_of_their_layer_alone() -> None:
    """Raw gradients are so small beside an LSTM's biases that its answer is one number, far larger than they are."""
    net = make(LSTMSlowNet)
    history = 1e-5 * torch.randn(6, 500, dtype=torch.float64)
    rms = history.square().mean().sqrt()
    with torch.no_grad():
        raw = net.per_weight(history, [500], [0])
        scaled = net.per_weight(history, [500], [0], scales=rms.expand(1))
    assert raw.abs().min() > 1000 * rms
    assert raw.std() < 1e-4 * raw.abs().mean()
    assert scaled.abs().max() < rms
    assert scaled.std() > 0.01 * scaled.abs().mean()


@pytest.mark.parametrize("net", [make(MambaSlowNet, expand=8, d_state=4), make(LSTMSlowNet, hidden=6)])
def test_rows_are_independent_and_layers_differ(net: nn.Module) -> None:
    tokens, layer = tokens_and_layers(3, 6, 1)
    together = net(tokens, layer, 2)
    alone = torch.cat([net(tokens[i : i + 1], layer[i : i + 1], 2) for i in range(3)])
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-14)
    assert not torch.allclose(together, net(tokens, layer + 1, 2), rtol=1e-6)


@pytest.mark.parametrize("d_conv", [4, 8])
def test_mamba_is_mambapy(d_conv: int) -> None:
    """An independent implementation of the block; mambapy always takes dt B (euler), and has no LRE, W_a or W_b."""
    mambapy = pytest.importorskip("mambapy.mamba")
    net = make(
        MambaSlowNet, d_model=2, patch=2, projections=False, d_conv=d_conv, expand=6, d_state=4, discretization="euler"
    )
    config = mambapy.MambaConfig(
        d_model=2, n_layers=1, dt_rank=1, d_state=4, expand_factor=6, d_conv=d_conv, pscan=False
    )
    block = mambapy.MambaBlock(config).double()
    weights = {name.replace("conv.", "conv1d."): v for name, v in net.state_dict().items() if name != "lre.weight"}
    block.load_state_dict(weights)
    # Its sequential mode makes a float32 zero state and casts A and D to float32: both are given in a form that
    # float32 holds exactly.
    with torch.no_grad():
        for owner in (net, block):
            owner.A_log.zero_()
    tokens, layer = tokens_and_layers(3, 25, 2)
    expected = block(torch.cat([net.lre(layer)[:, None], tokens], 1))[:, -9:]
    torch.testing.assert_close(net(tokens, layer, 9), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(net(tokens, layer, 9, reference=True), expected, rtol=1e-10, atol=1e-12)


def test_mamba_projections_are_W_a_and_W_b() -> None:
    """Eq. 10-11: with the projections folded into the tokens and the output, the block in between is the same."""
    net = make(MambaSlowNet, d_model=3, patch=2, expand=4, d_state=2)
    bare = make(MambaSlowNet, d_model=3, patch=3, expand=4, d_state=2, projections=False)
    bare.load_state_dict({k: v for k, v in net.state_dict().items() if k not in ("W_a.weight", "W_b.weight")})
    tokens, layer = tokens_and_layers(2, 9, 2)
    assert net.W_a is not None
    assert net.W_b is not None
    expected = net.W_b(bare(net.W_a(tokens), layer, 4))
    torch.testing.assert_close(net(tokens, layer, 4), expected, rtol=1e-12, atol=1e-14)


def test_mamba_starts_as_public_mamba_does() -> None:
    torch.manual_seed(0)
    net = MambaSlowNet(7)
    assert sum(p.numel() for p in net.parameters()) == 2 + 7 + 200 + 500 + 3300 + 200 + 1600 + 100 + 100
    torch.testing.assert_close(net.A_log.exp(), torch.arange(1.0, 17).expand(100, 16))
    assert net.D.eq(1).all()
    dt = F.softplus(net.dt_proj.bias)
    assert dt.min() >= 0.99e-3
    assert dt.max() <= 0.101
    assert abs(dt.log().mean() - math.log(1e-2)) < 0.5
    assert net.dt_proj.weight.abs().max() <= 1


def test_mamba_answers_zero_to_a_zero_gradient() -> None:
    """The gate makes the output proportional to the current token, without a NaN in value or gradient."""
    torch.manual_seed(0)
    for value in (0.0, 1e-30):
        net = MambaSlowNet(2, expand=8, d_state=4, projections=False)
        out = net(torch.full((3, 6, 1), value), torch.zeros(3, dtype=torch.int64), 1)
        assert out.abs().max() <= value
        out.sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def test_lstm_by_hand() -> None:
    net = make(LSTMSlowNet, hidden=4, patch=2)
    tokens, layer = tokens_and_layers(3, 6, 2)
    w_ih, w_hh, b_ih, b_hh = net.lstm.parameters()
    h = c = torch.zeros(3, 4, dtype=torch.float64)
    outputs = []
    for token in (net.lre.weight[layer], *tokens.unbind(1)):
        i, f, g, o = (token @ w_ih.T + b_ih + h @ w_hh.T + b_hh).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h @ net.head.weight.T + net.head.bias)
    assert_twins(net, net(tokens, layer, 2), torch.stack(outputs[-2:], 1))


@pytest.mark.parametrize("net", [make(MambaSlowNet, expand=8, d_state=4), make(LSTMSlowNet, hidden=6)])
def test_rows_in_pieces_are_the_whole(net: MambaSlowNet | LSTMSlowNet) -> None:
    net.row_cost = BLOCK // 3  # three rows at a time
    tokens, layer = tokens_and_layers(11, 6, 1)
    whole = net(tokens, layer, 2, reference=True)
    with torch.no_grad():
        torch.testing.assert_close(net(tokens, layer, 2), whole, rtol=1e-12, atol=1e-14)
    assert_twins(net, net(tokens, layer, 2), whole)


@pytest.mark.parametrize("net", [MambaSlowNet, LSTMSlowNet])
def test_the_same_seed_gives_the_same_net(net: type) -> None:
    first, second, other = make(net, 3), make(net, 3), make(net, 4)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(
    ("net", "options", "message"),
    [
        (MambaSlowNet, {"layers": 0}, "layers=0"),
        (MambaSlowNet, {"expand": 0}, "expand=0"),
        (MambaSlowNet, {"discretization": "tustin"}, "discretization='tustin'"),
        (MambaSlowNet, {"projections": False, "patch": 200}, "patch=200 must equal d_model=1"),
        (LSTMSlowNet, {"hidden": 0}, "hidden=0"),
        (LSTMSlowNet, {"patch": 0}, "patch=0"),
    ],
)
def test_bad_arguments_are_named(net: type, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        net(**{"layers": 3} | options)


@pytest.mark.parametrize("net", [make(MambaSlowNet, expand=4), make(LSTMSlowNet)])
@pytest.mark.parametrize("outputs", [0, 7])
def test_bad_outputs_are_named(net: nn.Module, outputs: int) -> None:
    with pytest.raises(ValueError, match=f"outputs={outputs}"):
        net(*tokens_and_layers(2, 6, 1), outputs)
