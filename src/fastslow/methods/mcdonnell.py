"""McDonnell's 1 bit per weight: a constant scale, and a training recipe that makes it enough.

McDonnell, *Training wide residual networks for deployment using a single bit for each weight* (ICLR 2018),
https://arxiv.org/abs/1802.08530.

    Wb = c sign(W),    c = sqrt(2 / fan-in), the standard deviation of He's initialisation,    dL/dW = dL/dWb.

The rest is the recipe: a wide network (:func:`fastslow.models.wide_resnet20`), SGD with momentum and a cosine that
restarts warm after 2, 6, 14, 30, 62, ... epochs, BatchNorm without learned scale and offset where the network overfits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..binarize import Binarizer, Own, straight_through
from ..layers import BinaryLayer
from .surrogate import SignMethod


@dataclass(frozen=True, kw_only=True)
class McDonnell(SignMethod):
    """The sign times a constant that depends on the layer's shape alone."""

    name: ClassVar[str] = "mcdonnell"
    default_binarizer: ClassVar[str] = "own"
    binarizers: ClassVar[type[Binarizer]] = Own
    activations: ClassVar[tuple[str, ...]] = ()

    def scale(self, layer: BinaryLayer, w: Tensor) -> Tensor:
        return w.new_full((), math.sqrt(2 / w[0].numel()))

    def forward_weight(self, layer: BinaryLayer) -> Tensor:
        return straight_through(self.evaluation_weight(layer), layer.weight)

    def derivative(self, z: Tensor, progress: Tensor) -> Tensor:
        return torch.ones_like(z)

    def estimator(self, layer: BinaryLayer, z: Tensor) -> Tensor:
        return z
