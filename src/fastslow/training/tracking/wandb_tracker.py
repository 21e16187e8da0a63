"""Weights & Biases. ``WANDB_MODE=offline`` needs no network; ``WANDB_PROJECT`` names another project than fastslow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import wandb

from .base import Values

_BINS = 64


class Tracker:
    draws_histograms = True

    def __init__(self, memory: dict[str, Any]) -> None:
        self.memory = memory
        self._run: Any = None

    def start(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.memory.setdefault("id", os.urandom(4).hex())
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fastslow"),
            id=self.memory["id"],
            name=folder.name,
            dir=str(folder),
            config=dict(config),
            # Offline parts of one run have the same id: `wandb sync` puts them together.
            resume=None if os.environ.get("WANDB_MODE") == "offline" else "allow",
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )

    def log(self, step: int, scalars: Mapping[str, float], histograms: Mapping[str, Values]) -> None:
        drawn = {name: wandb.Histogram(np_histogram=np.histogram(v, _BINS)) for name, v in histograms.items()}
        self._run.log({**scalars, **drawn}, step=step)

    def close(self, result: Mapping[str, Any] | None) -> None:
        if self._run is None:
            return
        if result is not None:
            self._run.summary.update(dict(result))
        self._run.finish()
