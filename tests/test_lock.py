"""Two processes never write into one run folder."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

import tiny
from fastslow import cli
from fastslow.training.lock import Busy, RunLock
from fastslow.training.run import RunFolder

HOLD = """
import sys
from pathlib import Path
from fastslow.training.lock import RunLock
with RunLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock of ``tmp_path / "run"`` until it is killed."""
    tiny.trainer(tiny.config(), tmp_path / "run")
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_second_process_refuses_and_a_killed_one_leaves_nothing_behind(tmp_path, holder, monkeypatch, capsys):
    run = tmp_path / "run"
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    sentence = rf"{run} is in use by process {holder.pid} on {socket.gethostname()}; wait for it to end or stop it"
    for refused in (lambda: tiny.resumed(run), tiny.Trainer(tiny.config(), tiny.dataset(), run=RunFolder(run)).fit):
        with pytest.raises(Busy, match=sentence):
            refused()
    monkeypatch.setattr(sys, "argv", ["fastslow", "resume", str(run)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith(f"fastslow: {run} is in use by process {holder.pid}")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == files
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    tiny.resumed(run).fit()
    assert RunFolder.open(run).result() is not None


def test_two_that_create_at_the_same_time(tmp_path, holder):
    (tmp_path / "run" / "config.json").unlink()  # as if the other one were just about to write it
    with pytest.raises(Busy, match=f"process {holder.pid}"):
        RunFolder.create(tmp_path / "run", tiny.config())


def test_entering_twice_is_entering_once(tmp_path):
    lock, other = RunLock(tmp_path), RunLock(tmp_path)
    with lock:
        with lock, pytest.raises(Busy, match=f"process {os.getpid()} on"), other:
            pass
        with pytest.raises(Busy), other:
            pass
    with other:
        pass


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"pid": "x", "host": 1}', "\x00"])
def test_a_lock_file_that_says_nothing(tmp_path, content):
    with RunLock(tmp_path):
        (tmp_path / ".lock").write_text(content)
        with pytest.raises(Busy, match="in use by another process"), RunLock(tmp_path):
            pass


def test_a_lock_is_handed_to_a_process(tmp_path):
    """The grid takes a run's lock and its worker goes on holding it, although the grid has closed it."""
    lock = RunLock(tmp_path)
    with lock:
        descriptor, mark = lock.hand_over()
        command = [sys.executable, "-c", HOLD, str(tmp_path)]
        worker = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | mark,
            pass_fds=(descriptor,),
            text=True,
        )
    with worker:
        with pytest.raises(Busy), lock:  # before the worker has even started
            pass
        assert worker.stdout is not None
        assert worker.stdout.readline() == "held\n"
        with pytest.raises(Busy, match=f"process {worker.pid} on"), lock:
            pass
    assert worker.returncode == 0
    with lock:
        pass


@pytest.mark.parametrize("mark", ["no number", "99", "0"])
def test_a_descriptor_of_something_else_is_not_taken_for_the_lock(tmp_path, monkeypatch, mark):
    monkeypatch.setenv("FASTSLOW_LOCK", mark)
    with RunLock(tmp_path):
        assert "FASTSLOW_LOCK" not in os.environ
        with pytest.raises(Busy), RunLock(tmp_path):
            pass
