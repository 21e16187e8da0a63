"""From the training loop to the trackers: none of them can stop a run, and a resumed run is the same tracked run."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...convert import plain_name
from ...files import write_atomically
from ..config import RunConfig
from ..sinks import Silent
from .base import TRACKERS, Tracker, Values, new_tracker

log = logging.getLogger("fastslow")

_MEMORY = "tracking.json"
_NOT_DRAWN = ("epoch", "step")
_RESULT = ("test_accuracy", "best_test_accuracy", "best_epoch", "metric", "n_test", "seconds", "key")


def tracked_before(folder: Path) -> list[str]:
    """The trackers that a run's earlier processes used."""
    return [name for name in _read_memory(folder) if name in TRACKERS]


def _read_memory(folder: Path) -> dict[str, Any]:
    path = folder / _MEMORY
    if not path.is_file():
        return {}
    try:
        memory = json.loads(path.read_text())
        if isinstance(memory, dict) and all(isinstance(entry, dict) for entry in memory.values()):
            return memory
        reason = "it holds no JSON object of objects"
    except (OSError, ValueError) as error:
        reason = str(error)
    raise ValueError(f"{path} can't be read ({reason}); delete it, then the run is tracked anew")


class TrackerSink(Silent):
    """Feeds trackers an epoch at a time: ``Trainer(..., run=run, sink=TrackerSink(names, run.path, config))``."""

    def __init__(self, names: Sequence[str], folder: str | Path, config: RunConfig) -> None:
        self.folder = Path(folder)
        self.config = config
        memory = _read_memory(self.folder)
        self._memory = memory
        self._trackers: dict[str, Tracker] = {
            name: new_tracker(name, memory.get(name, {}).get("memory", {})) for name in names
        }
        self._logged = {name: int(memory.get(name, {}).get("step", 0)) for name in names}
        self._result: Mapping[str, Any] | None = None

    def start(self, description: str, done: int, total: int, rows: Sequence[Mapping[str, Any]] = ()) -> None:
        """Open the tracked runs; epochs that a tracker hasn't seen, because it is new to the run, are told first."""

        def open_and_catch_up(name: str, tracker: Tracker) -> None:
            tracker.start(self.folder.resolve(), self.config.to_dict())
            for row in rows:
                self._tell(name, tracker, row, {}, {})
            self._remember(name, tracker)

        self._each(open_and_catch_up)

    def network(self, row: Mapping[str, Any], model: nn.Module, flips: Mapping[str, float]) -> None:
        histograms = _histograms(model) if any(tracker.draws_histograms for tracker in self._trackers.values()) else {}

        def tell(name: str, tracker: Tracker) -> None:
            self._tell(name, tracker, row, flips, histograms if tracker.draws_histograms else {})
            self._remember(name, tracker)

        self._each(tell)

    def result(self, result: Mapping[str, Any]) -> None:
        self._result = {key: result[key] for key in _RESULT if key in result}

    def close(self) -> None:
        self._each(lambda name, tracker: tracker.close(self._result))
        self._trackers.clear()

    def _tell(
        self,
        name: str,
        tracker: Tracker,
        row: Mapping[str, Any],
        flips: Mapping[str, float],
        histograms: Mapping[str, Values],
    ) -> None:
        if row["step"] <= self._logged[name]:
            return  # told by a process that died before its checkpoint: the same epoch comes again
        scalars = {key: float(value) for key, value in row.items() if _is_scalar(key, value)}
        scalars |= {f"flips/{layer}": ratio for layer, ratio in flips.items()}
        tracker.log(row["step"], {"epoch": float(row["epoch"]), **scalars}, histograms)
        self._logged[name] = row["step"]

    def _remember(self, name: str, tracker: Tracker) -> None:
        self._memory[name] = {"step": self._logged[name], "memory": tracker.memory}
        write_atomically(self.folder / _MEMORY, (json.dumps(self._memory, indent=1) + "\n").encode())

    def _each(self, act: Callable[[str, Tracker], None]) -> None:
        """Do something with every tracker; one that fails is left out from then on, with one warning."""
        for name, tracker in list(self._trackers.items()):
            try:
                act(name, tracker)
            except Exception as error:  # whatever a tracker, its disk or its network comes up with
                del self._trackers[name]
                reason = " ".join(str(error).split())[:300] or type(error).__name__
                log.warning("tracking with %s has stopped: %s; training goes on without it", name, reason)


def _is_scalar(key: str, value: Any) -> bool:
    return key not in _NOT_DRAWN and isinstance(value, int | float) and not isinstance(value, bool)


@torch.no_grad()
def _histograms(model: nn.Module) -> dict[str, Values]:
    """Latent weights, and the gradients that the optimizer was given in the last step, of all that multiplies."""
    found: dict[str, Values] = {}
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            continue
        layer = plain_name(model, name).removesuffix(".weight")
        found[f"weights/{layer}"] = _finite(parameter)
        if parameter.grad is not None:
            found[f"gradients/{layer}"] = _finite(parameter.grad)
    return {name: values for name, values in found.items() if values.size}


def _finite(tensor: Tensor) -> Values:
    """What can be drawn: with ``--on-nan skip`` the gradients of a step that was left out are still there."""
    values = tensor.detach().float().cpu().numpy().reshape(-1)
    return values[np.isfinite(values)]
