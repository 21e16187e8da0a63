"""fsg-plus: equal to its slow twin, exactly STE at first, blind to the sign of a weight; what it learns and refuses."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastslow as fs
from fastslow.hypernets.segments import repeated, segment_max, segment_mean, segment_sum
from fastslow.methods.fsg_plus import factors
from plus_twin import Twin
from reference import BINARY, tiny_task

BASES = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


def setting(base: str = "adam", dtype: torch.dtype = torch.float64, method: str = "fsg-plus", **fields):
    net, data = tiny_task(seed=3)
    net.to(dtype)
    if method == "fsg-plus":
        fields = {"band": 1.0, **fields}
    fs.binarize_(net, method, skip="out", **fields)
    return net, fs.optimizer(net, BASES[base](net.parameters())), [(x.to(dtype), y) for x, y in data]


def train(net: nn.Module, optimizer: fs.BinaryOptimizer, data: list[tuple[Tensor, Tensor]]) -> None:
    for x, y in data:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()


def weights(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


@pytest.mark.parametrize(
    ("base", "fields"),
    [
        ("adam", {}),
        ("sgd", {"strength": 3.0, "decay": 0.9}),
        ("adam", {"band": 0.4, "decay": 0.0, "secant": False}),
    ],
)
def test_twelve_steps_equal_the_slow_twin(base, fields):
    net, optimizer, data = setting(base, **fields)
    driver = optimizer.drivers[0]
    plain, _ = tiny_task(seed=3)
    twin = Twin(plain, dataclasses.asdict(driver.method), BASES[base])
    known = 0
    for t, batch in enumerate(data):
        known += twin.factors()[BINARY[0]] > 0
        train(net, optimizer, [batch])
        twin.iteration(*batch)
        for (key, ours), theirs in zip(net.named_parameters(), twin.net.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9, msg=lambda m, k=key, t=t: f"{k}, {t}: {m}")
        k = factors(driver.tensors["turned"], driver.tensors["expected"])
        torch.testing.assert_close(k.tolist(), list(twin.factors().values()), rtol=1e-9, atol=1e-9)
    assert known > 1, "in some of the steps there is a curvature to see"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_it_is_exactly_ste_until_something_is_known(dtype):
    straight, plain, data = setting(dtype=dtype, method="ste")
    off, without, _ = setting(dtype=dtype, strength=0.0)
    for pair in ((straight, plain), (off, without)):
        train(*pair, data[:6])
    assert torch.equal(weights(straight), weights(off))
    first, plain_first, _ = setting(dtype=dtype, method="ste")
    learning, optimizer, _ = setting(dtype=dtype)
    for pair in ((first, plain_first), (learning, optimizer)):
        train(*pair, data[:1])
    assert torch.equal(weights(first), weights(learning))
    train(learning, optimizer, data[1:6])
    assert not torch.equal(weights(straight), weights(learning))


class Quadratic(nn.Module):
    """A loss whose curvature along every weight is known, and noise of a known size in its gradients."""

    def __init__(self, size: int, curvature: float) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.layer = nn.Linear(size, size, bias=False, dtype=torch.float64)
        with torch.no_grad():
            self.layer.weight.copy_(0.1 * torch.randn(size, size, generator=generator))
        self.centre = torch.randn(size, size, generator=generator, dtype=torch.float64)
        self.curvature = curvature

    def forward(self, noise: Tensor) -> Tensor:
        w = self.layer(torch.eye(self.layer.in_features, dtype=torch.float64)).T
        return self.curvature / 2 * (w - self.centre).square().sum() + (noise * w).sum()


def test_the_curvature_of_a_quadratic_loss_is_found_and_bits_settle():
    """STE's bits flip to the end; with the curvature each weight takes the better of its two bits, and keeps it."""
    nets = {}
    for method in ("ste", "fsg-plus"):
        net = Quadratic(60, 0.02)
        fs.binarize_(net, method, **({} if method == "ste" else {"strength": 1.0, "secant": False}))
        optimizer = fs.optimizer(net, torch.optim.Adam(net.parameters(), lr=2e-3))
        generator = torch.Generator().manual_seed(1)
        flips = 0
        for step in range(1500):
            before = net.layer.binary_weight
            optimizer.zero_grad()
            net(0.05 * torch.randn(60, 60, generator=generator, dtype=torch.float64)).backward()
            optimizer.step()
            flips += int((net.layer.binary_weight != before).sum()) if step >= 1000 else 0
        nets[method] = net, optimizer, flips
    (ste, _, ste_flips), (plus, optimizer, plus_flips) = nets["ste"], nets["fsg-plus"]
    driver = optimizer.drivers[0]
    r = float(plus.layer.weight.detach().tanh().abs().max())
    k = float(factors(driver.tensors["turned"], driver.tensors["expected"]))
    v = float(driver.tensors["squares"].mean()) / (1 - 0.999**1500)
    # dL/dW is dL/dWb / r: h = curvature / r^2 in the units of the latent weight.
    assert k * v == pytest.approx(0.02 / r**2, rel=0.3)
    assert plus_flips < ste_flips / 3
    far = plus.centre.abs() > 0.2
    right = [(net.layer.binary_weight * net.centre > 0)[far].double().mean() for net in (ste, plus)]
    assert right[1] > right[0]
    assert right[1] > 0.95


