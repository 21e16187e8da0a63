"""What is said to who waits, and that nothing is where nobody has to."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from fastslow.training.patience import Patience


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def wait_for(caplog: pytest.LogCaptureFixture) -> None:
    deadline = time.monotonic() + 30
    while not said(caplog) and time.monotonic() < deadline:
        time.sleep(0.005)


def test_a_long_wait_is_explained_while_it_lasts_and_once(caplog):
    caplog.set_level(logging.INFO, "fastslow")
    patience = Patience("kernels 100 % compiled", seconds=0.01)
    with patience.waiting():
        wait_for(caplog)
        assert said(caplog) == ["kernels 100 % compiled"]
    with patience.waiting():
        time.sleep(0.05)
    assert said(caplog) == ["kernels 100 % compiled"]


def timers() -> list[threading.Timer]:
    return [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_a_short_wait_is_not_and_leaves_no_thread_behind_also_where_it_ends_with_an_error(caplog):
    caplog.set_level(logging.INFO, "fastslow")
    patience = Patience("never", seconds=600)
    with patience.waiting():
        pass
    with pytest.raises(KeyError), patience.waiting():
        raise KeyError
    for timer in timers():
        timer.join(30)
    assert timers() == []
    assert said(caplog) == []
