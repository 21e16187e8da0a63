"""Every method, one row: it trains, its values are its set, and it copies, saves, resumes, compiles and loads."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fastslow as fs
from fastslow.methods import METHODS
from fastslow.weights import load_strictly
from toy import BATCHES, EPOCHS, STEPS, ToyNet, accuracy, toy_data, toy_net, train

SMALL = {"expand": 2, "d_state": 2, "fast_hidden": 6, "slow_hidden": 4, "length": 2, "fast_lr": 0.03}


@dataclass(frozen=True)
class Row:
    """A method on the toy task. ``values``: what a layer computes with in evaluation."""

    name: str
    accuracy: float = 0.95  # with real inputs, after STEPS steps of Adam; binary layers that don't move reach 0.64
    binary_accuracy: float = 0.75  # with 1-bit inputs, where the method has them
    values: str = "bits"  # -1 and +1; or "layer", "filter": +- one scale; "two": two values a filter
    soft: bool = False  # training computes with other values than evaluation
    fields: dict[str, object] = field(default_factory=dict)


ROWS = [
    Row("ste"),
    Row("binaryconnect"),
    Row("bnn"),
    Row("bwn", values="filter"),
    Row("xnor", values="filter"),
    Row("dorefa", values="layer"),
    Row("irnet", values="filter"),
    Row("rbnn", values="filter"),
    Row("reste", values="layer"),
    Row("fda", values="filter", soft=True),
    Row("recu", values="filter"),
    Row("adabin", values="two"),
    Row("surge", values="filter"),
    Row("mcdonnell", values="layer"),
    Row("quantnet", soft=True),
    Row("fcgrad", fields={"hidden": 8}),
    Row("multifc", fields={"hidden": 8}),
    Row("lstmfc", binary_accuracy=0.6, fields={"hidden": 8, "meta_lr": 1e-2}),
    Row("fsg", accuracy=0.9, binary_accuracy=0.6, fields=SMALL),
    Row("fsg-code", accuracy=0.9, fields=SMALL),
    Row("fsg-lstm", accuracy=0.85, binary_accuracy=0.6, fields=SMALL),
    Row("fsg-weight", accuracy=0.85, binary_accuracy=0.6, fields=SMALL),
    Row("fsg-plus"),
    Row("bop", fields={"gamma": 1e-2, "tau": 1e-5}),
    Row("proxquant", soft=True),
    Row("mirror", soft=True),
]
everyone = pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in ROWS])


def method_of(row: Row) -> fs.Method:
    return fs.get_method(row.name, **row.fields)


def binary_net(row: Row, activations: str | None = None, seed: int = 0) -> ToyNet:
    model = toy_net(seed)
    fs.binarize_(model, row.name, skip="stem", activations=activations, **row.fields)
    return model


def wrap(model: torch.nn.Module, steps: int = STEPS) -> fs.BinaryOptimizer:
    base = torch.optim.Adam(model.parameters(), lr=2e-2)
    return fs.optimizer(model, base, total_steps=steps, epochs=steps // BATCHES)


def assert_value_set(row: Row, weight: Tensor) -> None:
    if row.values == "bits":
        assert set(weight.unique().tolist()) <= {-1.0, 1.0}
    elif row.values == "layer":
        assert weight.abs().unique().numel() == 1
    else:
        for one in weight:
            values = one.unique() if row.values == "two" else one.abs().unique()
            assert values.numel() <= (2 if row.values == "two" else 1)


def test_every_method_has_a_row():
    assert sorted(row.name for row in ROWS) == sorted(METHODS)


@everyone
def test_trains_to_the_stated_accuracy(row):
    model = binary_net(row)
    train(model, wrap(model), 0, STEPS)
    for layer in fs.binary_layers(model).values():
        assert_value_set(row, layer.binary_weight)
    assert accuracy(model) >= row.accuracy


@everyone
def test_trains_with_binary_inputs_where_it_defines_them(row):
    method = method_of(row)
    if "sign" not in method.activations:
        with pytest.raises(ValueError, match=rf"^{row.name} defines no activations='sign'; "):
            binary_net(row, "sign")
        return
    model = binary_net(row, "sign")
    assert all(layer.input_bits == 1 for layer in fs.binary_layers(model).values())
    train(model, wrap(model), 0, STEPS)
    assert accuracy(model) >= row.binary_accuracy


@everyone
def test_evaluation_computes_with_the_binary_weight(row):
    model = binary_net(row).eval()
    x, _ = toy_data()
    layers = fs.binary_layers(model)
    for layer in layers.values():
        assert_value_set(row, layer.binary_weight)
        assert torch.equal(layer.method.forward_weight(layer), layer.binary_weight)
        assert not layer.binary_weight.requires_grad
        layer.train()
        if not row.soft:
            assert torch.equal(layer.method.forward_weight(layer), layer.binary_weight)
        layer.eval()
    if all(layer.deploy_note is None for layer in layers.values()):
        frozen = fs.freeze(model)
        assert not fs.binary_layers(frozen)
        assert torch.equal(frozen(x), model(x))
        assert frozen.state_dict().keys() == toy_net().state_dict().keys()


@everyone
def test_float_weights_load_strictly_before_and_after(row):
    weights = toy_net(seed=4).state_dict()
    before = toy_net()
    before.load_state_dict(weights)
    fs.binarize_(before, row.name, skip="stem", **row.fields)
    after = toy_net()
    fs.binarize_(after, row.name, skip="stem", **row.fields)
    after.load_state_dict(weights)
    extra = after.state_dict().keys() - weights.keys()
    prefix = row.name.replace("-", "_")
    assert all(key.rpartition(".")[0] in ("conv", "hidden", "out") for key in extra)
    assert all(key.rpartition(".")[2].startswith(f"{prefix}_") for key in extra)
    checked = binary_net(row)
    load_strictly(checked, weights, "float.safetensors")
    for key, value in before.state_dict().items():
        torch.testing.assert_close(after.state_dict()[key], value, rtol=0, atol=0, msg=key)
        torch.testing.assert_close(checked.state_dict()[key], value, rtol=0, atol=0, msg=key)
    parameters = {id(p) for p in after.parameters()}
    base = torch.optim.SGD([{"params": toy_net().parameters()}], lr=0.1)
    with pytest.raises(ValueError, match="doesn't hold"):
        fs.optimizer(after, base, total_steps=10, epochs=2)
    assert parameters == {id(p) for p in after.parameters()}


@everyone
@pytest.mark.parametrize("copier", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_are_equal_and_independent(row, copier):
    model = binary_net(row)
    train(model, wrap(model), 0, 4)
    twin = copier(model)
    x, _ = toy_data()
    model.eval()
    twin.eval()
    assert torch.equal(model(x), twin(x))
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not torch.equal(model(x), twin(x))


@everyone
def test_deterministic_and_resumes_bit_for_bit(row):
    """Ten steps twice; then five, everything into new objects through state_dict, and five more."""
    runs = []
    for _ in range(2):
        model = binary_net(row)
        optimizer = wrap(model, 12)
        torch.manual_seed(7)
        runs.append(train(model, optimizer, 0, 10))
    assert runs[0] == runs[1]

    first = binary_net(row)
    optimizer = wrap(first, 12)
    torch.manual_seed(7)
    losses = train(first, optimizer, 0, 5)
    saved = copy.deepcopy((first.state_dict(), optimizer.state_dict(), torch.get_rng_state()))
    second = binary_net(row, seed=9)
    resumed = wrap(second, 12)
    second.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    torch.set_rng_state(saved[2])
    losses += train(second, resumed, 5, 10)
    assert losses == runs[0]
    for (key, value), other in zip(model.state_dict().items(), second.state_dict().values(), strict=True):
        assert torch.equal(value, other), key


@everyone
def test_a_copy_of_model_and_optimizer_goes_on_alike(row):
    model = binary_net(row)
    optimizer = wrap(model, 12)
    train(model, optimizer, 0, 4)
    pair = copy.deepcopy((model, optimizer))
    torch.manual_seed(3)
    here = train(model, optimizer, 4, 8)
    torch.manual_seed(3)
    assert train(*pair, 4, 8) == here


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own, for a Function
@everyone
def test_compiles_as_one_graph(row):
    x, y = toy_data()
    activations = "sign" if "sign" in method_of(row).activations else None
    layer = torch.nn.Sequential(torch.nn.Linear(36, 5))
    fs.binarize_(layer, row.name, activations=activations, **row.fields)
    fs.optimizer(layer, torch.optim.SGD(layer.parameters(), lr=0.1), total_steps=10, epochs=2)
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    outcomes = []
    for model in (layer, compiled):
        layer.zero_grad()
        out = model(x.flatten(1))
        F.cross_entropy(out, y).backward()
        outcomes.append([out, *(p.grad.clone() for p in layer.parameters() if p.grad is not None)])
    for eager, graph in zip(*outcomes, strict=True):
        torch.testing.assert_close(graph, eager, rtol=1e-4, atol=1e-6)


@everyone
def test_bfloat16_autocast(row):
    model = binary_net(row)
    optimizer = wrap(model, 12)
    x, y = toy_data()
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x)
        assert out.dtype == torch.bfloat16
        loss = F.cross_entropy(out.float(), y)
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
    model.eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for layer in fs.binary_layers(model).values():  # half precision may not flip a bit
            assert torch.equal(layer.method.forward_weight(layer).sign(), layer.binary_weight.sign())


@everyone
def test_refuses_with_a_sentence(row):
    method = METHODS[row.name].cls
    with pytest.raises(ValueError, match=rf"^{row.name} has no field 'nonsense'; its fields: "):
        fs.binarize_(toy_net(), row.name, nonsense=1)
    with pytest.raises(ValueError, match=rf"^{row.name} defines no activations='nonsense'; "):
        fs.binarize_(toy_net(), row.name, activations="nonsense")
    wrong = "scaled-sign" if method.default_binarizer in ("own", "dorefa-original") else "own"
    with pytest.raises(ValueError, match=rf"^{row.name} can't train the binarizer '{wrong}'; "):
        fs.binarize_(toy_net(), row.name, binarizer=wrong)
    model = binary_net(row)
    assert all(
        type(module).__name__ == f"Binary{kind}" for module, kind in ((model.conv, "Conv2d"), (model.out, "Linear"))
    )
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    if method.scheduled:
        with pytest.raises(ValueError, match=rf"^{row.name} (follows a schedule|does work once an epoch); write "):
            fs.optimizer(model, base)
    if method.scheduled or method().needs_wrapper:  # a field may decide
        x, y = toy_data()
        with pytest.raises(RuntimeError, match="without its optimizer wrapper"):
            F.cross_entropy(model(x), y).backward()


def test_epochs_are_checked():
    model = binary_net(ROWS[0])
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    for epochs, total in ((0, 10), (11, 10), (2, None)):
        with pytest.raises(ValueError, match=rf"^epochs={epochs}: give a whole number from 1 to total_steps={total}$"):
            fs.optimizer(model, base, total_steps=total, epochs=epochs)


@pytest.mark.parametrize(("name", "epochs", "expected"), [("irnet", 3, [0, 0, 1 / 3, 1 / 3, 2 / 3, 2 / 3, 1])])
def test_progress_by_epoch_or_by_step(name, epochs, expected):
    def progress(**kwargs) -> list[float]:
        model = binary_net(next(row for row in ROWS if row.name == name))
        optimizer = fs.optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1), total_steps=6, **kwargs)
        seen = [model.conv._progress.item()]
        for step in range(6):
            train(model, optimizer, step, step + 1)
            seen.append(model.conv._progress.item())
        return seen

    assert progress(epochs=epochs) == pytest.approx(expected)
    assert progress() == pytest.approx([step / 6 for step in range(7)])


def test_epochs_of_the_toy_task():
    assert STEPS == EPOCHS * BATCHES
