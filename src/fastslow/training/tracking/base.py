"""What a tracker is, and which there are."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...registry import Registry

Values = NDArray[np.float32]


class Tracker(Protocol):
    """One run in one tracker. Whatever it raises ends the tracking and not the training.

    ``memory`` is what a later process needs to continue the same tracked run, as JSON can hold it; the run's folder
    keeps it. A new tracked run starts with an empty one.
    """

    memory: dict[str, Any]
    draws_histograms: bool

    def start(self, folder: Path, config: Mapping[str, Any]) -> None:
        """Open the tracked run, or, where ``memory`` names one, continue it."""
        ...

    def log(self, step: int, scalars: Mapping[str, float], histograms: Mapping[str, Values]) -> None:
        """What an epoch that ended at optimizer step ``step`` has shown."""
        ...

    def close(self, result: Mapping[str, Any] | None) -> None:
        """The run ended with this result, or (None) was stopped and may go on another day."""
        ...


# By name: the module here with a class ``Tracker``, and the package that it needs.
TRACKERS: Registry[tuple[str, str]] = Registry("tracker")
TRACKERS.add("tensorboard", ("tensorboard_tracker", "tensorboard"))
TRACKERS.add("wandb", ("wandb_tracker", "wandb"))
TRACKERS.add("mlflow", ("mlflow_tracker", "mlflow"))


def parse_trackers(text: str) -> list[str]:
    """The names in ``tensorboard,mlflow``, whose packages are there; ``none`` is no tracker."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    if names == ["none"]:
        return []
    for name in names:
        if name not in TRACKERS:
            raise ValueError(f"--track {text}: {name!r} is no tracker; choose from {', '.join(TRACKERS)}, or none")
        new_tracker(name, {})
    return names


def new_tracker(name: str, memory: dict[str, Any]) -> Tracker:
    """A tracker that isn't started yet; its package is imported here, so that a missing one is found at once."""
    module, package = TRACKERS[name]
    try:
        found = importlib.import_module(f".{module}", __package__)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("fastslow"):
            raise  # a mistake of ours: nothing to install
        raise ValueError(
            f"--track {name} needs the package {package} ({error.name} is missing): pip install 'fastslow[{name}]'"
        ) from error
    return found.Tracker(memory)
