"""A second, slow writing of fsg-plus: one layer after the other, in float64. It shares nothing with the library."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from reference import BINARY, TinyNet, bits, calibration, hat


class Twin:
    """Trains a float net's binary version step by step."""

    def __init__(self, net: TinyNet, fields: dict[str, Any], make_base) -> None:
        self.net = copy.deepcopy(net)
        self.base = make_base(self.net.parameters())
        self.f, self.t = fields, 0
        self.v = dict.fromkeys(BINARY, 0.0)
        self.turned = dict.fromkeys(BINARY, 0.0)
        self.expected = dict.fromkeys(BINARY, 0.0)

    def weight(self, name: str) -> Tensor:
        return self.net.get_submodule(name).weight

    def straight_through(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The gradients; those of the other parameters stay in ``.grad``."""
        self.base.zero_grad()
        substitute = dict(self.net.named_parameters())
        binary = {}
        for n in BINARY:
            binary[n] = bits(hat(self.weight(n).detach())).requires_grad_()
            substitute[f"{n}.weight"] = binary[n]
        F.cross_entropy(torch.func.functional_call(self.net, substitute, (x,)), y).backward()
        return {n: binary[n].grad * calibration(self.weight(n).detach()) for n in BINARY}

    def factors(self) -> dict[str, float]:
        """A common factor less what noise gives, and each layer's own drawn to it."""
        turned, expected = sum(self.turned.values()), sum(self.expected.values())
        if turned**2 <= expected or turned <= 0:
            return dict.fromkeys(BINARY, 0.0)
        common = turned / expected - 1 / turned
        found = {}
        for n in BINARY:
            precision = 1 / (common / 2) ** 2
            own = (self.turned[n] + precision * common) / (self.expected[n] + precision)
            found[n] = max(own, 0.0)
        return found

    def iteration(self, x: Tensor, y: Tensor) -> None:
        gradients = self.straight_through(x, y)
        self.t += 1
        k, decay = self.factors(), self.f["decay"]
        for n, g in gradients.items():
            w = self.weight(n).detach()
            self.v[n] = decay * self.v[n] + (1 - decay) * g**2
            v = self.v[n] / (1 - decay**self.t)
            r = w.tanh().abs().max()
            s = torch.where(w > 0, 1.0, -1.0).to(w.dtype)
            near = w.abs() < self.f["band"] * w.abs().mean()
            self.turned[n] = decay * self.turned[n] + float((r * s * g)[near].sum())
            self.expected[n] = decay * self.expected[n] + float((r**2 * v)[near].sum())
            offset = -s * r if self.f["secant"] else w.tanh() - s * r
            added = self.f["strength"] * k[n] * v * offset
            self.weight(n).grad = g + added
        self.base.step()
