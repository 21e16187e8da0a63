"""Where a run's news goes. The run folder always keeps the numbers; a sink shows them."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch import nn


class Sink(Protocol):
    """What the training loop tells while it runs."""

    def start(self, description: str, done: int, total: int, rows: Sequence[Mapping[str, Any]] = ()) -> None:
        """Steps done and in all; the rows of the epochs that earlier processes of the run have done."""
        ...

    def step(self, done: int, loss: float | None) -> None: ...

    def epoch(self, row: dict[str, Any]) -> None: ...

    def network(self, row: Mapping[str, Any], model: nn.Module, flips: Mapping[str, float]) -> None:
        """After ``epoch``: the network, the last step's gradients still in place, and each layer's share of flips."""
        ...

    def result(self, result: Mapping[str, Any]) -> None:
        """The run has reached its end."""
        ...

    def close(self) -> None: ...


class Silent:
    """Shows nothing."""

    def start(self, description: str, done: int, total: int, rows: Sequence[Mapping[str, Any]] = ()) -> None:
        pass

    def step(self, done: int, loss: float | None) -> None:
        pass

    def epoch(self, row: dict[str, Any]) -> None:
        pass

    def network(self, row: Mapping[str, Any], model: nn.Module, flips: Mapping[str, float]) -> None:
        pass

    def result(self, result: Mapping[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass


class Sinks:
    """Several sinks as one, told in this order."""

    def __init__(self, *sinks: Sink) -> None:
        self._sinks = sinks

    def start(self, description: str, done: int, total: int, rows: Sequence[Mapping[str, Any]] = ()) -> None:
        for sink in self._sinks:
            sink.start(description, done, total, rows)

    def step(self, done: int, loss: float | None) -> None:
        for sink in self._sinks:
            sink.step(done, loss)

    def epoch(self, row: dict[str, Any]) -> None:
        for sink in self._sinks:
            sink.epoch(row)

    def network(self, row: Mapping[str, Any], model: nn.Module, flips: Mapping[str, float]) -> None:
        for sink in self._sinks:
            sink.network(row, model, flips)

    def result(self, result: Mapping[str, Any]) -> None:
        for sink in self._sinks:
            sink.result(result)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()


class ConsoleSink(Silent):
    """A line an epoch on stderr, and a progress bar where that is a terminal."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stderr, highlight=False, soft_wrap=True)
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._shown = 0.0

    def start(self, description: str, done: int, total: int, rows: Sequence[Mapping[str, Any]] = ()) -> None:
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._progress = Progress(
                *columns, TextColumn("{task.fields[loss]}"), console=self._console, transient=True
            )
            self._progress.start()
            self._task = self._progress.add_task(description, total=total, completed=done, loss="")
        else:
            self._console.print(description)

    def step(self, done: int, loss: float | None) -> None:
        if self._progress is not None and time.monotonic() - self._shown > 0.1:
            self._shown = time.monotonic()
            text = "" if loss is None else f"loss {loss:.3f}"
            self._progress.update(self._task, completed=done, loss=text)

    def epoch(self, row: dict[str, Any]) -> None:
        parts = [f"epoch {row['epoch']:>3}", f"loss {row['train_loss']:.4f}", f"train {row['train_accuracy']:.2f} %"]
        parts.append(f"test {row['test_accuracy']:.2f} %")
        if "flip_ratio" in row:
            parts.append(f"flips {100 * row['flip_ratio']:.2f} %")
        parts.append(f"{row['seconds']:.1f} s")
        self._console.print("  ".join(parts))

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
