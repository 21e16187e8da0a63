"""A run on disk: ``config.json``, ``metrics.jsonl``, ``checkpoints/`` and, when finished, ``result.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .checkpoint import Checkpoints, write_atomically
from .config import RunConfig

_CONFIG, _METRICS, _RESULT = "config.json", "metrics.jsonl", "result.json"


class RunError(ValueError):
    """A run folder that can't be used so, and what to do."""


class RunFolder:
    """Reads and writes one run. Nothing that exists is ever overwritten by a new run."""

    def __init__(self, path: str | Path, keep_checkpoints: int = 2) -> None:
        self.path = Path(path)
        self.checkpoints = Checkpoints(self.path / "checkpoints", keep_checkpoints)

    @classmethod
    def create(cls, path: str | Path, config: RunConfig) -> RunFolder:
        folder = cls(path)
        if (folder.path / _CONFIG).exists():
            raise RunError(
                f"{folder.path} already holds a run; continue it with `fastslow resume {folder.path}`, "
                "or choose another --run"
            )
        if folder.path.exists() and not folder.path.is_dir():
            raise RunError(f"{folder.path} is a file; choose another --run")
        folder.path.mkdir(parents=True, exist_ok=True)
        folder._write(_CONFIG, config.to_dict())
        return folder

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        folder = cls(path)
        if not (folder.path / _CONFIG).is_file():
            raise RunError(f"{folder.path} holds no run (no {_CONFIG}); give the folder that `fastslow train` named")
        return folder

    def config(self) -> RunConfig:
        return RunConfig.from_dict(self._read(_CONFIG))

    def result(self) -> dict[str, Any] | None:
        """The finished run's result, or None."""
        return self._read(_RESULT) if (self.path / _RESULT).is_file() else None

    def write_result(self, result: dict[str, Any]) -> None:
        self._write(_RESULT, result)

    def append_metrics(self, row: dict[str, Any]) -> None:
        with open(self.path / _METRICS, "a") as file:
            file.write(json.dumps(row) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        path = self.path / _METRICS
        if not path.is_file():
            return []
        rows = []
        for line in path.read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break  # a line cut short by a crash; what follows it, if anything, is from after the checkpoint
        return rows

    def rewind_metrics(self, rows: list[dict[str, Any]]) -> None:
        """Put the metrics back to what they were when the checkpoint was taken."""
        write_atomically(self.path / _METRICS, "".join(json.dumps(row) + "\n" for row in rows).encode())

    def _write(self, name: str, content: dict[str, Any]) -> None:
        write_atomically(self.path / name, (json.dumps(content, indent=1) + "\n").encode())

    def _read(self, name: str) -> dict[str, Any]:
        path = self.path / name
        try:
            content = json.loads(path.read_text())
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise RunError(f"{path} can't be read ({error}); the run folder is damaged") from error
        if not isinstance(content, dict):
            raise RunError(f"{path} holds no JSON object; the run folder is damaged")
        return content
