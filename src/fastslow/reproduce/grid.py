"""The grid: which runs are done, several at a time, and what stops them without loss."""

from __future__ import annotations

import hashlib
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from ..training.interrupt import StopRequests
from ..training.lock import Busy
from ..training.run import RunFolder
from .plan import PlannedRun
from .record import (
    failed_record,
    finished_record,
    finished_starts,
    record_path,
    start_of,
    told_by,
    weights_files,
    write_record,
)
from .worker import Worker, noted, open_run, resume_command

DIVERGED = "training diverged"


@dataclass
class Outcome:
    """What became of the runs of a grid, by their names."""

    finished_before: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    diverged: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)  # with the sentence it ended with
    blocked: dict[str, str] = field(default_factory=dict)  # can't start: no weights, or in another process's hands
    left: list[str] = field(default_factory=list)  # stopped or never begun; the next call goes on
    stopped_by: str | None = None
    signal: int | None = None


@dataclass(frozen=True)
class Snapshot:
    """The state of a grid at one moment, for those who watch."""

    total: int
    finished: int
    active: list[tuple[str, int, int]]  # name, epochs done, epochs
    epochs_done: int
    epochs: int
    seconds_left: float | None


class Grid:
    """Runs of a plan, ``jobs`` at a time, each in its folder below ``folders``, recorded in ``results``."""

    def __init__(
        self,
        runs: Sequence[PlannedRun],
        *,
        results: Path,
        folders: Path,
        device: str = "auto",
        jobs: int = 1,
        data_root: Path | None = None,
        minutes: float | None = None,
        show: Callable[[Snapshot], None] = lambda snapshot: None,
        prepare: Callable[[list[PlannedRun]], None] = lambda left: None,
        pause: float = 0.25,
        command: Callable[[Path], list[str]] | None = None,
    ) -> None:
        if jobs < 1:
            raise ValueError(f"--jobs {jobs}: give a whole number of at least 1")
        if minutes is not None and not minutes > 0:
            raise ValueError(f"--minutes {minutes:g}: give a number above 0")
        self.runs = list(runs)
        self.results, self.folders = results.resolve(), folders.resolve()
        for option, path in (("--out", self.results), ("--runs", self.folders)):
            if path.exists() and not path.is_dir():
                raise ValueError(f"{option} {path}: it is a file; name a folder")
        self.device, self.jobs, self.minutes = device, jobs, minutes
        self.command = command or (lambda folder: resume_command(folder, device, data_root))
        self.show, self.prepare, self.pause = show, prepare, pause
        self.outcome = Outcome()
        self.pending: list[PlannedRun] = []
        self._named_by_start: dict[str, Path] = {}
        self.active: list[Worker] = []
        self._speeds: dict[tuple[str, str, str | None], float] = {}  # seconds an epoch

    # -- what stands --------------------------------------------------------------------------------------------------

    def place(self, run: PlannedRun) -> Path:
        """``run.place``, and behind it what the run starts from where the config only names that."""
        return self._named_by_start.get(run.name, run.place)

    def folder(self, run: PlannedRun) -> Path:
        return self.folders / self.place(run)

    def survey(self) -> Outcome:
        """Sort the runs into finished, blocked and pending; changes nothing on disk."""
        self.outcome = Outcome()
        self.pending = []
        known = finished_starts(self.results)
        for run in self.runs:
            recorded = known.get(run.config.key)
            reason = _missing_weights(run)
            if recorded is not None and (reason is not None or _start(run) in recorded):
                self.outcome.finished_before.append(run.name)
            elif reason is not None:
                self.outcome.blocked[run.name] = reason
            else:
                # Of another start the same run is another one, here or on a machine whose results are copied here.
                begun = recorded is None and (self.folders / run.place).exists()  # before names said so
                if (start := _start(run)) and not begun:
                    self._named_by_start[run.name] = run.place.with_name(f"{run.stem}-from-{_short(start)}")
                self.pending.append(run)
        return self.outcome

    def epochs_done(self, run: PlannedRun) -> int:
        """Epochs that a run's folder already holds."""
        return len(RunFolder(self.folder(run)).metrics())

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Until all is done, the minutes are over, or somebody says stop. Always leaves a state that goes on."""
        self.survey()
        self.prepare(self.pending)  # what all of them need, before the first one starts
        deadline = None if self.minutes is None else time.monotonic() + 60 * self.minutes
        stopping = False
        try:
            with StopRequests() as stop:
                while self.active or (self.pending and not stopping):
                    if stop.received is not None and not stopping:
                        self.outcome.signal = stop.received
                        stopping = self._stop(signal.Signals(stop.received).name)
                    elif deadline is not None and time.monotonic() > deadline and not stopping:
                        stopping = self._stop(f"the limit of {self.minutes:g} minutes")
                    self._reap()
                    if not stopping:
                        self._launch()
                    self.show(self.snapshot())
                    if self.active:
                        time.sleep(self.pause)
        except BaseException:  # a second Ctrl-C, an error of ours: nobody would watch the workers any more
            for worker in self.active:
                worker.stop()
            raise
        self.outcome.left += [run.name for run in self.pending]
        return self.outcome

    def _stop(self, reason: str) -> bool:
        self.outcome.stopped_by = reason
        for worker in self.active:
            worker.stop()
        return True

    def _launch(self) -> None:
        while self.pending and len(self.active) < self.jobs:
            run = self.pending.pop(0)
            folder = self.folder(run)
            try:
                if self._is_recorded(run):  # by another grid, or copied here, since this one looked
                    self.outcome.finished_before.append(run.name)
                elif (folder / "result.json").is_file():  # finished, but the grid was killed before it took note
                    self._record(run, open_run(folder, run))
                else:
                    self.active.append(Worker(run, folder, self.command(folder), self.jobs))
            except Busy as busy:
                self.outcome.blocked[run.name] = str(busy)
            except ValueError as error:  # a damaged folder, or begun from other weights: the others can go on
                self.outcome.failed[run.name] = str(error)

    def _is_recorded(self, run: PlannedRun) -> bool:
        return _start(run) in finished_starts(self.results).get(run.config.key, ())

    def _reap(self) -> None:
        for worker in list(self.active):
            if (speed := worker.seconds_per_epoch) is not None:
                self._speeds[_kind(worker.planned)] = speed
            if worker.process.poll() is None:
                continue
            self.active.remove(worker)
            run = worker.planned
            if worker.process.returncode == 0:
                self._record(run, worker.run)
            elif worker.was_stopped():
                if self.outcome.stopped_by is not None:
                    self.outcome.left.append(run.name)
                else:
                    self.outcome.failed[run.name] = "somebody else stopped it; the same command goes on"
            elif DIVERGED in (words := worker.last_words()):
                record = failed_record(worker.run, self.device, words, noted(worker.run.path))
                if self._write(run, worker.run, record):
                    self.outcome.diverged[run.name] = words
            else:
                self.outcome.failed[run.name] = words

    def _record(self, run: PlannedRun, folder: RunFolder) -> None:
        """Of a finished run; a folder that can't be read is this run's trouble, not that of the others."""
        try:
            record = finished_record(folder, noted(folder.path))
        except (ValueError, LookupError, TypeError, AttributeError, OSError, SafetensorError) as error:
            self.outcome.failed[run.name] = f"{folder.path} is damaged ({error}); move it away"
            return
        if not self._write(run, folder, record):
            return
        if run.config.seed == 0 and (run.config.method or "").startswith("fsg"):
            for path in folder.checkpoints.paths()[:-1]:  # `fastslow diagnose` looks at the last one
                path.unlink()
        else:
            shutil.rmtree(folder.checkpoints.folder, ignore_errors=True)  # the weights stay
        self.outcome.finished.append(run.name)

    def _write(self, run: PlannedRun, folder: RunFolder, record: dict[str, Any]) -> bool:
        """Unless somebody else has meanwhile: what is recorded is never written twice."""
        try:
            if self._is_recorded(run):
                raise ValueError(f"somebody recorded it meanwhile; the run done here stays in {folder.path}")
        except ValueError as error:  # or something in results/ can't be read
            self.outcome.failed[run.name] = str(error)
            return False
        write_record(record_path(self.results, self.place(run)), record)
        return True

    # -- watching -----------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Where the grid stands. Runs that can't start are left out of the count."""
        active = [(w.planned.name, w.epochs_done, w.planned.config.epochs) for w in self.active]
        left = [(w.planned, w.planned.config.epochs - w.epochs_done) for w in self.active]
        left += [(run, run.config.epochs - self.epochs_done(run)) for run in self.pending]
        counted = [run for run in self.runs if run.name not in self.outcome.blocked]
        epochs = sum(run.config.epochs for run in counted)
        remaining = sum(count for _, count in left)
        return Snapshot(
            total=len(counted),
            finished=len(self.outcome.finished_before) + len(self.outcome.finished) + len(self.outcome.diverged),
            active=active,
            epochs_done=epochs - remaining,
            epochs=epochs,
            seconds_left=self._seconds_left(left),
        )

    def _seconds_left(self, left: list[tuple[PlannedRun, int]]) -> float | None:
        """From the speeds seen so far; a kind of run not seen yet counts as the mean of the others."""
        if not self._speeds:
            return None
        usual = sum(self._speeds.values()) / len(self._speeds)
        total = sum(epochs * self._speeds.get(_kind(run), usual) for run, epochs in left)
        return total / max(1, min(self.jobs, len(left)))


def _kind(run: PlannedRun) -> tuple[str, str, str | None]:
    return run.config.model, run.config.data, run.config.method


def _start(run: PlannedRun) -> str:
    return told_by(start_of(run.config))


def _short(start: str) -> str:
    """Eight digits of a SHA-256, or of that of several."""
    return start[:8] if len(start) == 64 else hashlib.sha256(start.encode()).hexdigest()[:8]


def _missing_weights(run: PlannedRun) -> str | None:
    try:
        paths = weights_files(run.config).values()
    except ValueError as error:
        return str(error)
    return next((f"there is no file {path}" for path in paths if not path.is_file()), None)
