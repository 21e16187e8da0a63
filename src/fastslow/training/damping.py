"""Oscillation damping: latent weights are pulled to the values that the network computes with.

After Nagel, Fournarakis, Bondarenko, Blankevoort, *Overcoming oscillations in quantization-aware training* (ICML 2022),
https://arxiv.org/abs/2203.11086, who add the penalty to the loss. A weight near its threshold flips back and forth; one
that is pulled away from it settles.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from ..convert import binary_layers
from ..methods.flat import subtract_all
from ..wrapper import BinaryOptimizer


def ramp(share: float) -> float:
    """From 0 at the start of a run to 1 at its end, as half a cosine."""
    return 0.5 * (1 - math.cos(math.pi * share))


class Damping:
    """After every step of the base optimizer, for every binary layer, with t of T steps done before:

        W <- W - lr * strength * (1 - cos(pi t / T)) / 2 * (W - Wb),    Wb = Q(A(W)), a constant.

    It is a step along the gradient of ``strength / 2 * ||W - Wb||^2``, decoupled from the loss as AdamW's weight decay
    is: it takes no part in ``W.grad`` nor in the optimizer's moments. A method sees it as it sees that decay: as part
    of what the base optimizer did. A step that the method holds back has none of it.
    """

    def __init__(self, strength: float, model: nn.Module, optimizer: torch.optim.Optimizer, total_steps: int) -> None:
        self.strength = strength
        self.total_steps = total_steps
        self._layers = [layer for layer in binary_layers(model).values() if layer.weight.requires_grad]
        # A tensor on the device, written before the step: a captured one reads it.
        self._rate = torch.zeros((), device=self._layers[0].weight.device)
        base = optimizer.base if isinstance(optimizer, BinaryOptimizer) else optimizer
        base.register_step_post_hook(self._pull)

    def set(self, done: int, lr: float) -> None:
        """Prepare the step that follows ``done`` others."""
        self._rate.fill_(lr * self.strength * ramp(done / self.total_steps))

    @torch.no_grad()
    def _pull(self, *_: Any) -> None:
        weights = [layer.weight.detach() for layer in self._layers]
        away = subtract_all(weights, [layer.binary_weight for layer in self._layers])
        torch._foreach_mul_(away, self._rate)  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_sub_(weights, away)  # pyright: ignore[reportPrivateImportUsage]
