"""A word to who waits: what takes so long, said only where it does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("fastslow")


class Patience:
    """Says a sentence, once, when something has taken so many seconds and isn't finished."""

    def __init__(self, sentence: str, seconds: float = 10.0) -> None:
        self.sentence, self.seconds = sentence, seconds
        self._said = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        if self._said:
            yield
            return
        timer = threading.Timer(self.seconds, self._say)
        timer.daemon = True  # who interrupts the wait isn't held up by it
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _say(self) -> None:
        self._said = True
        log.info("%s", self.sentence)
