"""Every test starts alike: one thread, so that sums are in the same order everywhere, and logging as it was."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, and for every process that a test starts

import pytest
import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a module with kernels is imported, by whichever test comes first


@pytest.fixture(autouse=True)
def _start_alike():
    """Whatever an earlier test or a module's fixture did about threads, or a command about logging, is undone."""
    torch.set_num_threads(1)
    for name in (None, "fastslow"):
        log = logging.getLogger(name)
        for handler in [h for h in log.handlers if not type(h).__module__.startswith("_pytest")]:  # a command's
            log.removeHandler(handler)
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("fastslow").setLevel(logging.NOTSET)


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """The command line in this process, with its working folder in a place of its own."""
    from calling import Answer
    from fastslow import cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FASTSLOW_DATA", str(tmp_path / "no-data"))
    log = logging.getLogger("fastslow")
    monkeypatch.setattr(log, "level", log.level)

    def run(*arguments: object) -> Answer:
        monkeypatch.setattr(log, "handlers", [])  # as in a new process
        monkeypatch.setattr(sys, "argv", ["fastslow", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return Answer(stop.value.code, out, err)

    return run


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data set of two classes, 36 training and 4 test images."""
    from calling import write_pictures

    return write_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def finished(pictures, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run on the pictures."""
    from calling import finish_run

    return finish_run(tmp_path_factory.mktemp("finished") / "run", pictures)
