"""What a loop puts around a step: autocast, frozen layers, averaged copies, groups that change."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.optim.swa_utils import AveragedModel, update_bn

import fastslow as fs
from test_methods_common import ROWS, Row, binary_net, everyone, wrap
from toy import BATCHES, STEPS, ToyNet, toy_data, toy_net, train

SOME = 2 * BATCHES  # steps: RBNN fits its rotations within them
SOFTENING = ("fda", "quantnet", "mirror")  # whose soft values are a schedule, which a frozen layer follows to its bits


def bits(model: nn.Module) -> dict[str, Tensor]:
    return {name: layer.binary_weight.clone() for name, layer in fs.binary_layers(model).items()}


def steps(model: nn.Module, optimizer: fs.BinaryOptimizer, count: int, *, zeroed: bool = False) -> None:
    x, y = toy_data()
    for _ in range(count):
        optimizer.zero_grad(set_to_none=not zeroed)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


@everyone
def test_a_step_inside_autocast_is_the_step_outside(row: Row) -> None:
    found = []
    for inside in (False, True):
        model = binary_net(row)
        optimizer = wrap(model)
        x, y = toy_data()
        for _ in range(SOME):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=inside):
                optimizer.prepare()
            F.cross_entropy(model(x), y).backward()
            with torch.autocast("cpu", torch.bfloat16, enabled=inside):
                optimizer.step()
        found.append({name: value.clone() for name, value in model.state_dict().items()})
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


def test_rotations_are_fitted_in_full_precision_inside_autocast() -> None:
    plain, inside = toy_net(), toy_net()
    fs.binarize_(plain, "rbnn", skip="stem")
    with torch.autocast("cpu", torch.bfloat16):
        fs.binarize_(inside, "rbnn", skip="stem")
    torch.testing.assert_close(dict(inside.state_dict()), dict(plain.state_dict()), rtol=0, atol=0)


@everyone
@pytest.mark.parametrize("zeroed", [False, True])
def test_a_layer_frozen_in_mid_training_stays_as_it_is(row: Row, zeroed: bool) -> None:
    model = binary_net(row)
    optimizer = fs.optimizer(
        model, torch.optim.SGD(model.parameters(), lr=0.05), total_steps=STEPS, epochs=STEPS // BATCHES
    )
    steps(model, optimizer, BATCHES + 1, zeroed=zeroed)
    model.hidden.requires_grad_(False)
    before = {name: value.clone() for name, value in model.hidden.state_dict().items()}
    steps(model, optimizer, STEPS - BATCHES - 1, zeroed=zeroed)
    torch.testing.assert_close(dict(model.hidden.state_dict()), before, rtol=0, atol=0)


@pytest.mark.parametrize("row", [row for row in ROWS if row.name not in SOFTENING], ids=lambda row: row.name)
def test_a_layer_frozen_from_the_start_computes_with_its_bits_in_training_too(row: Row) -> None:
    model = binary_net(row)
    model.hidden.requires_grad_(False)
    optimizer = wrap(model)
    train(model, optimizer, 0, SOME)
    x = torch.randn(5, model.hidden.in_features)
    torch.testing.assert_close(model.hidden.train()(x), model.hidden.eval()(x))


@everyone
def test_statistics_of_an_averaged_copy_are_those_of_the_model_it_is(row: Row) -> None:
    model = binary_net(row)
    optimizer = wrap(model)
    averaged = AveragedModel(model, avg_fn=lambda _, new, __: new.clone())  # the last model, that is
    for step in range(SOME):
        train(model, optimizer, step, step + 1)
        averaged.update_parameters(model)
    x, _ = toy_data()
    same = copy.deepcopy(model)
    for each in (same, averaged):
        update_bn(x.split(32), each)
    torch.testing.assert_close(averaged.module.state_dict(), same.state_dict(), rtol=0, atol=0)


@everyone
def test_a_stack_of_models_computes_as_each_of_them(row: Row) -> None:
    models = [binary_net(row, seed=seed).eval() for seed in range(2)]
    parameters, buffers = stack_module_state(models)  # pyright: ignore[reportArgumentType]
    skeleton = copy.deepcopy(models[0]).to("meta")
    x, _ = toy_data()

    def one(p: dict[str, Tensor], b: dict[str, Tensor]) -> Tensor:
        return functional_call(skeleton, (p, b), (x[:8],))

    together = vmap(one)(parameters, buffers)
    torch.testing.assert_close(together, torch.stack([model(x[:8]) for model in models]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["fsg-weight", "multifc", "proxquant"])
def test_a_rate_follows_a_weight_that_moves_to_another_group(method: str) -> None:
    model = toy_net()
    fs.binarize_(model, method, only="hidden")
    optimizer = fs.optimizer(model, torch.optim.SGD(model.parameters(), lr=1e-2), total_steps=STEPS)
    steps(model, optimizer, 3)
    group = optimizer.param_groups[0]
    group["params"] = [p for p in group["params"] if p is not model.hidden.weight]
    slot = optimizer.drivers[0].slots[0]  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(RuntimeError, match="no longer holds the weight of hidden"):
        assert slot.lr
    optimizer.add_param_group({"params": [model.hidden.weight], "lr": 1e-6})
    assert slot.lr == 1e-6
    steps(model, optimizer, 1)


@pytest.mark.parametrize("method", ["fsg-weight", "multifc", "proxquant"])
def test_an_optimizer_without_a_rate_is_refused_where_the_method_needs_one(method: str) -> None:
    model = toy_net()
    fs.binarize_(model, method, only="hidden")
    base = torch.optim.SGD(model.parameters(), lr=1e-2)
    optimizer = fs.optimizer(model, base, total_steps=STEPS)
    base.param_groups[0]["lr"] = None  # as optimizers have it that choose their own
    slot = optimizer.drivers[0].slots[0]  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(RuntimeError, match=rf"no learning rate \(lr\) for the weight of hidden, and {method} computes"):
        assert slot.lr


@pytest.mark.parametrize("method", ["fcgrad", "multifc", "lstmfc"])
def test_a_state_of_float32_goes_on_in_bfloat16(method: str) -> None:
    model, half = toy_net(), toy_net().bfloat16()
    for each in (model, half):
        fs.binarize_(each, method, skip="stem", hidden=4)
    optimizer, other = (fs.optimizer(m, torch.optim.SGD(m.parameters(), lr=1e-2)) for m in (model, half))
    steps(model, optimizer, 3)
    half.load_state_dict(model.state_dict())
    other.load_state_dict(optimizer.state_dict())
    x, y = toy_data()
    F.cross_entropy(half(x.bfloat16()), y).backward()
    other.step()


def test_a_bias_frozen_in_mid_training_looks_ahead_no_more() -> None:
    model = toy_net()
    model.norm2 = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]  # it would take the bias away again
    fs.binarize_(model, "multifc", only="hidden", hidden=4)
    optimizer = fs.optimizer(model, torch.optim.SGD(model.parameters(), lr=1e-2))
    steps(model, optimizer, 3)
    shift = model.hidden._bias_shift
    assert isinstance(shift, Tensor)
    assert shift.abs().max() > 0
    model.hidden.bias.requires_grad_(False)
    steps(model, optimizer, 1)
    assert shift.abs().max() == 0


def test_rbnn_with_float64_as_the_default() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        fs.binarize_(toy_net(), "rbnn", skip="stem")
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_conversion_that_fails_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = toy_net()
    fs.binarize_(model, "ste", only="conv")
    rbnn = type(fs.get_method("rbnn"))
    healthy = rbnn.own_state

    def failing(self: fs.Method, layer: nn.Module, w: Tensor) -> dict[str, Tensor]:
        if layer is model.out:
            raise MemoryError("no room")
        return healthy(self, layer, w)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(rbnn, "own_state", failing)
    before = {name: (type(module), set(vars(module))) for name, module in model.named_modules()}
    keys = list(model.state_dict())
    with pytest.raises(MemoryError):
        fs.binarize_(model, "rbnn", skip="stem")
    assert {name: (type(module), set(vars(module))) for name, module in model.named_modules()} == before
    assert list(model.state_dict()) == keys
    monkeypatch.undo()
    fs.binarize_(model, "rbnn", only="hidden")
    assert isinstance(model, ToyNet)
    assert set(bits(model)) == {"conv", "hidden"}
