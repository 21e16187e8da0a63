"""What the commands share: options to a config, devices, output for people and for programs."""

from __future__ import annotations

import ast
import dataclasses
import json
import logging
import shutil
import sys
import textwrap
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from . import data
from .deploy import shipped
from .files import how_to_resume
from .methods import METHODS, check_fields, get_method
from .report.packed import PackedNetwork
from .training.build import method_fields, shipped_weights
from .training.config import NONE, SHIPPED, RunConfig
from .training.loop import Trainer
from .training.memory import explained
from .training.named_weights import PREFIX
from .training.ranks import Ranks, joined, restarted
from .training.run import RunError, RunFolder
from .training.sinks import ConsoleSink, Silent, Sinks
from .training.tracking import TrackerSink, parse_trackers, tracked_before

log = logging.getLogger("fastslow")


class _ToStderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr)


def show_logs() -> None:
    """What the library says of its work, on stderr; other libraries' logs stay as they are."""
    if not any(isinstance(handler, _ToStderr) for handler in log.handlers):
        log.addHandler(_ToStderr())
    log.setLevel(logging.INFO)


def print_json(value: Any) -> None:
    """The machine-readable answer: one line, the last of stdout."""
    print(json.dumps(value))


def choose_device(name: str) -> torch.device:
    """``auto`` takes a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"--device {name}: no device to train on; use auto, cpu or cuda")
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if not count:
            raise ValueError(f"--device {name}: PyTorch sees no CUDA device here; use --device cpu")
        if (device.index or 0) >= count:
            raise ValueError(f"--device {name}: there are {count} CUDA devices here, counted from 0")
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
        by_name = weights in (NONE, SHIPPED) or weights.startswith(PREFIX)
        return weights if by_name else str(Path(weights).expanduser().resolve())
    try:
        shipped_weights(model, data_name)
    except ValueError:
        return NONE
    return SHIPPED


def choose_data(name: str) -> str:
    """A data set's name; a folder by its full path, so that the run can be resumed from anywhere."""
    for kind in data.PATHS:
        path = name.removeprefix(kind)
        if path and path != name:
            return f"{kind}{Path(path).expanduser().resolve()}"
    return name


def refuse_idle(config: RunConfig, given: set[str]) -> None:
    """Refuse options that were given and that no step of this run would heed."""
    belongs_to = {
        "momentum": ("--optimizer momentum", config.optimizer == "momentum"),
        "step_epochs": ("--schedule step", config.schedule == "step"),
        "distill_temperature": ("--distill", bool(config.distill)),
    }
    for name, (other, in_use) in belongs_to.items():
        if name in given and not in_use:
            raise ValueError(
                f"--{name.replace('_', '-')} belongs to {other}, which this run hasn't: leave it out, or give both"
            )


def default_run(config: RunConfig) -> Path:
    where = config.data
    for kind in data.PATHS:
        where = Path(where.removeprefix(kind)).name if where.startswith(kind) else where
    parts = [config.model, where, config.method or "float"]
    return Path("runs") / "-".join([*parts, config.optimizer, f"seed{config.seed}", config.key[:6]])


def start(
    config: RunConfig, run: Path | None, device: str, data_root: Path | None, as_json: bool, track: str = "none"
) -> None:
    """Train a new run to its end. Its folder appears only when data, model, trackers and device are in order."""
    path = run if run is not None else default_run(config)
    trackers = parse_trackers(track)
    with joined(choose_device(device)) as (ranks, chosen):
        if ranks.from_first(restarted() and _holds(path, config)):  # torchrun gives its command again after a failure
            _resume(path, ranks, chosen, data_root, as_json, track)
            return
        if ranks.first:
            RunFolder(path).refuse_existing()  # before anything is downloaded
        trainer = _trainer(config, ranks, chosen, data_root)
        if ranks.first:
            trainer.run = RunFolder.create(path, config)
            log.info("run folder %s; Ctrl-C stops it, %s continues it", path, how_to_resume(path))
        _fit(trainer, trackers, as_json)


def resume(
    path: Path, device: str, data_root: Path | None, as_json: bool, track: str | None = None, **changes: Any
) -> None:
    """Train a stopped run to its end; ``changes`` are fields of its config that decide no number (None: as it was)."""
    with joined(choose_device(device)) as (ranks, chosen):
        _resume(path, ranks, chosen, data_root, as_json, track, **changes)


def _resume(
    path: Path,
    ranks: Ranks,
    device: torch.device,
    data_root: Path | None,
    as_json: bool,
    track: str | None,
    **changes: Any,
) -> None:
    # Of several processes only the first looks into the folder: the others may be on another machine.
    run = RunFolder.open(path) if ranks.first else None
    result, config, begun = ranks.from_first(
        (run.result(), run.config(), bool(run.checkpoints.paths())) if run is not None else None
    )
    if run is not None and result is not None:
        print(f"{path} is finished already", file=sys.stderr)
        print_result(result, run, as_json)
    if result is not None:
        return
    given = {name: value for name, value in changes.items() if value is not None}
    trackers = parse_trackers(",".join(tracked_before(path)) or "none" if track is None else track)
    with run.lock if run is not None else nullcontext():  # what is read now shall still be so when training starts
        trainer = _trainer(dataclasses.replace(config, **given), ranks, device, data_root, begun=begun)
        trainer.run = run
        trainer.resume()
        _fit(trainer, trackers, as_json)


