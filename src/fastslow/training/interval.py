"""When a run takes a checkpoint."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass

_PART = re.compile(r"(\d+(?:\.\d+)?) *(steps?|epochs?|min)")


@dataclass(frozen=True)
class Interval:
    """So many steps, epochs or minutes; where several are given, each by itself is a reason."""

    steps: int | None = None
    epochs: int | None = None
    minutes: float | None = None

    @classmethod
    def parse(cls, text: str) -> Interval:
        """From a text such as ``500steps``, ``2epochs``, ``10min`` or ``1epoch,5min``.

        Examples:
            >>> Interval.parse("2epochs,10min")
            Interval(steps=None, epochs=2, minutes=10.0)
        """
        found: dict[str, float] = {}
        for part in text.split(","):
            match = _PART.fullmatch(part.strip())
            unit = "" if match is None else {"s": "steps", "e": "epochs", "m": "minutes"}[match[2][0]]
            number = 0.0 if match is None else float(match[1])
            whole = unit == "minutes" or number == math.floor(number)
            if not 0 < number < 1e12 or not whole or unit in found:
                raise ValueError(
                    f"checkpoint_every={text!r}: give steps, epochs or minutes, for example 500steps, 2epochs, 10min, "
                    "or several: 1epoch,5min"
                )
            found[unit] = number if unit == "minutes" else int(number)
        return cls(**found)  # pyright: ignore[reportArgumentType]


class SaveClock:
    """Says when a checkpoint is due, and remembers when the last one was taken."""

    def __init__(self, interval: Interval) -> None:
        self.interval = interval
        self._saved_at = time.monotonic()

    def due_after_step(self, done: int) -> bool:
        steps, minutes = self.interval.steps, self.interval.minutes
        late = minutes is not None and time.monotonic() - self._saved_at >= 60 * minutes
        return late or (steps is not None and done % steps == 0)

    def due_after_epoch(self, done: int) -> bool:
        return self.interval.epochs is not None and done % self.interval.epochs == 0

    def saved(self) -> None:
        self._saved_at = time.monotonic()
