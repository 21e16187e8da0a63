"""SURGE: a full-precision twin of each layer takes part in the backward pass alone, and repairs what reaches the input.

Huang et al., *SURGE: Surrogate Gradient Adaptation in Binary Neural Networks* (ICML 2026),
https://arxiv.org/abs/2605.10989; from public notes on the paper, no code is released. With the binary branch f_b and
the twin f_a = W_a x,

    out = f_b(x) + lambda (f_a(x) - stopgrad(f_a(x))),    dL/dx = g_b + lambda g_a,
    lambda = eta ||g_b|| / (||g_a|| + 1e-8)  for each layer (the adaptive gradient scaler).

The binary branch is ReCU's, as in their experiments. Costs about twice the memory and arithmetic of a training step;
evaluation and the packed model have no twin. Ours: the twin starts as a copy of W, and its own gradient isn't
multiplied by lambda, which is known only once the gradients of both branches are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..layers import BinaryLayer
from .recu import ReCU


class _Fork(torch.autograd.Function):
    """Two copies of x; backward joins their gradients, the second scaled to a share of the first's norm."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eta: float) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.eta = eta
        return x.view_as(x), x.clone()

    @staticmethod
    def backward(ctx: Any, g_b: Tensor, g_a: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        scale = ctx.eta * g_b.norm() / (g_a.norm() + 1e-8)
        return g_b + scale * g_a, None


@dataclass(frozen=True, kw_only=True)
class Surge(ReCU):
    """ReCU with gradient compensation by a full-precision twin."""

    name: ClassVar[str] = "surge"

    eta: float = 0.1  # share of the twin's gradient; the paper tunes it, and we know no published value

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eta < 0:
            raise ValueError(f"eta={self.eta}: a share can't be negative")

    def own_state(self, layer: BinaryLayer, w: Tensor) -> dict[str, Tensor]:
        return {**super().own_state(layer, w), "twin": nn.Parameter(w.clone())}

    def forward(self, layer: BinaryLayer, x: Tensor) -> Tensor:
        if not (layer.training and torch.is_grad_enabled()):
            return super().forward(layer, x)
        for_bits, for_twin = _Fork.apply(x, self.eta)
        twin = layer.product(for_twin, layer.own("twin"), None)
        return super().forward(layer, for_bits) + (twin - twin.detach())
