"""The bits of many layers in one launch, and when a layer may use them: on a GPU, else in Triton's interpreter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastslow as fs
import tiny
from fastslow import ops
from fastslow.binarize import DoReFa
from fastslow.ops import ahead, quantize
from fastslow.training import loop
from on_device import DEVICE, last, pytestmark  # noqa: F401


@pytest.fixture(autouse=True)
def _small_and_on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_BLOCK", 32)
    monkeypatch.setattr(ahead, "_STEP", 64)
    if DEVICE == "cpu":
        monkeypatch.setattr(quantize, "trusted", lambda *args: True)
        for module in (ahead, quantize):
            monkeypatch.setattr(module, "on_current_device", lambda x: True)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many launches for one layer there were, and how many layers were in launches for many."""
    Net().gradients()  # on a GPU the kernels are tried before they are trusted, which doesn't count
    counted: Counter[str] = Counter()
    one, many = quantize.bits, ahead.bits_of_many

    def count_one(*args: Any) -> ahead.Bits:
        counted["one"] += 1
        return one(*args)

    def count_many(table: ahead.Table) -> list[ahead.Bits]:
        counted["many"] += len(table.layers)
        return many(table)

    monkeypatch.setattr(quantize, "bits", count_one)
    monkeypatch.setattr(ahead, "bits_of_many", count_many)
    return counted


def awkward_weights() -> list[Tensor]:
    torch.manual_seed(0)
    tie = torch.cat([torch.tensor([1.0]), quantize.boundary(0.3)[-140:]])  # around the place where a bit turns
    weights = [
        torch.randn(1),
        torch.randn(17),
        torch.zeros(3, 5),
        torch.randn(33, 6),
        tie,
        quantize.boundary(1e-30)[:64],
    ]
    weights += [torch.tensor([-0.0, 0.0, float("nan"), 2.0]), torch.randn(64)]
    return [*(w.to(DEVICE) for w in weights), last(torch.randn(4, 3, 3, 3))]


@pytest.mark.parametrize("sizes", ["all", "multiples of 16"])
@pytest.mark.parametrize("shifted", ["none", "some", "all"])
def test_the_bits_of_many_layers_are_those_of_each(shifted: str, sizes: str) -> None:
    weights = [w for w in awkward_weights() if sizes == "all" or w.numel() % 16 == 0]
    looks_ahead = {"none": (), "some": range(1, len(weights), 2), "all": range(len(weights))}[shifted]
    pairs = [(w, 0.3 * torch.randn_like(w) if i in looks_ahead else None) for i, w in enumerate(weights)]
    table = ahead.Table([ahead.places(*pair) for pair in pairs])
    assert table.aligned == (sizes != "all")
    for (weight, shift), made in zip(pairs, ahead.bits_of_many(table), strict=True):
        want = quantize.bits(weight, shift)
        assert torch.equal(made.values.nan_to_num(), want.values.nan_to_num())
        assert torch.equal(made.values.isnan(), weight.isnan())
        assert torch.equal(made.largest, want.largest)
        assert made.values.stride() == weight.stride()
        assert made.values.data_ptr() % 512 == 0 or DEVICE == "cpu"
        assert made.values._base is None  # one layer's in-place changes aren't the others'
        if DEVICE == "cuda":
            plain = DoReFa().values(weight if shift is None else weight - shift)
            assert torch.equal(made.values[~weight.isnan()], plain[~weight.isnan()])


class Net(nn.Module):
    """Three binary layers, of which a pass uses those it is told to."""

    def __init__(self, method: str = "ste") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(5, 5), nn.Linear(5, 5, bias=False), nn.Linear(5, 5)])
        fs.binarize_(self, method)
        self.to(DEVICE)

    def forward(self, used: tuple[int, ...] = (0, 1, 2)) -> Tensor:
        x = torch.linspace(-1, 1, 15, device=DEVICE).view(3, 5)
        for i in used:
            x = torch.tanh(self.layers[i](x)) + x
        return x.square().sum()

    def weight(self, i: int) -> Tensor:
        layer = self.layers[i]
        assert isinstance(layer, nn.Linear)
        return layer.weight

    def gradients(self, bits: ops.BitsAhead | None = None, used: tuple[int, ...] = (0, 1, 2)) -> list[Tensor | None]:
        self.zero_grad()
        with ops.fused():
            if bits is None:
                loss = self(used)
            else:
                with bits.made():
                    loss = self(used)
        loss.backward()
        return [p.grad for p in self.parameters()]


def same(one: list[Tensor | None], other: list[Tensor | None]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a is b if a is None or b is None else torch.equal(a, b) for a, b in pairs)


def test_what_a_pass_asked_for_is_made_before_the_next(launches: Counter[str]) -> None:
    net, bits = Net(), ops.BitsAhead()
    want = net.gradients()
    launches.clear()
    assert same(net.gradients(bits), want)
    assert launches == {"one": 3}
    for _ in range(2):
        launches.clear()
        assert same(net.gradients(bits), want)
        assert launches == {"many": 3}


