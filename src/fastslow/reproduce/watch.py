"""How a grid tells people where it stands."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from ..training.named_weights import file_digest
from .grid import Grid, Outcome, Snapshot
from .plan import PlannedRun
from .record import weights_files

EVERY_SECONDS = 30.0  # between two lines where there is no terminal


class Watch:
    """A bar over the epochs of the whole grid on a terminal, else a line now and then."""

    def __init__(self) -> None:
        self.console = Console(file=sys.stderr, highlight=False, soft_wrap=True)
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._last: float | None = None
        self._finished = -1

    def __call__(self, snapshot: Snapshot) -> None:
        if self.console.is_terminal:
            self._bar(snapshot)
            return
        now = time.monotonic()
        if self._last is None or now - self._last >= EVERY_SECONDS or snapshot.finished != self._finished:
            self._last, self._finished = now, snapshot.finished
            self.console.print(describe(snapshot))

    def _bar(self, snapshot: Snapshot) -> None:
        if self._progress is None:
            columns = (TextColumn("{task.fields[text]}"), BarColumn(), TextColumn("{task.fields[left]}"))
            self._progress = Progress(*columns, console=self.console, transient=True)
            self._progress.start()
            self._task = self._progress.add_task("", total=snapshot.epochs, text="", left="")
        running = ", ".join(f"{name} {done}/{epochs}" for name, done, epochs in snapshot.active[:2])
        self._progress.update(
            self._task,
            completed=snapshot.epochs_done,
            text=f"{snapshot.finished}/{snapshot.total} runs  {running}",
            left=_left(snapshot),
        )

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def describe(snapshot: Snapshot) -> str:
    """One line: ``3/35 runs, 412/3500 epochs; resnet20/adam/fsg/seed0 12/100; about 1 h 20 min left``."""
    parts = [f"{snapshot.finished}/{snapshot.total} runs, {snapshot.epochs_done}/{snapshot.epochs} epochs"]
    parts += [f"{name} {done}/{epochs}" for name, done, epochs in snapshot.active]
    return "; ".join([*parts, *([_left(snapshot)] if _left(snapshot) else [])])


def _left(snapshot: Snapshot) -> str:
    return "" if not snapshot.seconds_left else f"about {duration(snapshot.seconds_left)} left"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def dry_run_lines(grid: Grid) -> list[str]:
    """What a call would do, a line for each run; then the float weights that it found, by which runs are told apart."""
    outcome = grid.survey()
    lines, found = [], {}
    for run in grid.runs:
        if run.name in outcome.finished_before:
            state = "finished"
        elif run.name in outcome.blocked:
            state = "no weights"
        else:
            done = grid.epochs_done(run)
            state = f"at {done}/{run.config.epochs} epochs" if done else f"{run.config.epochs} epochs"
        lines.append(f"{run.config.key}  {state:<18} {run.name}")
        if run.name not in outcome.blocked:
            found |= dict.fromkeys(_weights(run))
    return [*lines, *(f"from {path} ({file_digest(path)[:8]})" for path in sorted(found))]


def _weights(run: PlannedRun) -> list[Path]:
    """The files that it would start from, if they are there: a finished run needs none."""
    try:
        return [path for path in weights_files(run.config).values() if path.is_file()]
    except ValueError:
        return []


def summary_lines(outcome: Outcome) -> list[str]:
    """The end of a grid in words."""
    lines = [
        f"{len(outcome.finished)} runs finished now, {len(outcome.finished_before)} before, {len(outcome.left)} left"
        + (f"; stopped by {outcome.stopped_by}, the same command goes on" if outcome.stopped_by else "")
    ]
    lines += [f"diverged: {name}: {why}" for name, why in outcome.diverged.items()]
    lines += [f"failed: {name}: {why}" for name, why in outcome.failed.items()]
    by_reason: dict[str, list[str]] = {}
    for name, why in outcome.blocked.items():
        by_reason.setdefault(why, []).append(name)
    lines += [f"not started: {len(names)} runs, {names[0]} first: {why}" for why, names in by_reason.items()]
    return lines
