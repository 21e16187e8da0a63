"""The LSTM slow-net's kernels against float64: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import copy

import pytest
import torch

from fastslow.hypernets import kernels
from fastslow.hypernets.slow import LSTMSlowNet
from on_device import DEVICE, pytestmark  # noqa: F401


@pytest.mark.parametrize("size", [1.0, 1e-4])
def test_sequences_are_those_of_float64(size, monkeypatch):
    from fastslow.hypernets.kernels import lstm_launch

    sizes, layers, hidden = ([30, 1, 9], [2, 0, 1], 5) if DEVICE == "cpu" else ([5000, 1, 300], [2, 0, 1], 100)
    monkeypatch.setattr(lstm_launch, "_PIECE", 16 if DEVICE == "cpu" else 1024)
    torch.manual_seed(0)
    net = LSTMSlowNet(3, hidden=hidden)
    twin = copy.deepcopy(net).double()
    history, cotangent = size * torch.randn(3, sum(sizes)), torch.randn(sum(sizes))
    want = twin.per_weight(history.double(), sizes, layers, reference=True)
    want.backward(cotangent.double())
    net = net.to(DEVICE)
    got = lstm_launch.sequence(net, history.to(DEVICE), sizes, layers)
    again = lstm_launch.sequence(net, history.to(DEVICE), sizes, layers, got.detach())
    assert torch.equal(again, got)
    again.backward(cotangent.to(DEVICE))
    pairs = [("output", got, want)]
    for (name, p), q in zip(net.named_parameters(), twin.parameters(), strict=True):
        pairs.append((name, p.grad, q.grad))
    for name, a, b in pairs:
        error = float((a.detach().cpu().double() - b.detach()).norm() / b.detach().norm())
        assert error < (1e-5 if DEVICE == "cpu" else 3e-3), f"{name}: {error:.1e}"  # on a GPU in TF32


def test_the_kernels_are_trusted_only_where_they_agree(monkeypatch, caplog):
    from fastslow.hypernets.kernels import lstm_launch

    device = torch.device(DEVICE)
    kernels.lstm_trusted.cache_clear()
    assert kernels.lstm_trusted(device)
    right = lstm_launch.sequence
    for wrong in (lambda *args: 1.01 * right(*args), lambda *args: 1 / 0):
        monkeypatch.setattr(lstm_launch, "sequence", wrong)
        kernels.lstm_trusted.cache_clear()
        assert not kernels.lstm_trusted(device)
    kernels.lstm_trusted.cache_clear()
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