def test_a_layer_used_twice_or_not_at_all(launches: Counter[str]) -> None:
    net, bits = Net(), ops.BitsAhead()
    counts = []
    for used in ((0, 1, 2), (0, 1, 0), (0, 0, 1), (2,), (2,)):
        want = net.gradients(used=used)
        launches.clear()
        assert same(net.gradients(bits, used), want)
        counts.append((launches["one"], launches["many"]))
    assert counts == [(3, 0), (1, 3), (1, 2), (1, 2), (0, 1)]


def written(net: Net) -> None:
    with torch.no_grad():
        net.weight(1).neg_()


def moved(net: Net) -> None:
    net.weight(1).data = -net.weight(1).data


def transposed(net: Net) -> None:
    net.weight(1).data = net.weight(1).data.T


@pytest.mark.parametrize("change", [written, moved, transposed])
@pytest.mark.parametrize("within", [True, False])
def test_a_weight_that_has_changed(change: Callable[[Net], None], within: bool, launches: Counter[str]) -> None:
    """Within a pass or between two: its bits are made anew, by the kernel or (transposed) by the plain formulas."""
    net, bits = Net(), ops.BitsAhead()
    for _ in range(2):
        net.gradients(bits)
    handle = net.register_forward_pre_hook(lambda module, args: change(net))
    if not within:
        handle.remove()
        change(net)
    launches.clear()
    got = net.gradients(bits)
    handle.remove()
    assert launches["one"] == (change is moved or (change is written and within))
    assert launches["many"] == (3 if change is written or within else 2)  # nothing is read where a weight was
    assert same(got, net.gradients())
    launches.clear()
    assert same(got, net.gradients(bits))
    assert launches == {"many": 2 if change is transposed else 3}


@pytest.mark.parametrize("change", ["written", "replaced", "evaluation"])
def test_a_shift_that_has_changed(change: str, launches: Counter[str]) -> None:
    net, bits = Net("multifc"), ops.BitsAhead()
    fs.optimizer(net, torch.optim.SGD(net.parameters(), lr=0.1))
    layer = fs.binary_layers(net)["layers.1"]

    def turn(module: nn.Module, args: Any) -> None:
        assert layer._shift is not None
        if change == "written":
            layer._shift.copy_(2 * layer.weight.detach())
        elif change == "replaced":
            layer._shift = 2 * layer.weight.detach()
        else:
            layer.eval()

    for _ in range(2):
        net.gradients(bits)
    handle = net.register_forward_pre_hook(turn)
    launches.clear()
    got = net.gradients(bits)
    handle.remove()
    assert launches == {"many": 3, "one": 1}
    assert same(got, net.gradients())


def test_large_layers_and_other_devices_are_left_to_their_own_launches(
    launches: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, bits = Net(), ops.BitsAhead()
    monkeypatch.setattr(ahead, "_LARGEST_LAYER", 24)
    for _ in range(2):
        net.gradients(bits)
    assert launches == {"one": 6}
    monkeypatch.setattr(ahead, "_LARGEST_LAYER", 25)
    net.gradients(bits)
    monkeypatch.setattr(ahead, "on_current_device", lambda x: False)
    net.gradients(bits)
    assert launches == {"one": 12}
    with ops.fused(False), bits.made():
        net()
    assert launches == {"one": 12}


def test_a_pass_that_fails_leaves_nothing_behind(launches: Counter[str]) -> None:
    net, bits = Net(), ops.BitsAhead()
    net.gradients(bits)
    with pytest.raises(IndexError):
        net.gradients(bits, (0, 7))
    assert ahead.made_ahead(net.weight(0), None) is None
    want = net.gradients()
    assert same(net.gradients(bits), want)


@pytest.mark.parametrize("method", ["ste", "multifc", "proxquant", "adabin"])
def test_a_run_computes_the_same(method: str, monkeypatch: pytest.MonkeyPatch, launches: Counter[str]) -> None:
    """Also with methods whose weight of a forward pass is their own: they ask for no bits, or do more with them."""
    monkeypatch.setattr(loop, "fused", lambda wanted: ops.fused())
    states = []
    for made in (False, True):
        with monkeypatch.context() as patch:
            if not made:
                patch.setattr(ops.BitsAhead, "take", lambda *args: None)
            trainer = tiny.trainer(tiny.config(method, precision="float32"), device=DEVICE)
            launches.clear()
            tiny.step(trainer, 3)
            states.append(trainer.state_dict())
    assert launches["many"] == (4 if method in ("ste", "multifc") else 0)  # two layers in the second and third step
    if DEVICE == "cpu":  # cuDNN doesn't sum in a fixed order
        tiny.assert_same_state(*states)
