"""Every test starts alike: one thread, so that sums are in the same order everywhere, and logging as it was."""

from __future__ import annotations

import logging
import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, and for every process that a test starts

import pytest
import torch

torch.set_num_threads(1)


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
