"""One run of the grid as a process of its own: ``fastslow resume FOLDER``, the ordinary training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ..files import write_atomically
from ..training.config import RunConfig
from ..training.interrupt import STOPPING
from ..training.run import RunFolder
from .plan import PlannedRun
from .record import start_of

_LOG, _GRID = "log.txt", "grid.json"
_STOPPED = {code for number in STOPPING for code in (-number, 128 + number)}


class Worker:
    """A process that trains one run in its folder, from wherever the run stands."""

    def __init__(self, planned: PlannedRun, folder: Path, command: list[str], jobs: int) -> None:
        self.planned = planned
        self.run = open_run(folder, planned)
        with self.run.lock as lock:
            self._note(jobs)
            self.epochs_before = self.epochs_done
            self.began = time.monotonic()
            # A process group of its own: Ctrl-C in the terminal reaches the grid, which asks its workers to save. The
            # lock goes to the worker, and lasts as long as it does, even if the grid is killed.
            descriptor, mark = lock.hand_over()
            with open(folder / _LOG, "ab") as log:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=_environment(jobs) | mark,
                    process_group=0,
                    pass_fds=(descriptor,),
                )

    def _note(self, jobs: int) -> None:
        """What it starts from, once: a name may mean another file when it goes on.

        And the most processes that ever ran beside it: its seconds mean little if that is more than one.
        """
        known, now = noted(self.run.path), start_of(self.planned.config)
        start = known.get("start", now)
        if start != now:
            raise ValueError(
                f"{self.run.path} was begun from other float weights ({_named(start)}) than are found now "
                f"({_named(now)}); give the same --weights-dir, or move it away"
            )
        content = {"name": self.planned.name, "jobs": max(jobs, known.get("jobs", 1)), "start": start}
        write_atomically(self.run.path / _GRID, json.dumps(content).encode())

    @property
    def epochs_done(self) -> int:
        return len(self.run.metrics())

    @property
    def seconds_per_epoch(self) -> float | None:
        """By the clock, with evaluation and start; None before the first epoch."""
        done = self.epochs_done - self.epochs_before
        return (time.monotonic() - self.began) / done if done > 0 else None

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)

    def was_stopped(self) -> bool:
        """Whether it ended because it was asked to, with its state saved."""
        return self.process.returncode in _STOPPED

    def last_words(self) -> str:
        """The sentence that a failed run ended with."""
        code = self.process.returncode
        if code < 0:  # it had no time for a sentence
            why = " (out of memory?)" if code == -signal.SIGKILL else ""
            return f"killed by {signal.Signals(-code).name}{why}; the same command goes on from its checkpoint"
        lines = (self.run.path / _LOG).read_text(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("fastslow: ") if lines else f"exit code {code}"


def resume_command(folder: Path, device: str, data_root: Path | None) -> list[str]:
    """What a worker runs. A run without a checkpoint starts from its beginning."""
    command = [sys.executable, "-m", "fastslow", "resume", str(folder), "--device", device]
    return command if data_root is None else [*command, "--data-root", str(data_root)]


def open_run(folder: Path, planned: PlannedRun) -> RunFolder:
    """The folder of a planned run, new or as it stands; one that holds another run is refused."""
    if not (folder / "config.json").exists():
        return RunFolder.create(folder, planned.config)
    run = RunFolder.open(folder)
    result = run.result()
    found = [run.config(), *([] if result is None else [RunConfig.from_dict(result["config"])])]
    if any(config != planned.config for config in found):
        raise ValueError(f"{folder} holds another run than {planned.name}; move it away")
    return run


def noted(folder: Path) -> dict[str, Any]:
    """What the grid wrote down beside a run: its name, ``jobs`` and ``start``."""
    path = folder / _GRID
    if not path.is_file():
        return {}
    try:
        content = dict(json.loads(path.read_text()))
        if not isinstance(content.get("start", {}), dict):
            raise ValueError("its start is no table of digests")
        if type(content.get("jobs", 1)) is not int:
            raise ValueError("its jobs is no number")
        return content
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} can't be read ({error}); move {folder} away") from error


def _named(start: dict[str, str]) -> str:
    return " ".join(digest[:8] for digest in start.values()) or "none"


def _environment(jobs: int) -> dict[str, str]:
    """Cores are shared out: threads of several processes on the same cores wait for each other."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, cores // jobs)))
    return {**os.environ, "OMP_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1"}
