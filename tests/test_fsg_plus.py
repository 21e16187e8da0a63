"""fsg-plus: equal to its slow twin, exactly STE at first, blind to the sign of a weight; what it keeps and refuses."""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

import fastslow as fs
from fastslow.hypernets.segments import repeated, segment_max, segment_mean, segment_sum
from plus_twin import Twin
from reference import BINARY, tiny_task

BASES = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}
STEPS = 12


def setting(base: str = "adam", dtype: torch.dtype = torch.float64, method: str = "fsg-plus", **fields):
    net, data = tiny_task(seed=3)
    net.to(dtype)
    fs.binarize_(net, method, skip="out", **fields)
    optimizer = fs.optimizer(net, BASES[base](net.parameters()), total_steps=STEPS)
    return net, optimizer, [(x.to(dtype), y) for x, y in data]


def train(net: nn.Module, optimizer: fs.BinaryOptimizer, data: list[tuple[Tensor, Tensor]]) -> None:
    for x, y in data:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()


def weights(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


CASES = [
    ("adam", {}),
    ("adam", {"horizon": 3}),
    ("sgd", {"horizon": 3, "keep_size": False, "rho": 1.0}),
    ("sgd", {"keep_size": False, "slow": False}),
    ("adam", {"fast": False, "hidden": 3}),
    ("adam", {"horizon": 2, "flip_penalty": 5.0}),
]


@pytest.mark.parametrize(("base", "fields"), CASES)
def test_twelve_steps_equal_the_slow_twin(base, fields):
    fields = {"hidden": 5, "net_lr": 0.05, "seed": 4, **fields}
    net, optimizer, data = setting(base, **fields)
    driver = optimizer.drivers[0]
    plain, _ = tiny_task(seed=3)
    twin = Twin(plain, dict(driver.hypernetworks()), dataclasses.asdict(driver.method), BASES[base], STEPS)
    for t, batch in enumerate(data[:STEPS]):
        train(net, optimizer, [batch])
        twin.iteration(*batch)
        for (key, ours), theirs in zip(net.named_parameters(), twin.net.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9, msg=lambda m, k=key, t=t: f"{k}, {t}: {m}")
        for key, ours in driver.hypernetworks():
            torch.testing.assert_close(
                ours, twin.p[key].detach(), rtol=1e-8, atol=1e-8, msg=lambda m, k=key: f"{k}: {m}"
            )
    assert optimizer.metrics()["gain"] == pytest.approx(twin.gain, rel=1e-6)
    learned = dict(driver.hypernetworks())
    assert all(learned[name].abs().max() > 0.05 for name in learned), "every part has learned something"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("fields", [{}, {"keep_size": False, "horizon": 2}])
def test_it_is_exactly_ste_until_the_networks_have_learned(dtype, fields):
    straight, plain, data = setting(dtype=dtype, method="ste")
    frozen, still, _ = setting(dtype=dtype, net_lr=0, **fields)
    learning, optimizer, _ = setting(dtype=dtype, **fields)
    for pair in ((straight, plain), (frozen, still)):
        train(*pair, data[:6])
    assert torch.equal(weights(straight), weights(frozen))
    first, plain_first, _ = setting(dtype=dtype, method="ste")
    for pair in ((first, plain_first), (learning, optimizer)):
        train(*pair, data[:1])
    assert torch.equal(weights(first), weights(learning))
    train(learning, optimizer, data[1:6])
    assert not torch.equal(weights(straight), weights(learning))


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


@pytest.mark.parametrize("horizon", [1, 3])
def test_a_weight_and_its_negative_are_treated_alike(horizon):
    pairs = []
    for sign in (1.0, -1.0):
        net = Turned(sign)
        fs.binarize_(net, "fsg-plus", net_lr=0.05, horizon=horizon)
        pairs.append((net, fs.optimizer(net, torch.optim.Adam(net.parameters(), lr=0.02), total_steps=20)))
    generator = torch.Generator().manual_seed(1)
    flipped = 0
    for _ in range(15):
        batch = [(torch.randn(16, 7, generator=generator), torch.randint(0, 5, (16,), generator=generator))]
        before = pairs[0][0].layer.binary_weight
        for pair in pairs:
            train(*pair, batch)
        assert torch.equal(pairs[0][0].layer.weight, -pairs[1][0].layer.weight)
        flipped += int((pairs[0][0].layer.binary_weight != before).sum())
    assert flipped > 0
    assert pairs[0][1].metrics()["push"] > 0.01


@pytest.mark.parametrize("keep_size", [True, False])
def test_the_size_of_the_update_is_kept_or_free(keep_size):
    net, optimizer, data = setting(keep_size=keep_size, net_lr=0.1)
    train(net, optimizer, data[:5])
    twin, other = copy.deepcopy((net, optimizer))
    other.drivers[0].method = dataclasses.replace(other.drivers[0].method, rho=0.0)  # the base optimizer's own update
    before = {n: net.get_submodule(n).weight.detach().clone() for n in BINARY}
    train(net, optimizer, data[5:6])
    train(twin, other, data[5:6])
    for n in BINARY:
        ours, base = ((m.get_submodule(n).weight.detach() - before[n]) for m in (net, twin))
        assert not torch.allclose(ours, base, rtol=1e-3)
        ratio = float(ours.norm() / base.norm())
        assert (ratio == pytest.approx(1.0, rel=1e-9)) == keep_size


def test_zero_gradients_and_zero_rates_leave_everything_finite():
    net, optimizer, data = setting("sgd", net_lr=0.1, horizon=2, flip_penalty=1.0, dtype=torch.float32)
    train(net, optimizer, data[:3])
    for _ in range(4):
        optimizer.zero_grad()
        for parameter in net.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.0
    start = weights(net).clone()
    train(net, optimizer, data[3:6])
    assert torch.equal(weights(net), start), "no update, nothing to rework"
    assert optimizer.drivers[0].broken() is None
    assert all(math.isfinite(value) for value in optimizer.metrics().values())
    fresh, unmoved, _ = setting("sgd", dtype=torch.float32)
    for parameter in fresh.parameters():
        parameter.grad = torch.zeros_like(parameter)
    unmoved.step()
    assert unmoved.drivers[0].broken() is None


def test_a_layer_without_gradient_is_left_out_of_that_step():
    net, optimizer, data = setting(net_lr=0.05)
    train(net, optimizer, data[:3])
    driver = optimizer.drivers[0]
    part = slice(sum(driver.sizes[:2]), None)

    def remembered() -> list[Tensor]:
        return [net.hidden.weight.detach(), *(driver.tensors[key][..., part] for key in ("averages", "flips"))]

    before = [value.clone() for value in remembered()]
    x, y = data[3]
    optimizer.zero_grad()
    F.cross_entropy(net(x), y).backward()
    net.hidden.weight.grad = None
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, remembered(), strict=True))
    assert not driver.tensors["signs"][part].any(), "nothing is learned from a step that wasn't taken"
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


