"""BNN: binary weights and binary activations, with the clipped straight-through estimator for both.

Hubara, Courbariaux, Soudry, El-Yaniv, Bengio, *Binarized Neural Networks* (NeurIPS 2016),
https://arxiv.org/abs/1602.02830.

    Wb = sign(W),    ab = sign(a),    d sign(x)/dx := 1[|x| <= 1],    W <- clip(W, -1, 1) after every step.

The order of a block is convolution, pooling, BatchNorm, hardtanh; the next layer takes the sign of its input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .base import Slot
from .surrogate import ClipDriver, SignMethod


@dataclass(frozen=True, kw_only=True)
class BNN(SignMethod):
    """1-bit weights and, unless ``activations=None`` is asked for, 1-bit inputs. Leave the first layer's input real."""

    name: ClassVar[str] = "bnn"
    default_activations: ClassVar[str | None] = "sign"
    needs_wrapper: ClassVar[bool] = True  # the clipping

    def driver(self, slots: list[Slot]) -> ClipDriver:
        return ClipDriver(slots)
