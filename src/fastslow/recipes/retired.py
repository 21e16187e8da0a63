"""Ideas that lost and whose code is gone: what they were, and which file under ``results/retired/`` has their run.

Today's code refuses to run their configs, or runs something else, so they are no rows of :mod:`.research`. Outcomes:
docs/research.md.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass


@dataclass(frozen=True)
class Retired:
    """A row of the past: ``change`` says which fields differed from the defaults, ``file`` is below ``retired/``."""

    name: str
    hypothesis: str
    change: str
    file: str


def _of(folder: str, name: str, hypothesis: str, change: str, key: str) -> Retired:
    return Retired(name, hypothesis, change, f"{folder}/fsg-plus-adam-seed0-{key}.json")


# The first form of fsg-plus. Another method has this name now, and shares the key of the run with defaults.
_rework = functools.partial(_of, "fsg-plus-rework")
# Other papers' ways back, on top of fsg-plus and instead of it.
_composed = functools.partial(_of, "fsg-plus-composed")
# What fsg-plus adds to a gradient, multiplied by a factor of each weight.
_gated = functools.partial(_of, "fsg-plus-gate")
# Its strength, in proportion to the share of the training done.
_ramped = functools.partial(_of, "fsg-plus-ramp")

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
    _composed(
        "fsg-plus-ede", "IR-Net's backward lets bits far from the threshold rest.", "its derivative", "40dd598d297a"
    ),
    _composed(
        "fsg-plus-ede-alone", "That backward without the curvature.", "its derivative, strength 0", "9f7d64e777f6"
    ),
    _composed(
        "fsg-plus-reste", "ReSTE's backward favours weights near the threshold.", "its derivative", "4887d49d25e4"
    ),
    _composed(
        "fsg-plus-reste-alone", "That backward without the curvature.", "its derivative, strength 0", "530ab71b257c"
    ),
    _composed(
        "fsg-plus-twin",
        "SURGE's float twin says more of what the layers below should do.",
        "a tenth of it",
        "5d5ee5ed020e",
    ),
    _composed("fsg-plus-twin-alone", "The twin without the curvature.", "a tenth of it, strength 0", "01789fa7c150"),
    _gated(
        "fsg-plus-rising", "Bits that look around first and settle later.", "strength from 0.1 to 2.5", "a4737225ccd3"
    ),
    _gated("fsg-plus-falling", "The opposite.", "strength from 2.5 to 0.1", "a39f83bd8f6c"),
    _gated(
        "fsg-plus-learned",
        "A gate learned once, on small tasks, serves a larger network.",
        "six coefficients of progress, distance and consistency",
        "7933501246da",
    ),
    _ramped(
        "fsg-plus-ramp",
        "Random bits have to try both sides before the curvature holds them.",
        "from scratch, strength from 0 to 0.5",
        "09ec932008e1",
    ),
    _ramped("fsg-plus-ramp-1", "The same, up to all of it.", "from scratch, strength from 0 to 1", "d49a1e37578f"),
    _ramped(
        "fsg-plus-ramp-1-float", "A float network's bits may try first, too.", "strength from 0 to 1", "a352a4a3d8d7"
    ),
)
