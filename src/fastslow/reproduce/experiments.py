"""Evidence that isn't a grid of training runs: one JSON each, directly in ``results/``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import data as datasets
from ..recipes import floats, theorem
from ..registry import Registry
from ..training.build import build_model
from ..training.conditions import conditions
from ..training.config import RunConfig
from ..training.evaluate import evaluate, evaluation_batches
from ..training.named_weights import PREFIX, file_digest, find_weights
from .record import write_record


@dataclass(frozen=True)
class Experiment:
    """A measurement with a name; ``measure`` takes the device and the folder of data sets."""

    name: str
    summary: str
    measure: Callable[[torch.device, Path | None], dict[str, Any]]


def run_experiment(name: str, results: Path, device: torch.device, data_root: Path | None) -> Path | None:
    """Measure and record, unless it is recorded; returns the new file."""
    path = results / f"{name}.json"
    if path.exists():
        return None
    content = EXPERIMENTS[name].measure(device, data_root)
    write_record(path, {"experiment": name, **content, "conditions": conditions(device)})
    return path


def _theorem(device: torch.device, data_root: Path | None) -> dict[str, Any]:
    return theorem.run()


def _starts(device: torch.device, data_root: Path | None) -> dict[str, Any]:
    """Test accuracy of the float weights that the recipes start from, of those that are there."""
    accuracies, digests = {}, {}
    for setting in floats.settings():
        config = setting.config
        name = f"{config.model}_{config.data}"
        try:
            path = find_weights(f"{PREFIX}{name}")
        except ValueError:
            continue
        test = datasets.load(config.data, data_root).test
        start = RunConfig(model=config.model, data=config.data, method=None, weights=f"{PREFIX}{name}")
        model = build_model(start, len(test.classes)).to(device)
        accuracies[name] = evaluate(model, evaluation_batches(test, device=device)).accuracy
        digests[name] = file_digest(path)
    if not accuracies:
        raise ValueError("none of the float weights is there; name their folder with --weights-dir")
    return {"accuracies": accuracies, "sha256": digests}


EXPERIMENTS: Registry[Experiment] = Registry("experiment")
for _experiment in (
    Experiment("theorem", "Theorem 1: the rate of the averaged iterate, in seconds on a CPU", _theorem),
    Experiment("starts", "accuracy of the float weights that the runs start from", _starts),
    # A float run of today says which file it wrote; this is for weights whose run doesn't.
    Experiment("own-starts", "the same of weights of one's own, which nobody has published", _starts),
):
    EXPERIMENTS.add(_experiment.name, _experiment)