def _fit(trainer: Trainer, trackers: list[str], as_json: bool) -> None:
    """Train to the end; only the first of several processes has a run folder, trackers and something to say."""
    if trackers and trainer.run is not None:
        trainer.sink = Sinks(trainer.sink, TrackerSink(trackers, trainer.run.path, trainer.config))
    result = trainer.fit()
    if trainer.run is not None:
        print_result(result, trainer.run, as_json)


def _holds(path: Path, config: RunConfig) -> bool:
    """Whether a folder holds a run of just this config."""
    try:
        return RunFolder.open(path).config() == config
    except RunError:
        return False


def _trainer(
    config: RunConfig, ranks: Ranks, device: torch.device, data_root: Path | None, *, begun: bool = False
) -> Trainer:
    if not ranks.first:
        log.setLevel(logging.WARNING)  # the first one says it for all
    if config.method is not None:
        get_method(config.method, **method_fields(config))  # what it refuses is said before anything is downloaded
    config.check_recipe()
    with ranks.one_first():
        moved = "if the images have moved, write where to into `data` of the run's config.json" if begun else ""
        dataset = load_data(config, data_root, moved)
    with explained(config, device):
        sink = ConsoleSink() if ranks.first else Silent()
        return Trainer(config, dataset, device=device, ranks=ranks, sink=sink, begun=begun)


def load_data(config: RunConfig, data_root: Path | None, moved: str = "") -> data.Dataset:
    """The data set of a config; ``moved`` is said where a folder of images isn't there any more."""
    try:
        return data.load(config.data, data_root, holdout=config.holdout, size=config.image_size or None)
    except data.DataError as error:
        kind, _, path = config.data.partition(":")
        if not moved or f"{kind}:" not in data.PATHS or Path(path).is_dir():
            raise
        raise data.DataError(f"{error}; {moved}") from error


def check_classes(model: torch.nn.Module, dataset: data.Dataset) -> None:
    """Refuse to measure a network on a data set with another number of classes."""
    if isinstance(model, PackedNetwork):
        told = model.outputs
    else:
        *_, last = (m for m in model.modules() if isinstance(m, torch.nn.Linear))
        told = last.out_features
    if told != len(dataset.test.classes):
        raise ValueError(
            f"--data {dataset.name} has {len(dataset.test.classes)} classes, this network tells {told} apart"
        )


def packed_file(path: Path) -> Path:
    """A path as it was given; ``shipped`` is the packed network that comes with the package."""
    return shipped() if path == Path(SHIPPED) and not path.exists() else path


def describe_method(name: str) -> dict[str, Any]:
    """A method with the fields that ``--set`` can change, and their defaults."""
    info = METHODS[name]
    fields = {
        field.name: field.default if field.default is not dataclasses.MISSING else None
        for field in dataclasses.fields(info.cls)
    }
    return {"name": name, "family": info.family, "paper": info.paper, "summary": info.summary, "fields": fields}


def format_method(found: dict[str, Any]) -> str:
    lines = [f"{found['name']}: {found['summary']}", f"{found['family']}, {found['paper']}"]
    width = max((len(name) for name in found["fields"]), default=0)
    lines += [f"  {name:<{width}}  {value}" for name, value in found["fields"].items()]
    return "\n".join([*lines, *([] if found["fields"] else ["  (no fields)"])])


def format_methods(rows: list[dict[str, str]]) -> str:
    """By family; the paper below what it does. The same for a terminal and a pipe."""
    width = min(shutil.get_terminal_size((100, 24)).columns, 100)
    column = max(len(row["name"]) for row in rows) + 4
    lines: list[str] = []
    for family in dict.fromkeys(row["family"] for row in rows):
        lines += ["", family] if lines else [family]
        for row in (row for row in rows if row["family"] == family):
            text = [part for key in ("summary", "paper") for part in textwrap.wrap(row[key], max(width - column, 20))]
            lines += [f"  {row['name']}".ljust(column) + text[0], *(" " * column + part for part in text[1:])]
    return "\n".join([*lines, "", "The fields of one: fastslow methods NAME"])


def print_result(result: dict[str, Any], run: RunFolder, as_json: bool) -> None:
    if as_json:
        keys = ("test_accuracy", "raw_test_accuracy", "best_test_accuracy", "train_loss", "seconds")
        print_json({**{key: result[key] for key in keys if key in result}, "run": str(run.path)})
        return
    print(
        f"test accuracy {result['test_accuracy']:.2f} % (last epoch; best {result['best_test_accuracy']:.2f} % "
        f"in epoch {result['best_epoch']}), train loss {result['train_loss']:.4f}, {result['seconds']:.0f} s"
    )
    print(f"run: {run.path}")
