"""A run on disk: ``config.json``, ``images.json``, ``metrics.jsonl``, ``checkpoints/``; when finished, weights and
``result.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..data import Description
from ..files import how_to_resume, make_folder, write_atomically
from .checkpoint import Checkpoints
from .config import RunConfig
from .lock import RunLock
from .trained_on import description, difference

_CONFIG, _METRICS, _RESULT, _IMAGES = "config.json", "metrics.jsonl", "result.json", "images.json"
WEIGHTS = "weights.safetensors"  # of the finished network: latent float weights, where it is binary


_REMEDY = {
    _CONFIG: "put back what it held, or start another run",
    _RESULT: "delete it and resume the run, which writes it again",
    _IMAGES: "put back what it held; or delete it, and the data is taken as it is now",
}


_RESULT_KEYS = ("test_accuracy", "best_test_accuracy", "best_epoch", "train_loss", "seconds", "config", "conditions")


class RunError(ValueError):
    """A run folder that can't be used so, and what to do."""


class RunFolder:
    """Reads and writes one run. Nothing that exists is ever overwritten by a new run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = Checkpoints(self.path / "checkpoints")
        self.lock = RunLock(self.path)

    @classmethod
    def create(cls, path: str | Path, config: RunConfig) -> RunFolder:
        folder = cls(path)
        folder.refuse_existing()
        make_folder(folder.path)
        with folder.lock:
            folder.refuse_existing()  # once more: who looked at the same time has been first
            folder._write(_CONFIG, config.to_dict())
        return folder

    def refuse_existing(self) -> None:
        """Raise unless a new run may be written here."""
        if (self.path / _CONFIG).exists():
            raise RunError(
                f"{self.path} already holds a run; continue it with {how_to_resume(self.path)}, "
                "or choose another folder with --run"
            )
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file; choose another folder with --run")

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        folder = cls(path)
        if not (folder.path / _CONFIG).is_file():
            raise RunError(f"{folder.path} holds no run (no {_CONFIG}); give the folder that `fastslow train` named")
        return folder

    def config(self) -> RunConfig:
        values = self._read(_CONFIG)
        try:
            return RunConfig.from_dict(values)
        except ValueError as error:
            raise RunError(f"{self.path / _CONFIG} can't be used: {error}") from error

    def keep_images(self, now: dict[str, Any]) -> None:
        """Write down what the run is trained on, or refuse what isn't what it was begun with."""
        if not (self.path / _IMAGES).is_file():  # a new run, or one begun before they were kept
            self._write(_IMAGES, now)
        elif changed := difference(self._read(_IMAGES), now):
            raise RunError(
                f"the run in {self.path} was begun with other images ({_IMAGES}): {changed}; put them back, or begin "
                "another run"
            )

    def images(self) -> Description | None:
        """The images that the run was begun with; None for one begun before they were kept."""
        if not (self.path / _IMAGES).is_file():
            return None
        held = self._read(_IMAGES)
        try:
            return description(held)
        except ValueError as error:
            raise RunError(f"{self.path / _IMAGES} can't be used: {error}; {_REMEDY[_IMAGES]}") from error

    def result(self) -> dict[str, Any] | None:
        """The finished run's result, or None."""
        if not (self.path / _RESULT).is_file():
            return None
        result = self._read(_RESULT)
        if absent := [key for key in _RESULT_KEYS if key not in result]:
            raise RunError(f"{self.path / _RESULT} has no {absent[0]!r}; {_REMEDY[_RESULT]}")
        if not isinstance(result["config"], dict):
            raise RunError(f"{self.path / _RESULT} has a config that is none; {_REMEDY[_RESULT]}")
        return result

    def write_result(self, result: dict[str, Any]) -> None:
        self._write(_RESULT, result)

    def append_metrics(self, row: dict[str, Any]) -> None:
        path = self.path / _METRICS
        try:
            with open(path, "a") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise RunError(
                f"the metrics {path} can't be written ({error.strerror}); make room or the folder writable, then "
                "resume the run"
            ) from error

    def metrics(self) -> list[dict[str, Any]]:
        path = self.path / _METRICS
        if not path.is_file():
            return []
        rows = []
        for line in path.read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError):
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
        except (OSError, ValueError, RecursionError) as error:  # unreadable, no text, no JSON, or JSON beyond measure
            raise RunError(f"{path} can't be read ({error}); {_REMEDY[name]}") from error
        if not isinstance(content, dict):
            raise RunError(f"{path} holds no JSON object; {_REMEDY[name]}")
        return content