class Turned(nn.Module):
    """A linear layer whose output is multiplied by +1 or -1, and so is its weight."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.sign = nn.Linear(7, 5, bias=False), sign
        with torch.no_grad():
            self.layer.weight.mul_(sign)

    def forward(self, x: Tensor) -> Tensor:
        return self.sign * self.layer(x)


def test_a_weight_and_its_negative_are_treated_alike():
    pairs = []
    for sign in (1.0, -1.0):
        net = Turned(sign)
        fs.binarize_(net, "fsg-plus", band=2.0)
        pairs.append((net, fs.optimizer(net, torch.optim.Adam(net.parameters(), lr=0.02))))
    generator = torch.Generator().manual_seed(1)
    flipped = pushed = 0
    for _ in range(15):
        batch = [(torch.randn(16, 7, generator=generator), torch.randint(0, 5, (16,), generator=generator))]
        before = pairs[0][0].layer.binary_weight
        for pair in pairs:
            train(*pair, batch)
        assert torch.equal(pairs[0][0].layer.weight, -pairs[1][0].layer.weight)
        flipped += int((pairs[0][0].layer.binary_weight != before).sum())
        pushed += pairs[0][1].metrics()["push"] > 0.01
    assert flipped > 0
    assert pushed > 3


def test_zero_gradients_and_zero_weights_leave_everything_finite():
    net, optimizer, data = setting("sgd", dtype=torch.float32)
    train(net, optimizer, data[:3])
    with torch.no_grad():
        net.hidden.weight.zero_()
    for size in (0.0, 1e-30):
        optimizer.zero_grad()
        for parameter in net.parameters():
            parameter.grad = torch.full_like(parameter, size)
        optimizer.step()
    assert optimizer.drivers[0].broken() is None
    assert all(math.isfinite(value) for value in optimizer.metrics().values())
    assert torch.isfinite(weights(net)).all()
    fresh, unmoved, _ = setting("sgd", dtype=torch.float32)
    assert unmoved.metrics() == {}
    for parameter in fresh.parameters():
        parameter.grad = torch.zeros_like(parameter)
    unmoved.step()
    assert unmoved.drivers[0].broken() is None


def test_a_layer_without_gradient_is_left_out_of_that_step():
    net, optimizer, data = setting()
    train(net, optimizer, data[:3])
    driver = optimizer.drivers[0]
    part = slice(sum(driver.sizes[:2]), None)

    def remembered() -> list[Tensor]:
        layer = [driver.tensors[key][2] for key in ("steps", "turned", "expected")]
        return [net.hidden.weight.detach(), driver.tensors["squares"][part], *layer]

    before = [value.clone() for value in remembered()]
    x, y = data[3]
    optimizer.zero_grad()
    F.cross_entropy(net(x), y).backward()
    net.hidden.weight.grad = None
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, remembered(), strict=True))
    assert driver.tensors["steps"].tolist() == [4, 4, 3]
    train(net, optimizer, data[4:])
    assert torch.isfinite(weights(net)).all()


def test_accumulation_equals_one_batch():
    (net, optimizer, data), (twin, other, _) = setting(), setting()
    for model in (net, twin):
        model.norm = nn.Identity()  # its statistics depend on the batch
    for x, y in data[:4]:
        train(net, optimizer, [(x, y)])
        other.zero_grad()
        for part in (slice(0, 4), slice(4, 8)):
            (F.cross_entropy(twin(x[part]), y[part]) / 2).backward()
        other.step()
    torch.testing.assert_close(weights(net), weights(twin), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"strength": -1.0}, "^strength=-1.0: it can't be negative"),
        ({"decay": 1.0}, "^decay=1.0: give a number from 0"),
        ({"band": 0.0}, "^band=0.0: give a positive number"),
    ],
)
def test_bad_fields_are_refused(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        fs.get_method("fsg-plus", **fields)


@pytest.mark.parametrize(
    ("fields", "binarizer", "sentence"),
    [
        ({}, {"bits": 2}, "bits=2: fsg-plus measures the curvature between the two values of one bit"),
        (
            {"secant": False},
            {"binarizer": "sign"},
            "secant=False knows where the bits lie for the binarizer 'dorefa' only",
        ),
    ],
)
def test_binarizers_whose_corners_it_does_not_know_are_refused(fields, binarizer, sentence):
    with pytest.raises(ValueError, match=sentence):
        fs.binarize_(nn.Linear(4, 3), fs.get_method("fsg-plus", **fields), **binarizer)
    fs.binarize_(nn.Linear(4, 3), "fsg-plus", binarizer="sign")  # the slope between corners doesn't ask where they lie


def test_states_of_other_things_are_refused():
    _, optimizer, _ = setting()
    net, _ = tiny_task()
    fs.binarize_(net, "fsg-plus")
    other = fs.optimizer(net, BASES["adam"](net.parameters()))
    with pytest.raises(ValueError, match="isn't one of fsg-plus with these layers"):
        other.load_state_dict(optimizer.state_dict())
    net = nn.ModuleDict({"a": nn.Linear(4, 3)})
    net["b"] = nn.Linear(4, 3)
    net["b"].weight = net["a"].weight
    with pytest.raises(ValueError, match="share one weight"):
        fs.binarize_(net, "fsg-plus")


def test_reductions_along_the_last_dimension():
    sizes = [3, 1, 5]
    x = torch.randn(2, 4, 9)
    parts = x.split(sizes, -1)
    for reduced, reduce in ((segment_max, Tensor.amax), (segment_mean, Tensor.mean), (segment_sum, Tensor.sum)):
        assert torch.equal(reduced(x, sizes), torch.stack([reduce(part, -1) for part in parts], -1))
    assert torch.equal(repeated(x[..., :3], sizes).split(sizes, -1)[2], x[..., 2:3].expand(2, 4, 5))
