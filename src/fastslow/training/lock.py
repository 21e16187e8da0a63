"""One process a run folder: the lock of a run that is being written."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import IO

_INHERITED = "FASTSLOW_LOCK"  # the descriptor of a lock that the process which started this one took for it


class Busy(ValueError):
    """Another process has the run in hand."""


class RunLock:
    """While entered, no other process can enter the lock of the same folder; entering twice is entering once.

    The operating system holds the lock for the process and drops it with the process, however that ends: nothing has to
    be cleaned up after a crash. The file in the folder only says who holds it.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / ".lock"
        self._file: IO[bytes] | None = None
        self._depth = 0

    def __enter__(self) -> RunLock:
        if self._file is None:
            self._file = self._take()
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._file is not None:
            self._file.close()
            self._file = None

    def hand_over(self) -> tuple[int, dict[str, str]]:
        """For a process to be started: the descriptor to pass to it, and what to add to its environment."""
        assert self._file is not None
        return self._file.fileno(), {_INHERITED: str(self._file.fileno())}

    def _take(self) -> IO[bytes]:
        file = self._inherited() or open(self.path, "a+b")  # noqa: SIM115 (held open as long as the lock)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise Busy(
                f"{self.path.parent} is in use by {self._holder()}; wait for it to end or stop it, then resume the run"
            ) from error
        with suppress(OSError):  # on a full disk the lock holds as well, but can't say whose it is
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
        return file

    def _inherited(self) -> IO[bytes] | None:
        """A lock on this file that came with the process: what it holds, it holds already."""
        given = os.environ.get(_INHERITED, "")
        try:
            if not os.path.samestat(os.fstat(int(given)), self.path.stat()):
                return None
            return os.fdopen(int(given), "a+b")
        except (ValueError, OSError):
            return None
        finally:
            os.environ.pop(_INHERITED, None)

    def _holder(self) -> str:
        try:
            content = json.loads(self.path.read_text())
            return f"process {int(content['pid'])} on {content['host']}"
        except (OSError, ValueError, LookupError, TypeError):
            return "another process"
