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


def start(config: RunConfig, run: Path | None, device: str, data_root: Path | None, as_json: bool) -> None:
    """Train a new run to its end. Its folder appears only when data, model and device are in order."""
    trainer = _trainer(config, device, data_root)
    _finish(trainer, RunFolder.create(run if run is not None else default_run(config), config), as_json)


def resume(path: Path, device: str, data_root: Path | None, as_json: bool) -> None:
    """Train a stopped run to its end."""
    run = RunFolder.open(path)
    result = run.result()
    if result is not None:
        print(f"{path} is finished already", file=sys.stderr)
        print_result(result, run, as_json)
        return
    trainer = _trainer(run.config(), device, data_root)
    trainer.run = run
    trainer.resume()
    _finish(trainer, run, as_json)


def _trainer(config: RunConfig, device: str, data_root: Path | None) -> Trainer:
    chosen = choose_device(device)
    dataset = data.load(config.data, data_root, holdout=config.holdout)
    return Trainer(config, dataset, device=chosen, sink=ConsoleSink())


def _finish(trainer: Trainer, run: RunFolder, as_json: bool) -> None:
    trainer.run = run
    result = trainer.fit()
    save_weights(trainer.model, run.path / "weights.safetensors", {"key": trainer.config.key})
    print_result(result, run, as_json)


def print_result(result: dict[str, Any], run: RunFolder, as_json: bool) -> None:
    if as_json:
        keys = ("test_accuracy", "best_test_accuracy", "train_loss", "seconds")
        print_json({**{key: result[key] for key in keys}, "run": str(run.path)})
        return
    print(
        f"test accuracy {result['test_accuracy']:.2f} % (last epoch; best {result['best_test_accuracy']:.2f} % "
        f"in epoch {result['best_epoch']}), train loss {result['train_loss']:.4f}, {result['seconds']:.0f} s"
    )
    print(f"run: {run.path}")
