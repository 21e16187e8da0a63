"""MLflow, wherever ``MLFLOW_TRACKING_URI`` points (else MLflow's own choice); it draws no histograms."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from .base import Values


class Tracker:
    draws_histograms = False

    def __init__(self, memory: dict[str, Any]) -> None:
        self.memory = memory
        self._client: Any = None

    def start(self, folder: Path, config: Mapping[str, Any]) -> None:
        uri = self.memory.get("tracking_uri") or mlflow.get_tracking_uri()
        self._client = MlflowClient(tracking_uri=uri)
        if "run_id" in self.memory:
            self._client.update_run(self.memory["run_id"], status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fastslow")
        experiment = self._client.get_experiment_by_name(name)
        number = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        run_id = self._client.create_run(number, run_name=folder.name).info.run_id
        self._client.log_batch(run_id, params=[Param(key, str(value)) for key, value in config.items()])
        self.memory.update(tracking_uri=uri, run_id=run_id)

    def log(self, step: int, scalars: Mapping[str, float], histograms: Mapping[str, Values]) -> None:
        now = int(1000 * time.time())
        metrics = [Metric(key, value, now, step) for key, value in scalars.items()]
        self._client.log_batch(self.memory["run_id"], metrics=metrics)

    def close(self, result: Mapping[str, Any] | None) -> None:
        if self._client is None or "run_id" not in self.memory:
            return
        for key, value in (result or {}).items():
            self._client.set_tag(self.memory["run_id"], key, str(value))
        self._client.set_terminated(self.memory["run_id"], "KILLED" if result is None else "FINISHED")
