"""Ctrl-C, a cluster's SIGTERM and the end of a terminal end a run between two steps, where its state is whole."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType, TracebackType

from ..files import how_to_resume

_HANG_UP: int | None = getattr(signal, "SIGHUP", None)  # the terminal is gone; Windows has none
STOPPING = (signal.SIGINT, signal.SIGTERM) + (() if _HANG_UP is None else (_HANG_UP,))


class Interrupted(Exception):
    """The run was asked to stop, and has saved what it had. ``exit_code`` is the shell's convention."""

    def __init__(self, signal_number: int, done: int, run: Path | None) -> None:
        fix = f"saved: continue with {how_to_resume(run)}" if run else "nothing is saved, the run has no folder"
        super().__init__(f"stopped by {signal.Signals(signal_number).name} after step {done}; {fix}")
        self.exit_code = 128 + signal_number


class StopAskedError(Exception):
    """Work that changes nothing, and can be done again, was left for a request to stop."""


class StopRequests:
    """While entered, the first of these signals is only noted; a second SIGINT interrupts at once, as usual."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, object] = {}

    def heed(self) -> None:
        """Leave, if a request has come."""
        if self.received is not None:
            raise StopAskedError

    def __enter__(self) -> StopRequests:
        self.received = None
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                if number != _HANG_UP or signal.getsignal(number) == signal.SIG_DFL:  # nohup has set it aside
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
