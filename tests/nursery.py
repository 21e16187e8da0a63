"""A process that has imported everything and makes training processes on demand, in no time and really killable.

``python tests/nursery.py`` reads a JSON object a line: the arguments of a ``fastslow`` command and what shall happen to
it. It forks, answers with the new process's id, then with how that one ended.
"""

from __future__ import annotations

import builtins
import io
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import Any

import torch

import tiny
from fastslow import cli, files
from fastslow.data import dataset

_NOBODY = 65534


class Nursery:
    """The test's end of it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, *argv: str | Path, log: Path, **trouble: Any) -> int:
        """Start ``fastslow ARGV``; returns its process id."""
        return self._ask({"argv": [str(word) for word in argv], "log": str(log), **trouble})

    def wait(self) -> int:
        """The exit code of the process started last, negative for a signal."""
        return self._answer()

    def close(self) -> None:
        with self.process:
            assert self.process.stdin is not None
            self.process.stdin.close()

    def _ask(self, wish: dict[str, Any]) -> int:
        assert self.process.stdin is not None
        print(json.dumps(wish), file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())


# -- in the nursery itself ---------------------------------------------------------------------------------------------


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(call: int, after: bool) -> None:
    """SIGKILL before or after the so-and-so-many-th call with which a file is made to last."""
    left = [call]

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and not after:
                _die()
            result = real(*args, **kwargs)
            if left[0] == 0:
                _die()
            return result

        return function

    os.fsync, os.replace, os.unlink = counted(os.fsync), counted(os.replace), counted(os.unlink)


def kill_in_write(call: int) -> None:
    """SIGKILL when half of the so-and-so-many-th file is written."""
    left = [call]

    def half_open(path: Any, mode: str) -> Any:
        left[0] -= 1
        file = builtins.open(path, mode)  # noqa: SIM115 (its caller closes it)
        if left[0] == 0:
            content = Path(path).name.encode() * 100
            file.write(content[: len(content) // 2])
            file.flush()
            _die()
        return file

    files.open = half_open  # pyright: ignore[reportAttributeAccessIssue]


def no_longer_than(size: int) -> None:
    """No file may grow beyond this: what a full disk is to a process."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def unprivileged(folder: str) -> None:
    """From now on in this folder, and without root's right to write anywhere."""
    os.chdir(folder)
    if os.geteuid() == 0:
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)


_TROUBLES = {
    "kill_at": kill_at,
    "kill_in_write": kill_in_write,
    "no_longer_than": no_longer_than,
    "unprivileged": unprivileged,
}


def run(wish: dict[str, Any]) -> int:
    """In the forked process: the command line, with its output in a file."""
    log = os.open(wish["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    for name, arm in _TROUBLES.items():
        if name in wish:
            given = wish[name]
            arm(*given if isinstance(given, list) else [given])
    sys.argv = ["fastslow", *wish["argv"]]
    try:
        cli.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def main() -> None:
    torch.set_num_threads(1)
    dataset._DATASETS.add(
        "tiny", lambda root, download, url: {"train": tiny.dataset().train, "test": tiny.dataset().test}.__getitem__
    )
    # Whatever is imported or made late shall be there before a process is forked.
    tiny.step(tiny.trainer(tiny.config("fsg")), 2)
    with redirect_stderr(io.StringIO()), suppress(SystemExit):
        sys.argv = ["fastslow", "resume", "no run"]
        cli.main()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                code = run(json.loads(line))
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
