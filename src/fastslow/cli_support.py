"""What the commands share: options to a config, devices, output for people and for programs."""

from __future__ import annotations

import ast
import json
import logging
import sys
from pathlib import Path
from typing import Any

import torch

from . import data
from .methods import check_fields
from .training.build import shipped_weights
from .training.config import NONE, SHIPPED, RunConfig
from .training.loop import Trainer
from .training.run import RunFolder
from .training.sinks import ConsoleSink
from .weights import save_weights


def show_logs() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)


def print_json(value: Any) -> None:
    """The machine-readable answer: one line, the last of stdout."""
    print(json.dumps(value))


def choose_device(name: str) -> torch.device:
    """``auto`` takes a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"--device {name}: no such device; use auto, cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"--device {name}: PyTorch sees no CUDA device here; use --device cpu")
    return device


def parse_fields(method: str | None, pairs: list[str], **named: object) -> dict[str, Any]:
    """Fields of a method from ``--set name=value`` and from options with names of their own (None: not given)."""
    fields = {name: value for name, value in named.items() if value is not None}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"--set {pair}: write name=value, for example --set d_state=4")
        try:
            fields[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            fields[name] = text
    if method is not None:
        check_fields(method, fields)
    return fields


def choose_weights(weights: str | None, model: str, data_name: str) -> str:
    """What ``--weights`` means when it isn't given: the shipped float network where there is one, else none."""
    if weights is not None:
        return weights if weights in (NONE, SHIPPED) else str(Path(weights).resolve())
    try:
        shipped_weights(model, data_name)
    except ValueError:
        return NONE
    return SHIPPED


def default_run(config: RunConfig) -> Path:
    parts = [config.model, config.data.replace("folder:", "").strip("/").replace("/", "-"), config.method or "float"]
    return Path("runs") / "-".join([*parts, config.optimizer, f"seed{config.seed}", config.key[:6]])


def fit(
    config: RunConfig, run: RunFolder, device: torch.device, data_root: Path | None, *, resume: bool
) -> dict[str, Any]:
    """Train a run to its end, show it, leave its weights beside its result."""
    dataset = data.load(config.data, data_root, holdout=config.holdout)
    trainer = Trainer(config, dataset, run=run, device=device, sink=ConsoleSink())
    if resume:
        trainer.resume()
    result = trainer.fit()
    save_weights(trainer.model, run.path / "weights.safetensors", {"key": config.key})
    return result


def print_result(result: dict[str, Any], run: RunFolder, as_json: bool) -> None:
    if as_json:
        keys = ("test_accuracy", "best_test_accuracy", "train_loss", "seconds")
        print_json({**{key: result[key] for key in keys}, "run": str(run.path)})
        return
    print(
        f"test accuracy {result['test_accuracy']:.2f} % (last epoch; best {result['best_test_accuracy']:.2f} % in epoch "
        f"{result['best_epoch']}), train loss {result['train_loss']:.4f}, {result['seconds']:.0f} s\nrun: {run.path}"
    )
