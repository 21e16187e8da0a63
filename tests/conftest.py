"""One thread for every test: sums are then in the same order everywhere, and two workers don't fight over two cores."""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, and for every process that a test starts

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _one_thread():
    """Whatever a test did about threads ends with it."""
    yield
    torch.set_num_threads(1)
