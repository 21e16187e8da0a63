"""What people do in loops of their own, and what must come of it: the right numbers, or a sentence."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fastslow as fs
from fastslow.deploy import UnsupportedLayerError
from fastslow.methods import Method

SMALL = {"expand": 2, "d_state": 2, "length": 3}
X, Y = torch.randn(12, 8, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 4


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def binary(method: str = "fsg", **fields: object) -> nn.Sequential:
    model = mlp()
    fs.binarize_(model, method, only="2", **({**SMALL, **fields} if method == "fsg" else fields))
    return model


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(X), Y).backward()
    optimizer.step()


def adam(model: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=0.01)


# -- evaluation mode --------------------------------------------------------------------------------------------------


def test_an_evaluation_with_gradients_between_backward_and_step_changes_nothing() -> None:
    (model, twin) = (binary(), binary())
    optimizer, other = fs.optimizer(model, adam(model)), fs.optimizer(twin, adam(twin))
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(model(X), Y).backward()
        model.eval()
        model(X).argmax(1)  # without no_grad
        model.train()
        optimizer.step()
        step(twin, other)
    assert torch.equal(model[2].weight, twin[2].weight)


def test_training_in_evaluation_mode_is_said_once() -> None:
    model = binary()
    optimizer = fs.optimizer(model, adam(model))
    for _ in range(3):
        step(model, optimizer)
    before = model[2].weight.detach().clone()
    model.eval()
    with pytest.warns(UserWarning, match=r"the gradient of 2 comes from a pass in evaluation mode.*Call model.train"):
        step(model, optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(model, optimizer)
    assert torch.equal(model[2].weight, before)


# -- half precision ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bits", [1, 3])
def test_bits_of_half_precision_weights_are_those_of_the_same_weights_in_float32(dtype: torch.dtype, bits: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(64, 64, 3))
    nn.init.kaiming_normal_(model[0].weight)
    fs.binarize_(model, "ste", bits=bits)
    model.to(dtype)
    half = model[0].binary_weight
    assert half.dtype == dtype
    assert torch.equal(half, copy.deepcopy(model).float()[0].binary_weight.to(dtype))
    if bits == 1:
        assert torch.equal(half > 0, model[0].weight > 0)


# -- distillation -----------------------------------------------------------------------------------------------------


def test_distillation_averages_over_positions_as_cross_entropy_does() -> None:
    torch.manual_seed(0)
    said, taught, zero = torch.randn(2, 7, 3, 5), torch.randn(2, 7, 3, 5), torch.zeros(())
    flat = [x.movedim(1, -1).reshape(-1, 7) for x in (said, taught)]
    torch.testing.assert_close(fs.distillation_loss(said, taught, zero), fs.distillation_loss(*flat, zero))


@pytest.mark.parametrize(
    ("shapes", "options"),
    [(((3, 4), (3, 1)), {}), (((4,), (4,)), {}), (((3, 4),) * 2, {"share": 50}), (((3, 4),) * 2, {"temperature": 0})],
)
def test_distillation_of_other_things_is_refused(
    shapes: tuple[tuple[int, ...], ...], options: dict[str, float]
) -> None:
    with pytest.raises(ValueError, match=r"the same one|a share from 0 to 1"):
        fs.distillation_loss(*map(torch.randn, shapes), torch.zeros(()), **options)


# -- weights in two places --------------------------------------------------------------------------------------------


def test_a_weight_tied_after_binarizing_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    fs.binarize_(model, "fsg", **SMALL)
    model[1].weight = model[0].weight
    with pytest.raises(ValueError, match=r"'1' and '0' share one weight; fsg keeps numbers.*untie"):
        fs.optimizer(model, adam(model))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(6, 4)
        self.said = nn.Linear(4, 6, bias=False)
        self.said.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.said(self.words(x))


def test_a_weight_that_an_embedding_shares_is_for_methods_that_keep_nothing() -> None:
    model = Tied()
    fs.binarize_(model, "fsg", **SMALL)
    with pytest.raises(ValueError, match="words has the weight of the binary layer said"):
        fs.optimizer(model, adam(model))
    model = Tied()
    fs.binarize_(model, "ste")
    optimizer = fs.optimizer(model, adam(model))
    F.cross_entropy(model(torch.arange(6)), torch.arange(6)).backward()
    optimizer.step()


# -- optimizers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fsg", "fsg-plus", "multifc", "bop"])
def test_going_uphill_is_refused_where_the_method_would_go_downhill(method: str) -> None:
    model = binary(method)
    with pytest.raises(ValueError, match=f"maximize=True: {method} goes downhill; negate the loss"):
        fs.optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1, maximize=True), total_steps=4)
    model = binary("ste")
    fs.optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1, maximize=True))


@pytest.mark.parametrize("steps", [0, True, 1.5, float("nan"), "10"])
def test_total_steps_is_a_number_of_steps(steps: object) -> None:
    model = binary("ste")
    with pytest.raises(ValueError, match="give the number of optimizer steps"):
        fs.optimizer(model, adam(model), total_steps=steps)  # pyright: ignore[reportArgumentType]


def test_total_steps_may_be_numpys_or_of_a_division() -> None:
    for steps in (np.int64(10), 20 / 2):
        model = binary("ste")
        assert fs.optimizer(model, adam(model), total_steps=steps).total_steps == 10  # pyright: ignore[reportArgumentType]


def test_a_rate_is_that_of_the_group_that_holds_the_weight() -> None:
    model = binary()
    rates = ((0, 0.1), (2, 0.01), (4, 0.9))
    base = torch.optim.SGD([{"params": model[i].parameters(), "lr": rate} for i, rate in rates])
    optimizer = fs.optimizer(model, base)
    step(model, optimizer)
    del optimizer.param_groups[0]
    step(model, optimizer)
    assert optimizer.drivers[0].etas == [0.01]  # pyright: ignore[reportAttributeAccessIssue]
    optimizer.load_state_dict(optimizer.state_dict())  # which makes new groups
    optimizer.param_groups[0]["lr"] = 0.02
    step(model, optimizer)
    assert optimizer.drivers[0].etas == [0.02]  # pyright: ignore[reportAttributeAccessIssue]
    del optimizer.param_groups[0]
    with pytest.raises(RuntimeError, match="the optimizer no longer holds the weight of 2"):
        step(model, optimizer)


def test_a_state_of_another_method_is_refused_before_anything_is_loaded() -> None:
    model, other = binary("ste"), binary("fsg")
    saved, mine = fs.optimizer(model, adam(model)), fs.optimizer(other, adam(other))
    for _ in range(3):
        step(model, saved)
    with pytest.raises(ValueError, match="other methods: ste; here fsg"):
        mine.load_state_dict(saved.state_dict())
    assert mine.base.state_dict()["state"] == {}


def test_a_layer_of_rbnn_woken_later_is_refused_as_its_rotations_would_stand_still() -> None:
    model = mlp()
    fs.binarize_(model, "rbnn", skip="4")
    model[2].requires_grad_(False)
    optimizer = fs.optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1), total_steps=8, epochs=4)
    model[2].requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"2 didn't train when fs.optimizer was called"):
        step(model, optimizer)


@pytest.mark.parametrize("method", ["fsg", "lstmfc"])
def test_a_copy_of_a_prepared_optimizer_goes_on_alike(method: str) -> None:
    model = binary(method)
    optimizer = fs.optimizer(model, adam(model))
    for _ in range(3):
        step(model, optimizer)
    optimizer.prepare()
    twin, other = copy.deepcopy((model, optimizer))
    for _ in range(2):
        step(model, optimizer)
        step(twin, other)
    assert torch.equal(model[2].weight, twin[2].weight)


# -- models -----------------------------------------------------------------------------------------------------------


def test_one_bit_inputs_in_an_encoder_with_padding() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    fs.binarize_(model, "bnn", only=["layers.*.linear1", "layers.*.linear2"])
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[0, 3:] = True
    with torch.no_grad():
        assert torch.isfinite(model.eval()(torch.randn(2, 5, 8), src_key_padding_mask=padding)).all()


@pytest.mark.parametrize("method", ["ste", "irnet", "fsg"])
def test_a_model_that_was_built_without_memory(method: str) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
        emptied = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    weights = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)).state_dict()
    fields = SMALL if method == "fsg" else {}
    fs.binarize_(model, method, **fields)
    fs.binarize_(emptied, method, **fields)
    model.load_state_dict(weights, assign=True)
    emptied.to_empty(device="cpu").load_state_dict(weights)
    for each in (model, emptied):
        optimizer = fs.optimizer(each, adam(each), total_steps=2)
        step(each, optimizer)
        step(each, optimizer)
    assert torch.equal(model[0].weight, emptied[0].weight)


def test_a_layer_parametrized_after_binarizing_is_named() -> None:
    model = binary("ste")
    nn.utils.parametrizations.orthogonal(model[2])
    with pytest.raises(ValueError, match="2 is a ParametrizedBinaryLinear, changed after"):
        fs.freeze(model)


class Dropping(nn.Module):
    def __init__(self, always: bool) -> None:
        super().__init__()
        self.always, self.first, self.last = always, nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.last(F.dropout(x) if self.always else F.dropout(x, 0.5, self.training))


def test_dropout_that_never_stops_has_no_packed_form(tmp_path) -> None:
    model = Dropping(always=True)
    fs.binarize_(model, "ste")
    with pytest.raises(UnsupportedLayerError, match="drops in evaluation too"):
        fs.pack(model, tmp_path / "model.safetensors", input_shape=(8,))
    model = Dropping(always=False)
    fs.binarize_(model, "ste")
    fs.pack(model, tmp_path / "model.safetensors", input_shape=(8,))


def test_names_and_fields() -> None:
    with pytest.raises(ValueError, match="unknown method 'FSG'; did you mean 'fsg'"):
        fs.binarize_(mlp(), "FSG")
    with pytest.raises(ValueError, match="slow_lr=nan"):
        fs.binarize_(mlp(), fs.get_method("fsg"), slow_lr=float("nan"))
    assert fs.binarize_(mlp(), "ste", skip=None).left == {}


@dataclass(frozen=True, kw_only=True)
class Mine(Method):
    name: ClassVar[str] = "mine"
    strength: float = 1.0


def test_a_method_that_nobody_registered_takes_fields() -> None:
    assert fs.get_method(Mine(), strength=0.5) == Mine(strength=0.5)
