"""The straight-through estimator on DoReFa's pre-processing: the baseline of every table.

Bengio, Leonard, Courville, *Estimating or Propagating Gradients Through Stochastic Neurons* (2013); Zhou et al.,
*DoReFa-Net* (2016), as MetaQuant and FSG use them: ``dL/dW = g * C(W)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .base import Method


@dataclass(frozen=True, kw_only=True)
class STE(Method):
    """Pass the gradient through the rounding as if it were the identity."""

    name: ClassVar[str] = "ste"
