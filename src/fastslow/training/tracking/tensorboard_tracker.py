"""TensorBoard: event files in the run's folder, ``tensorboard --logdir runs``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorboard as tensorboard  # torch's writer would miss it later, and say so less clearly
from torch.utils.tensorboard import SummaryWriter

from .base import Values


class Tracker:
    draws_histograms = True

    def __init__(self, memory: dict[str, Any]) -> None:
        self.memory = memory
        self._writer: SummaryWriter | None = None

    def start(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._writer = SummaryWriter(str(folder / "tensorboard"))  # beside the files of earlier processes
        if not self.memory:
            self._writer.add_text("config", f"```json\n{json.dumps(dict(config), indent=1)}\n```", 0)
            self.memory["folder"] = "tensorboard"

    def log(self, step: int, scalars: Mapping[str, float], histograms: Mapping[str, Values]) -> None:
        assert self._writer is not None
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)
        for name, values in histograms.items():
            self._writer.add_histogram(name, values, step)
        self._writer.flush()  # what a full disk refuses is heard of here

    def close(self, result: Mapping[str, Any] | None) -> None:
        if self._writer is not None:
            self._writer.close()
