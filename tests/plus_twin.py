"""A second, slow writing of fsg-plus: one layer after the other, in float64, with autograd instead of its own backward.

It shares nothing with the library but the initial parameters of the networks.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from reference import BINARY, TinyNet, bits, calibration, hat

DECAYS = (0.9, 0.99, 0.999)


def rms(x: Tensor) -> Tensor:
    return x.square().mean().sqrt()


def over(x: Tensor, y: Tensor) -> Tensor:
    return x / y if y > 0 else torch.zeros_like(x)


class Twin:
    """Trains a float net's binary version step by step. ``parameters``: those of the networks, by their names."""

    def __init__(
        self, net: TinyNet, parameters: dict[str, Tensor], fields: dict[str, Any], make_base, total: int
    ) -> None:
        self.net = copy.deepcopy(net)
        self.base = make_base(self.net.parameters())
        self.p = {name: value.clone().requires_grad_() for name, value in parameters.items()}
        self.adam = torch.optim.Adam(self.p.values(), lr=fields["net_lr"], eps=1e-6)
        self.f, self.total, self.t = fields, total, 0
        self.m = {(n, d): 0.0 for n in BINARY for d in DECAYS}
        self.size = {(n, d): 0.0 for n in BINARY for d in DECAYS}
        self.flips = dict.fromkeys(BINARY, 0.0)
        self.watched: dict[str, dict[str, Tensor]] = {}
        self.gain = 0.0

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
        for n in BINARY:
            self.weight(n).grad = binary[n].grad * calibration(self.weight(n).detach())
        return {n: self.weight(n).grad.clone() for n in BINARY}

    def features(self, n: str, w: Tensor, delta: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        s = torch.where(w > 0, 1.0, -1.0).double()
        for d in DECAYS:
            unit = over(g, rms(g))
            self.m[n, d] = d * self.m[n, d] + (1 - d) * unit
            self.size[n, d] = d * self.size[n, d] + (1 - d) * unit.abs()
        seen = self.t + 1
        usual = {d: ((1 - d) / (1 + d) * (1 - d ** (2 * seen))) ** 0.5 for d in DECAYS}
        u, one = over(delta, rms(delta)), torch.ones_like(w)
        fast = [s * u, u.abs(), s * over(g, rms(g)), torch.log1p(over(w.abs(), rms(delta))) / 2]
        fast += [over(w.abs(), w.abs().mean()), one]
        slow = [one, *(s * self.m[n, d] / usual[d] for d in DECAYS)]
        slow += [torch.nan_to_num(self.m[n, d].abs() / self.size[n, d]) for d in DECAYS[1:]]
        slow += [torch.asinh(100 * self.flips[n] * one), self.t / self.total * one]
        return tuple(torch.stack([row.reshape(-1) for row in rows], 1).clamp(-5, 5) for rows in (fast, slow))

    def update(self, n: str, seen: dict[str, Tensor]) -> Tensor:
        """The reworked update in units of RMS(Delta), as a graph in the networks' parameters."""
        out = self.p["bias"]
        if self.f["fast"]:
            out = out + torch.tanh(seen["fast"] @ self.p["fast.first"].T) @ self.p["fast.last"].T
        if self.f["slow"]:
            scale, shift = self.p["slow.lre"][:, :, BINARY.index(n)]
            hidden = torch.tanh((1 + scale) * (seen["slow"] @ self.p["slow.first"].T) + shift)
            out = out + hidden @ self.p["slow.last"].T
        a, b = (torch.tanh(column).reshape(seen["u"].shape) for column in out.unbind(1))
        rho = self.f["rho"]
        if self.f["keep_size"]:
            a = a - a.mean()
        new = seen["u"] * (1 + rho * a) + rho * seen["s"] * b
        return new * rms(seen["u"]) / rms(new) if self.f["keep_size"] and seen["u"].any() else new

    def learn(self) -> None:
        loss, gains = torch.zeros(()), []
        for n, seen in self.watched.items():
            if not seen["u"].any():
                continue
            new, size = self.update(n, seen), seen["u"].numel()
            if seen["later"].any():
                loss = loss + (new * seen["later"]).sum() / seen["later"].norm()
                new_cosine, old_cosine = (
                    F.cosine_similarity(x.flatten(), seen["later"].flatten(), 0) for x in (new, seen["u"])
                )
                gains.append(float((old_cosine - new_cosine).detach()))
            position = seen["distance"] + seen["s"] * new
            stays = seen["distance"] + seen["s"] * seen["u"] > 0
            loss = loss + self.f["flip_penalty"] * (torch.sigmoid(-position) * stays).mean() * size**0.5
        self.gain = 0.99 * self.gain + 0.01 * sum(gains) / len(BINARY)
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()

    def iteration(self, x: Tensor, y: Tensor) -> None:
        gradients = self.straight_through(x, y)
        for n, seen in self.watched.items():
            seen["later"] = seen["later"] + gradients[n]
        before = {n: self.weight(n).detach().clone() for n in BINARY}
        self.base.step()
        due = self.t % self.f["horizon"] == 0
        if due and self.t:
            self.learn()
        for n in BINARY:
            w = before[n]
            delta = self.weight(n).detach() - w
            fast, slow = self.features(n, w, delta, gradients[n])
            s = torch.where(w > 0, 1.0, -1.0).double()
            seen = {"fast": fast, "slow": slow, "s": s, "u": over(delta, rms(delta)), "later": torch.zeros_like(w)}
            seen["distance"] = over(w.abs(), rms(delta))
            with torch.no_grad():
                self.weight(n).copy_(w + rms(delta) * self.update(n, seen))
            flipped = (torch.where(self.weight(n) > 0, 1.0, -1.0) != s).double()
            self.flips[n] = 0.99 * self.flips[n] + 0.01 * flipped
            if due:
                self.watched[n] = seen
        self.t += 1
