"""AdaBin: the two values need not be -1 and +1; each filter has its own centre and distance.

Tu et al., *AdaBin: Improving Binary Neural Networks with Adaptive Binary Sets* (ECCV 2022),
https://arxiv.org/abs/2208.08084.

    weights:  beta = mean(W),  alpha = RMS(W - beta) of the filter,    Wb = beta + alpha sign((W - beta) / alpha)
    inputs:   ab = alpha_a (sign((a - beta_a) / alpha_a) + beta_a),    alpha_a, beta_a one learned number each a layer

backward: EDE (:mod:`fastslow.methods.irnet`) for weights, Bi-Real Net's polynomial for inputs; autograd passes alpha
and beta of the weights. The paper's Maxout activation is in the model zoo (``resnet20_bireal(activation="maxout")``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..binarize import centre, filter_dims, sign, straight_through
from ..layers import BinaryLayer
from .irnet import IRNet
from .surrogate import polynomial


@dataclass(frozen=True, kw_only=True)
class AdaBin(IRNet):
    """Adaptive binary sets, on IR-Net's schedule."""

    name: ClassVar[str] = "adabin"

    t_min: float = 0.001

    def own_state(self, layer: BinaryLayer, w: Tensor) -> dict[str, Tensor]:
        if layer.activations is None:
            return {}
        return {"input_scale": nn.Parameter(w.new_ones(())), "input_shift": nn.Parameter(w.new_zeros(()))}

    def scale(self, layer: BinaryLayer, w: Tensor) -> Tensor:
        """``alpha``; 1 for a filter of equal weights."""
        square = centre(w).square().mean(filter_dims(w), keepdim=True)
        return torch.where(square > 0, square, torch.ones_like(square)).sqrt()

    def latent(self, layer: BinaryLayer, w: Tensor) -> Tensor:
        return centre(w) / self.scale(layer, w)

    def forward_weight(self, layer: BinaryLayer) -> Tensor:
        if not torch.is_grad_enabled():
            return self.evaluation_weight(layer)
        w = layer.weight
        return super().forward_weight(layer) + w.mean(filter_dims(w), keepdim=True)

    def evaluation_weight(self, layer: BinaryLayer) -> Tensor:
        w = layer.weight.detach()
        return super().evaluation_weight(layer) + w.mean(filter_dims(w), keepdim=True)

    def input_derivative(self, x: Tensor, progress: Tensor) -> Tensor:
        return polynomial(x)

    def binary_input(self, layer: BinaryLayer, x: Tensor) -> Tensor:
        scale, shift = layer.own("input_scale"), layer.own("input_shift")
        u = (x - shift) / scale
        bits = straight_through(sign(u.detach()), u, self.input_derivative(u.detach(), layer._progress))
        return scale * (bits + shift)

    def deploy_note(self, layer: BinaryLayer) -> str | None:
        if layer.activations is None:
            return None
        return "its inputs take two learned values other than -1 and +1"