def test_progress_is_seen_where_it_is_known():
    net, optimizer, data = setting()
    train(net, optimizer, data[:7])
    assert float(optimizer.drivers[0].tensors["features"][-1, 0]) == 0.5
    net, data = tiny_task()
    fs.binarize_(net, "fsg-plus", skip="out")
    optimizer = fs.optimizer(net, torch.optim.SGD(net.parameters(), lr=0.1))
    train(net, optimizer, data[:3])
    assert not optimizer.drivers[0].tensors["features"][-1].any()


def test_networks_from_a_file_stay_as_they_are_or_learn_on(tmp_path):
    path = tmp_path / "nets.safetensors"
    net, optimizer, data = setting(net_lr=0.1, hidden=4)
    train(net, optimizer, data)
    learned = {n: p.clone() for n, p in optimizer.drivers[0].hypernetworks() if n != "slow.lre"}
    save_file(learned, path)
    frozen, still, _ = setting(net_lr=0, hidden=4, nets=str(path))
    train(frozen, still, data[:3])
    for name, part in still.drivers[0].hypernetworks():
        assert torch.equal(part, learned[name]) if name in learned else not part.any()
    straight, plain, _ = setting(method="ste")
    train(straight, plain, data[:3])
    assert not torch.equal(weights(straight), weights(frozen))
    assert still.metrics()["update_cosine"] < 1
    wrong = [({"hidden": 5}, r"with hidden=5 it must be \(5, 6\)"), ({"hidden": 4, "slow": False}, "set fast and slow")]
    for fields, sentence in wrong:
        with pytest.raises(ValueError, match=sentence):
            setting(nets=str(path), **fields)
    save_file({"bias": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match=r"'fast\.first' is missing"):
        setting(nets=str(path))
    with pytest.raises(FileNotFoundError, match="no weights at nowhere; "):
        setting(nets="nowhere")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"rho": 1.5}, "^rho=1.5: give a number between 0"),
        ({"horizon": 0}, "^horizon=0: give a whole number of at least 1"),
        ({"hidden": 0}, "^hidden=0: give a whole number of at least 1"),
        ({"net_lr": -1.0}, "^net_lr=-1.0: it can't be negative"),
        ({"flip_penalty": -1.0}, "^flip_penalty=-1.0: it can't be negative"),
        ({"fast": False, "slow": False}, "use the method ste"),
        ({"nets": 3}, "^nets=3: give the path of a .safetensors file"),
        ({"keep_size": 2}, "takes True or False"),
    ],
)
def test_bad_fields_are_refused(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        fs.get_method("fsg-plus", **fields)


def test_states_of_other_things_are_refused():
    _, optimizer, _ = setting()
    _, other, _ = setting(hidden=3)
    with pytest.raises(ValueError, match="isn't one of fsg-plus with these fields and layers"):
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
