"""The optimizer wrapper in every corner: schedulers, scaling, groups, copies, and what it refuses."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler as schedulers

import fastslow as fs
from fastslow.methods import METHODS, Method, MethodInfo
from reference import BINARY, tiny_task

FIELDS = {
    "ste": {},
    "fcgrad": {"hidden": 4},
    "multifc": {"hidden": 4},
    "lstmfc": {"hidden": 3},
    "fsg": {"expand": 4, "d_state": 2},
    "fsg-code": {"expand": 4, "d_state": 2},
    "fsg-lstm": {"slow_hidden": 3},
    "fsg-weight": {"expand": 4, "d_state": 2},
    "fsg-plus": {"band": 1.0},
}
LOOKAHEAD = [name for name in FIELDS if name not in ("ste", "fsg-plus")]


def setting(method="fsg-weight", base=torch.optim.Adam, lr=0.01, dtype=torch.float64, **kwargs):
    net, data = tiny_task()
    net.to(dtype)
    fs.binarize_(net, method, skip="out", **FIELDS[method])
    return net, fs.optimizer(net, base(net.parameters(), lr=lr), **kwargs), [(x.to(dtype), y) for x, y in data]


def train(net, optimizer, data, scheduler=None):
    for x, y in data:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def weights(net):
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


@pytest.mark.parametrize(
    ("make", "per_step"),
    [
        (lambda o: schedulers.StepLR(o, 2), True),
        (lambda o: schedulers.CosineAnnealingLR(o, 10), True),
        (lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=20), True),
        (lambda o: schedulers.LinearLR(o), True),
        (lambda o: schedulers.SequentialLR(o, [schedulers.ConstantLR(o, 0.5, 2), schedulers.StepLR(o, 1)], [3]), True),
        (lambda o: schedulers.ReduceLROnPlateau(o, patience=0), False),
        (lambda o: schedulers.LambdaLR(o, lambda e: 0.9**e), True),
    ],
)
@pytest.mark.parametrize("method", ["ste", "fsg-weight", "multifc"])
def test_every_scheduler(make, per_step, method):
    net, optimizer, data = setting(method)
    plain = torch.optim.Adam([nn.Parameter(torch.zeros(1))], lr=0.01)
    ours, theirs = make(optimizer), make(plain)
    for x, y in data[:6]:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        plain.step()
        if per_step:
            ours.step()
            theirs.step()
        else:
            ours.step(1.0)
            theirs.step(1.0)
        assert optimizer.param_groups[0]["lr"] == plain.param_groups[0]["lr"]
        assert optimizer.base.param_groups is optimizer.param_groups
    assert torch.isfinite(weights(net)).all()


def test_schedulers_act_one_step_later_on_the_look_ahead():
    net, optimizer, data = setting("fsg-weight", torch.optim.SGD)
    train(net, optimizer, data[:3])
    driver = optimizer.drivers[0]
    assert driver.etas == [0.01] * 3
    optimizer.param_groups[0]["lr"] = 0.005
    assert driver.etas == [0.01] * 3
    train(net, optimizer, data[3:4])
    assert driver.etas == [0.005] * 3


@pytest.mark.parametrize("method", ["ste", "fsg-weight", "multifc", "fsg-plus"])
def test_gradient_scaler_skips_an_inf_step_and_unscales(method):
    """Scaling by a power of two is exact: a scaled run equals the plain one, and an inf step leaves all as it is."""
    (net, optimizer, data), (twin, plain, _) = setting(method), setting(method)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=10**6)
    for i, (x, y) in enumerate(data[:6]):
        if i == 3:  # an overflow in between
            before = weights(net).clone()
            state = copy.deepcopy(optimizer.state_dict()["fastslow"])
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(net(x), y)).backward()
            net.conv.weight.grad[0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
            assert torch.equal(weights(net), before)
            assert repr(optimizer.state_dict()["fastslow"]) == repr(state)
        for model, opt, scale in ((net, optimizer, scaler), (twin, plain, None)):
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            if scale is None:
                loss.backward()
                opt.step()
            else:
                scale.scale(loss).backward()
                scale.step(opt)
                scale.update()
        net.norm.load_state_dict(twin.norm.state_dict())  # the skipped pass moved the running statistics
    torch.testing.assert_close(weights(net), weights(twin), rtol=1e-12, atol=1e-12)


def test_amp_flags_of_the_base_do_not_leak():
    """Fused Adam takes scaled gradients itself; the wrapper must not, since it reads them first."""
    net, _ = tiny_task()
    net.float()
    fs.binarize_(net, "fsg-weight", skip="out", **FIELDS["fsg-weight"])
    base = torch.optim.Adam(net.parameters(), fused=True)
    assert getattr(base, "_step_supports_amp_scaling", False)
    assert not getattr(fs.optimizer(net, base), "_step_supports_amp_scaling", False)


def test_clipping_acts_on_the_raw_gradient_and_so_on_the_history():
    net, optimizer, data = setting("fsg-weight")
    for x, y in data[:3]:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
        clipped = net.conv.weight.grad.clone()
        optimizer.step()
        assert torch.equal(optimizer.drivers[0].stored.newest(0), clipped.reshape(-1))


def test_accumulation_equals_one_batch():
    (net, optimizer, data), (twin, other, _) = setting("fsg-weight"), setting("fsg-weight")
    for model in (net, twin):
        model.norm = nn.Identity()  # its statistics depend on the batch
    for x, y in data[:4]:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        other.zero_grad()
        for part in (slice(0, 4), slice(4, 8)):
            (F.cross_entropy(twin(x[part]), y[part]) / 2).backward()
        other.step()
    torch.testing.assert_close(weights(net), weights(twin), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", LOOKAHEAD)
def test_two_groups_keep_their_own_rates(method):
    net, data = tiny_task()
    fs.binarize_(net, method, skip="out", **FIELDS[method])
    first = [net.conv.weight]
    rest = [p for p in net.parameters() if p is not first[0]]
    base = torch.optim.SGD([{"params": first, "lr": 0.0}, {"params": rest, "lr": 0.05, "weight_decay": 0.1}], lr=1.0)
    optimizer = fs.optimizer(net, base)
    start = net.conv.weight.detach().clone()
    train(net, optimizer, data[:4])
    assert torch.equal(net.conv.weight, start)
    assert optimizer.drivers[0].etas == [0.0, 0.05, 0.05]
    if method.startswith("fsg"):
        assert not net.conv._shift.any()
        assert net.grouped._shift.any()


def test_groups_added_later_are_the_base_optimizers():
    _, optimizer, _ = setting("ste")
    extra = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer.add_param_group({"params": [extra], "lr": 0.5})
    assert optimizer.base.param_groups[1]["lr"] == 0.5
    assert len(optimizer.param_groups) == 2


@pytest.mark.parametrize("method", list(FIELDS))
def test_a_frozen_layer_stays_and_takes_no_part(method):
    net, data = tiny_task()
    fs.binarize_(net, method, skip="out", **FIELDS[method])
    net.grouped.weight.requires_grad_(False)
    optimizer = fs.optimizer(net, torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=0.01))
    start = net.grouped.weight.clone()
    train(net, optimizer, data[:4])
    assert torch.equal(net.grouped.weight, start)
    if method != "ste":
        assert [slot.name for slot in optimizer.drivers[0].slots] == ["conv", "hidden"]


@pytest.mark.parametrize("method", [name for name in FIELDS if name != "ste"])
def test_a_layer_that_wakes_up_needs_a_new_wrapper(method):
    net, data = tiny_task()
    fs.binarize_(net, method, skip="out", **FIELDS[method])
    net.grouped.weight.requires_grad_(False)
    optimizer = fs.optimizer(net, torch.optim.Adam(net.parameters(), lr=0.01))
    train(net, optimizer, data[:2])
    net.grouped.weight.requires_grad_(True)
    for other in (optimizer, pickle.loads(pickle.dumps((net, optimizer)))[1]):
        with pytest.raises(RuntimeError, match=r"^grouped didn't train when fs\.optimizer was called"):
            other.step()
    optimizer = fs.optimizer(net, optimizer.base)
    train(net, optimizer, data[2:6])
    assert [slot.name for slot in optimizer.drivers[0].slots] == ["conv", "grouped", "hidden"]


@pytest.mark.parametrize("method", LOOKAHEAD)
def test_nobody_looks_ahead_of_a_step_that_does_not_come(method):
    net, optimizer, data = setting(method)
    train(net, optimizer, data[:6])
    layers = list(fs.binary_layers(net).values())

    def looks_ahead():
        return [not torch.equal(layer.lookahead_weight(), layer.weight) for layer in layers]

    assert all(looks_ahead())
    for layer in layers:  # two phases: the binary layers are done
        layer.weight.requires_grad_(False)
        assert torch.equal(layer.method.forward_weight(layer), layer.binary_weight)
    assert not any(looks_ahead())
    for layer in layers:
        layer.weight.requires_grad_(True)
    assert all(looks_ahead())
    fs.optimizer(net, torch.optim.SGD(net.parameters(), lr=0.1))  # its first iteration has nothing to look ahead with
    assert not any(looks_ahead())


@pytest.mark.parametrize("method", LOOKAHEAD)
def test_a_layer_without_gradient_is_left_out_of_that_step(method):
    net, optimizer, data = setting(method)
    train(net, optimizer, data[:3])
    driver = optimizer.drivers[0]
    before = (net.hidden.weight.detach().clone(), net.hidden._shift.clone(), driver.hat.split(driver.sizes)[2].clone())
    x, y = data[3]
    optimizer.zero_grad()
    F.cross_entropy(net(x), y).backward()
    net.hidden.weight.grad = None
    optimizer.step()
    after = (net.hidden.weight, net.hidden._shift, driver.hat.split(driver.sizes)[2])
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    if hasattr(driver, "stored") and driver.memory is None:
        assert driver.stored.counts == [4, 4, 3]
    train(net, optimizer, data[4:])
    assert torch.isfinite(weights(net)).all()


@pytest.mark.parametrize("method", ["fsg-weight", "multifc"])
def test_a_layer_that_joins_later_waits_one_iteration(method):
    net, optimizer, data = setting(method)
    start = net.hidden.weight.detach().clone()
    for i, (x, y) in enumerate(data[:4]):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        if i < 2:
            net.hidden.weight.grad = None
        optimizer.step()
        assert torch.equal(net.hidden.weight, start) == (i < 3)
    assert torch.isfinite(weights(net)).all()


@pytest.mark.parametrize("method", list(FIELDS))
def test_evaluation_between_steps_changes_nothing(method):
    (net, optimizer, data), (twin, other, _) = setting(method), setting(method)
    for x, y in data[:5]:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        net.eval()
        with torch.no_grad():
            logits = net(x)
        assert torch.equal(logits, fs.freeze(net)(x)), "evaluation uses the committed weights"
        net.train()
        optimizer.step()
        train(twin, other, [(x, y)])
    assert torch.equal(weights(net), weights(twin))


def test_gradients_of_an_evaluation_mode_pass_are_dropped():
    net, optimizer, data = setting("fsg-weight")
    train(net, optimizer, data[:3])
    before = {n: net.get_submodule(n).weight.detach().clone() for n in BINARY}
    counts = list(optimizer.drivers[0].stored.counts)
    net.eval()
    with pytest.warns(UserWarning, match="evaluation mode"):
        train(net, optimizer, data[3:4])
    assert optimizer.drivers[0].stored.counts == counts
    assert all(torch.equal(net.get_submodule(n).weight, before[n]) for n in BINARY)


@pytest.mark.parametrize("method", list(FIELDS))
@pytest.mark.parametrize(
    "copier", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=["copy", "pickle"]
)
def test_copies_of_model_and_optimizer_go_on_alike(method, copier):
    net, optimizer, data = setting(method)
    scheduler = schedulers.StepLR(optimizer, 1000)
    train(net, optimizer, data[:4], scheduler)
    twin, other = copier((net, optimizer))
    assert other.base.param_groups[0]["params"][0] is next(twin.parameters())
    train(net, optimizer, data[4:8])
    train(twin, other, data[4:8])
    assert torch.equal(weights(net), weights(twin))


@pytest.mark.parametrize("method", list(FIELDS))
@pytest.mark.parametrize("optimizer_first", [False, True])
def test_state_dict_restores_every_part(method, optimizer_first):
    net, optimizer, data = setting(method)
    train(net, optimizer, data[:5])
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    twin, other, _ = setting(method)
    loads = [lambda: twin.load_state_dict(saved["net"]), lambda: other.load_state_dict(saved["optimizer"])]
    for load in reversed(loads) if optimizer_first else loads:
        load()
    train(net, optimizer, data[5:])
    train(twin, other, data[5:])
    assert torch.equal(weights(net), weights(twin))
    assert set(optimizer.state_dict()) == {"state", "param_groups", "fastslow"}


def test_different_global_seeds_give_the_same_hypernetworks():
    nets = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        net, _ = tiny_task()
        torch.manual_seed(seed)
        fs.binarize_(net, "fsg", skip="out", **FIELDS["fsg"])
        before = torch.random.get_rng_state()
        optimizer = fs.optimizer(net, torch.optim.SGD(net.parameters(), lr=0.1))
        assert torch.equal(before, torch.random.get_rng_state()), "building it must not consume the global stream"
        nets.append(weights(optimizer.drivers[0].nets))
    assert torch.equal(*nets)


def test_methods_can_be_mixed_in_one_model():
    net, data = tiny_task()
    fs.binarize_(net, "ste", only="conv")
    fs.binarize_(net, "fsg-weight", only="grouped", **FIELDS["fsg-weight"])
    fs.binarize_(net, "multifc", only="hidden", hidden=3)
    optimizer = fs.optimizer(net, torch.optim.Adam(net.parameters(), lr=0.01))
    assert len(optimizer.drivers) == 3
    start = weights(net).clone()
    train(net, optimizer, data[:1])
    assert torch.equal(weights(net), start)
    train(net, optimizer, data[1:4])
    assert not torch.equal(net.conv.weight.reshape(-1), start[: net.conv.weight.numel()])


def test_a_closure_is_called_once_and_first():
    net, optimizer, data = setting("fsg-weight")
    calls = []

    def closure():
        calls.append(1)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(data[0][0]), data[0][1])
        loss.backward()
        return loss

    for step in range(1, 4):
        assert optimizer.step(closure).item() > 0
        assert len(calls) == step


def test_step_hooks_and_profiler_see_the_wrapper():
    net, optimizer, data = setting("ste")
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    train(net, optimizer, data[:2])
    assert seen == ["before", "after"] * 2


def test_metrics_name_the_cosine():
    net, optimizer, data = setting("fsg-weight")
    train(net, optimizer, data[:3])
    assert -1 <= optimizer.metrics()["gradient_cosine"] <= 1
    assert setting("ste")[1].metrics() == {}


def test_half_precision_weights_train_with_float32_hypernetworks():
    net, optimizer, data = setting("fsg-weight", torch.optim.SGD, dtype=torch.bfloat16)
    train(net, optimizer, data[:3])
    assert next(optimizer.drivers[0].nets.parameters()).dtype == torch.float32
    assert torch.isfinite(weights(net)).all()


# -- what it refuses --------------------------------------------------------------------------------------------------


def test_learned_methods_refuse_to_train_without_the_wrapper():
    net, data = tiny_task()
    fs.binarize_(net, "fsg", skip="out")
    net(data[0][0])  # looking is free
    with pytest.raises(RuntimeError, match=r"fs\.optimizer"):
        F.cross_entropy(net(data[0][0]), data[0][1]).backward()


def test_the_inner_optimizer_refuses_to_be_stepped_directly():
    net, optimizer, data = setting("ste")
    F.cross_entropy(net(data[0][0]), data[0][1]).backward()
    with pytest.raises(RuntimeError, match="stepped directly"):
        optimizer.base.step()
    optimizer.step()


def test_a_scheduler_on_the_inner_optimizer_works_and_says_so():
    net, optimizer, data = setting("ste")
    scheduler = schedulers.StepLR(optimizer.base, 1)
    with pytest.warns(UserWarning, match="lr scheduler was built on the inner optimizer"):
        train(net, optimizer, data[:1])
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001)
    train(net, optimizer, data[1:2])  # said once


def test_the_newest_wrapper_drives():
    net, old, data = setting("fsg-weight")
    new = fs.optimizer(net, old.base)
    train(net, new, data[:2])
    with pytest.raises(RuntimeError, match="newer"):
        old.step()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda net: torch.optim.SGD(net.out.parameters(), lr=0.1), ValueError, "weight of conv, grouped, hidden"),
        (lambda net: torch.optim.LBFGS(net.parameters()), ValueError, "LBFGS"),
        (lambda net: net, TypeError, "no torch optimizer"),
        (lambda net: fs.optimizer(net, torch.optim.SGD(net.parameters(), lr=0.1)), ValueError, "wrapped already"),
    ],
)
def test_bad_base_optimizers(make, error, message):
    net, _ = tiny_task()
    fs.binarize_(net, "ste", skip="out")
    with pytest.raises(error, match=message):
        fs.optimizer(net, make(net))


def test_a_model_without_binary_layers():
    net, _ = tiny_task()
    with pytest.raises(ValueError, match="no binary layers"):
        fs.optimizer(net, torch.optim.SGD(net.parameters(), lr=0.1))


def test_total_steps_where_a_schedule_needs_it(monkeypatch):
    class Scheduled(Method):
        name = "scheduled-test"
        scheduled = True

    monkeypatch.setitem(METHODS._entries, "scheduled-test", MethodInfo("scheduled-test", "", "", "", Scheduled))
    net, data = tiny_task()
    fs.binarize_(net, "scheduled-test", skip="out")
    base = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"follows a schedule; write fs\.optimizer\(model, base, total_steps"):
        fs.optimizer(net, base)
    with pytest.raises(ValueError, match="total_steps=0"):
        fs.optimizer(net, base, total_steps=0)
    optimizer = fs.optimizer(net, base, total_steps=4)
    seen = [float(net.conv._progress)]
    for batch in data[:6]:
        train(net, optimizer, [batch])
        seen.append(float(net.conv._progress))
    assert seen == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_states_of_other_things_are_refused():
    net, optimizer, data = setting("fsg-weight")
    train(net, optimizer, data[:2])
    with pytest.raises(ValueError, match="plain optimizer"):
        optimizer.load_state_dict(optimizer.base.state_dict())
    other, _ = tiny_task()
    fs.binarize_(other, "fsg-weight", skip=["out", "conv"], **FIELDS["fsg-weight"])
    wrapped = fs.optimizer(other, torch.optim.Adam(other.parameters()))
    with pytest.raises(ValueError, match="other layers"):
        wrapped.load_state_dict(optimizer.state_dict())
    plain, _ = tiny_task()
    fs.binarize_(plain, "ste", skip="out")
    with pytest.raises(ValueError, match="other methods: fsg-weight; here ste"):
        fs.optimizer(plain, torch.optim.Adam(plain.parameters())).load_state_dict(optimizer.state_dict())
