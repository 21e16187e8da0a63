"""Where a training run went wrong: the first numbers that are not finite."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..convert import binary_layers, plain_name, unwrap
from ..wrapper import BinaryOptimizer


class TrainingDiverged(ArithmeticError):
    """The loss, or a weight, is no longer a number."""


def _is_finite(value: Any) -> bool:
    return not isinstance(value, Tensor) or not value.is_floating_point() or bool(torch.isfinite(value).all())


@torch.no_grad()
def broken_state(model: nn.Module) -> str | None:
    """The first parameter, buffer or look-ahead of a model that is not finite, by name."""
    model = unwrap(model)
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if not _is_finite(value):
            return plain_name(model, name)
    for name, layer in binary_layers(model).items():
        if not (_is_finite(layer._shift) and _is_finite(layer._bias_shift)):
            return f"the look-ahead of {name}"
    return None


@torch.no_grad()
def broken_gradient(model: nn.Module) -> str | None:
    """The first parameter whose gradient is not finite."""
    for name, parameter in model.named_parameters():
        if not _is_finite(parameter.grad):
            return f"the gradient of {plain_name(model, name)}"
    return None


@torch.no_grad()
def broken_method(optimizer: torch.optim.Optimizer) -> str | None:
    """The first hypernetwork, or layer's history, of a wrapped optimizer that is not finite."""
    drivers = optimizer.drivers if isinstance(optimizer, BinaryOptimizer) else []
    return next((where for driver in drivers if (where := driver.broken()) is not None), None)


@torch.no_grad()
def broken_output(model: nn.Module, x: Tensor) -> str | None:
    """The first layer, in the order of the forward pass, whose output for ``x`` is not finite."""
    model = unwrap(model)
    found: list[str] = []

    def watch(name: str, module: nn.Module) -> Any:
        def look(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if not found and not _is_finite(output):
                found.append(f"the output of {plain_name(model, name)}")

        return module.register_forward_hook(look)

    leaves = [(name, m) for name, m in model.named_modules() if name and not any(m.children())]
    hooks = [watch(name, module) for name, module in leaves]
    try:
        model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else None
