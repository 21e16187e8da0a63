"""The fast-net: one scalar and its explicit MLP are the same thing."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from fastslow.hypernets.fast import FastNet


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
@pytest.mark.parametrize("init", ["orthogonal", "default"])
def test_scalar_is_the_explicit_mlp(depth: int, init) -> None:
    torch.manual_seed(depth)
    net = FastNet(depth=depth, hidden=10, init=init).double()
    x = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
    weights = torch.randn_like(x)
    variables = [x, *net.parameters()]
    short, explicit = net(x), net(x, explicit=True)
    torch.testing.assert_close(short, explicit, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(short, net.scalar() * x, rtol=0, atol=0)
    got = torch.autograd.grad((short * weights).sum(), variables)
    want = torch.autograd.grad((explicit * weights).sum(), variables)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("relu", torch.relu),
        ("tanh", torch.tanh),
        ("silu", torch.nn.functional.silu),
        ("gelu", torch.nn.functional.gelu),
    ],
)
def test_nonlinear_net_by_hand(name: str, function) -> None:
    net = FastNet(depth=3, hidden=5, nonlinearity=name)
    w1, w2, w3 = net.parameters()
    x = torch.linspace(-2, 2, 7)
    by_hand = [(w3 @ function(w2 @ function(w1[:, 0] * v))).squeeze() for v in x]
    torch.testing.assert_close(net(x), torch.stack(by_hand))


@settings(deadline=None, max_examples=25)
@given(
    shape=st.lists(st.integers(0, 4), max_size=4),
    depth=st.integers(1, 4),
    hidden=st.integers(1, 8),
    nonlinearity=st.sampled_from([None, "tanh"]),
    explicit=st.booleans(),
)
def test_any_shape_keeps_its_shape(
    shape: list[int], depth: int, hidden: int, nonlinearity: str | None, explicit: bool
) -> None:
    net = FastNet(depth=depth, hidden=hidden, nonlinearity=nonlinearity)
    x = torch.randn(shape)
    out = net(x, explicit=explicit)
    assert out.shape == x.shape
    assert out.dtype == x.dtype


def test_orthogonal_factors_make_k_a_cosine() -> None:
    signs = set()
    for seed in range(20):
        torch.manual_seed(seed)
        net = FastNet()
        w1, w2, w3 = net.parameters()
        torch.testing.assert_close(w2 @ w2.T, torch.eye(100), rtol=0, atol=1e-5)
        torch.testing.assert_close(torch.stack([w1.norm(), w3.norm()]), torch.ones(2))
        k = net.scalar().item()
        assert abs(k) <= 1
        signs.add(k > 0)
    assert signs == {True, False}


def test_the_same_seed_gives_the_same_net() -> None:
    nets = []
    for _ in range(2):
        torch.manual_seed(3)
        nets.append(FastNet())
    for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 0}, "depth=0"),
        ({"hidden": 0}, "hidden=0"),
        ({"nonlinearity": "swish"}, "nonlinearity='swish'"),
        ({"init": "zeros"}, "init='zeros'"),
    ],
)
def test_bad_arguments_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FastNet(**options)


def test_a_nonlinear_net_has_no_scalar() -> None:
    with pytest.raises(ValueError, match="nonlinearity='relu'"):
        FastNet(nonlinearity="relu").scalar()
