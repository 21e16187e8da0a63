"""Ideas that lost and whose code is gone: what they were, and which file under ``results/retired/`` has their run.

Today's code refuses to run their configs, or runs something else, so they are no rows of :mod:`.research`. Outcomes:
docs/research.md.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Retired:
    """A row of the past: ``change`` says which fields differed from the defaults, ``file`` is below ``retired/``."""

    name: str
    hypothesis: str
    change: str
    file: str


def _rework(name: str, hypothesis: str, change: str, key: str) -> Retired:
    """The first form of fsg-plus. Another method has this name now, and shares the key of the run with defaults."""
    return Retired(name, hypothesis, change, f"fsg-plus-rework/fsg-plus-adam-seed0-{key}.json")


RETIRED = (
    _rework("fsg-plus", "An update reworked by what the next batches say of it.", "all defaults", "c21ae40edab1"),
    _rework("fsg-plus-slow", "The memory alone, without the current step.", "no fast-net", "73f23dd936f0"),
    _rework("fsg-plus-fast", "The current step alone, without the memory.", "no slow-net", "2cecdebbb525"),
    _rework("fsg-plus-4-steps", "Four batches say more than one, and are less myopic.", "horizon 4", "24d9399fb026"),
    _rework("fsg-plus-8-steps", "Eight more so.", "horizon 8", "746ba8d56004"),
    _rework(
        "fsg-plus-flip-price",
        "Bits that flip by the reworking alone are mostly noise: let them cost something.",
        "flip penalty 0.1",
        "fc5010056a2f",
    ),
    _rework("fsg-plus-0.2", "A smaller change is a safer one.", "rho 0.2 instead of 0.5", "42cb4e4eba10"),
    _rework("fsg-plus-1.0", "A larger one has more to say.", "rho 1.0 instead of 0.5", "eecc6066fd72"),
)
