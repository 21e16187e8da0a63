"""Whether a checkpoint's state has the form of this run's own: what doesn't is refused before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..wrapper import BinaryOptimizer

if TYPE_CHECKING:
    from .loop import Trainer

_NUMBERS = ("test_accuracy", "test_loss", "train_accuracy", "train_loss")  # of a row: what a result is made from
_MOMENTS = {"exp_avg", "exp_avg_sq", "step"}
_OPTIONAL = ("config", "left_out", "sessions", "rank_rng", "rank_cuda_rng", "cuda_rng")  # not in all, or a device's own


def check_state(state: Any, trainer: Trainer) -> None:
    """Raise a ValueError that names the first thing which can't be a state of this run."""
    own = trainer.state_dict()
    special = {*_OPTIONAL, "model", "optimizer", "rows", "metrics"}
    _same_keys(state, own, "the state", optional={*_OPTIONAL, "left_out"})
    for key in own.keys() - special:
        check_form(state[key], own[key], key)
    _check_optimizer(state["optimizer"], own["optimizer"], trainer.optimizer)
    per_epoch, epochs, rows = len(trainer.train_batches), trainer.config.epochs, state["rows"]
    for row in _items(rows, "rows"):
        if not isinstance(row, dict) or not all(_is_number(row.get(key)) for key in (*_NUMBERS, "epoch")):
            raise ValueError("rows holds something that is no epoch")
    if state["steps_per_epoch"] == per_epoch and not (
        len(rows) <= epochs and len(rows) * per_epoch <= state["done"] <= min(len(rows) + 1, epochs) * per_epoch
    ):
        raise ValueError(f"{len(rows)} epochs and {state['done']} steps can't be")
    check_form(state["metrics"], dict.fromkeys(_items(state["metrics"], "metrics"), 0.0), "metrics")
    if not all(isinstance(step, int) for step in _items(state.get("left_out", []), "left_out")):
        raise ValueError("left_out holds something that is no step")
    for session in _items(state.get("sessions", []), "sessions"):
        if not isinstance(session, dict) or not isinstance(session.get("until_step"), int):
            raise ValueError("sessions holds something that is no process's conditions")
    for key in ("rank_rng", "rank_cuda_rng", "cuda_rng"):
        for value in state[key] if isinstance(state.get(key), list) else [state.get(key)]:
            if value is not None and not (isinstance(value, Tensor) and value.dtype == torch.uint8):
                raise ValueError(f"{key} is no state of random numbers")


def check_form(found: Any, own: Any, where: str) -> None:
    """The same nesting with the same kinds of values: keys, lengths, shapes and types of tensors."""
    if isinstance(own, dict):
        _same_keys(found, own, where)
        for key in own:
            check_form(found[key], own[key], f"{where}.{key}")
    elif isinstance(own, list | tuple):
        if len(_items(found, where)) != len(own):
            raise ValueError(f"{where} has {len(found)} entries, not {len(own)}")
        for i, (a, b) in enumerate(zip(found, own, strict=True)):
            check_form(a, b, f"{where}[{i}]")
    elif isinstance(own, Tensor):
        if not isinstance(found, Tensor) or found.shape != own.shape or found.dtype != own.dtype:
            raise ValueError(f"{where} is {_words(found)}, not {_words(own)}")
    elif isinstance(own, bool) or own is None:
        if not isinstance(found, bool | None):
            raise ValueError(f"{where} is {_words(found)}, not {own}")
    elif isinstance(own, int | float):
        wanted = int if isinstance(own, int) else int | float
        if not _is_number(found) or not isinstance(found, wanted) or (isinstance(own, int) and found < 0):
            raise ValueError(f"{where} is {_words(found)}, not a number as {own}")
    elif type(found) is not type(own):
        raise ValueError(f"{where} is {_words(found)}, not {_words(own)}")


def _check_optimizer(found: Any, own: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    _same_keys(found, own, "optimizer")
    _check_torch_optimizer(found, own, optimizer, "optimizer")
    if not isinstance(optimizer, BinaryOptimizer):
        return
    part = found["fastslow"]
    _same_keys(part, own["fastslow"], "fastslow")
    check_form(part["steps"], own["fastslow"]["steps"], "steps")
    if len(_items(part["drivers"], "drivers")) != len(optimizer.drivers):
        raise ValueError("the saved optimizer state belongs to a model with other methods")
    for driver, saved in zip(optimizer.drivers, part["drivers"], strict=True):
        mine = driver.state_dict()
        _same_keys(saved, mine, "the method's state")
        for key in mine.keys() - {"optimizers", "bias_shifts"}:
            check_form(saved[key], mine[key], key)
        for one, mine_one, real in zip(
            _items(saved.get("optimizers", []), "optimizers"),
            mine.get("optimizers", []),
            getattr(driver, "optimizers", []),
            strict=True,
        ):
            _check_torch_optimizer(one, mine_one, real, "a hypernetwork's optimizer")
        biases = {slot.name: slot.layer.bias for slot in getattr(driver, "slots", [])}
        for name, value in _mapping(saved.get("bias_shifts", {}), "bias_shifts").items():
            if not isinstance(biases.get(name), Tensor):
                raise ValueError(f"{name} has no bias to look ahead")
            check_form(value, biases[name].detach(), f"bias_shifts.{name}")


def _check_torch_optimizer(found: Any, own: dict[str, Any], optimizer: torch.optim.Optimizer, where: str) -> None:
    """Groups as they are here, and moments of the shapes of their parameters.

    A setting that the torch of that time didn't know yet is filled in: it has its default here.
    """
    if len(_items(_mapping(found, where).get("param_groups"), where)) != len(own["param_groups"]):
        raise ValueError(f"{where} has other parameter groups")
    for saved, group in zip(found["param_groups"], own["param_groups"], strict=True):
        for key in group.keys() - {"capturable", "fused", "foreach"}:  # the device's affair
            value = _mapping(saved, where).setdefault(key, group[key])
            if (isinstance(group[key], bool) or group[key] is None) and value is not group[key]:
                raise ValueError(f"{where}'s {key} is {_words(value)}, not {group[key]}")
            single = isinstance(value, Tensor) and value.numel() == 1  # a learning rate on a GPU
            check_form(float(value) if single else value, _plain(group[key]), f"{where}'s {key}")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, moments in _mapping(found.get("state"), where).items():
        if not isinstance(index, int) or not 0 <= index < len(parameters):
            raise ValueError(f"{where} has no parameter {index!r}")
        if "betas" in optimizer.param_groups[0] and not _mapping(moments, where).keys() >= _MOMENTS:
            raise ValueError(f"{where} lacks moments of parameter {index}")
        for key, value in _mapping(moments, where).items():
            shape = parameters[index].shape if key != "step" else torch.Size()
            if value is not None and not (isinstance(value, Tensor) and value.shape == shape):
                raise ValueError(f"{where}'s {key} of parameter {index} is {_words(value)}")


def _same_keys(found: Any, own: dict[Any, Any], where: str, optional: Sequence[str] | set[str] = ()) -> None:
    if odd := sorted(map(str, (_mapping(found, where).keys() ^ own.keys()) - set(optional))):
        raise ValueError(f"{where} of another run: {odd[0]!r} is only in one of them")


def _mapping(value: Any, where: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {_words(value)}, not a dictionary")
    return value


def _items(value: Any, where: str) -> Any:
    if not isinstance(value, list | tuple | dict):
        raise ValueError(f"{where} is {_words(value)}, not a list")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, Tensor) and value.numel() == 1 else value


def _words(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)} of {value.dtype}"
    return f"{type(value).__name__} {str(value)[:40]!r}"
