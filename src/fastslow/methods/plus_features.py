"""What ``fsg-plus`` knows of a weight: features without units, turned so that the weight's sign doesn't matter.

Everything with a direction is multiplied by ``s = sign(W)``: positive is away from the threshold, negative towards it.
A network on such features treats W and -W alike. Lengths are in units of the layer's own RMS or mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..binarize import sign
from ..hypernets.segments import repeated, segment_mean

DECAYS = (0.9, 0.99, 0.999)  # of the averaged gradients
RATIOS = slice(1, 3)  # the averages whose consistency is looked at
FLIP_DECAY = 0.99
LIMIT = 5.0  # no feature is larger

# Rows of the features; the row of ones is in both networks' reach.
FAST, SLOW, ROWS = slice(0, 6), slice(5, 13), 13


class Step(NamedTuple):
    """One step of the base optimizer, flat over all layers; ``unit`` is the RMS of its update, layer by layer."""

    s: Tensor  # sign of the weight before
    oriented: Tensor  # s Delta / unit
    gradient: Tensor  # g / RMS(g)
    distance: Tensor  # |W| / unit: to the threshold, in steps
    relative: Tensor  # |W| / mean|W|
    unit: Tensor  # one a weight
    alive: Tensor  # 1 where the layer moved, else 0


def inverse(x: Tensor) -> Tensor:
    """1 / x, and 0 for 0."""
    return x.reciprocal().nan_to_num(nan=math.nan, posinf=0.0)


def measure(w: Tensor, delta: Tensor, g: Tensor, sizes: Sequence[int]) -> Step:
    """A step in its own units. Layers without a gradient or an update get zeros."""
    s = sign(w)
    magnitude = s * w
    means = segment_mean(torch.stack([delta * delta, g * g, magnitude]), sizes)
    units = torch.cat([means[:2].sqrt(), means[2:]])
    inverses = inverse(units)
    per_weight = repeated(torch.cat([inverses, units[:1], (inverses[:1] > 0).to(w.dtype)]), sizes)
    of_delta, of_g, of_w, unit, alive = per_weight
    return Step(s, s * delta * of_delta, g * of_g, magnitude * of_delta, magnitude * of_w, unit, alive)


def features(step: Step, averages: Tensor, sizes: Tensor, flips: Tensor, usual: Tensor, progress: Tensor) -> Tensor:
    """All rows. ``averages`` and ``sizes`` include this step's gradient; ``usual`` is what an average is divided by."""
    rows = [
        step.oriented,
        step.oriented.abs(),
        step.s * step.gradient,
        torch.log1p(step.distance) / 2,
        step.relative,
        torch.ones_like(step.s),
        *(step.s * averages / usual),
        *(averages[RATIOS].abs() * inverse(sizes)),
        torch.asinh(flips),
        progress.to(step.s.dtype).expand_as(step.s),
    ]
    return torch.stack(rows).clamp(-LIMIT, LIMIT)


def usual_size(rates: Tensor, seen: Tensor) -> Tensor:
    """The standard deviation of an average over ``seen`` independent gradients of size 1; ``rates`` are 1 - decay."""
    return (rates / (2 - rates) * (1 - (1 - rates) ** (2 * seen))).sqrt()
