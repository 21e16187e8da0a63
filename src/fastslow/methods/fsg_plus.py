"""fsg-plus: a fast-net and a slow-net rework the update that the base optimizer made, and learn from the next batches.

Ours, not from a paper; experimental, and no result is claimed for it yet. It keeps the idea of FSG (:mod:`.fsg`), fast
and slow parts with a layer identity that learn while the network trains, and changes what they act on. The network
trains by the straight-through estimator; the base optimizer turns ``g_t`` into its update Delta, preconditioner and
weight decay included, and what is committed is, with ``s = sign(w_t)`` and RMS(Delta) of the layer,

    w_{t+1} = w_t + Delta (1 + rho tanh a) + rho RMS(Delta) s tanh b.

``a`` and ``b`` come, for each weight, from a fast-net that sees the current step and a slow-net that sees a streaming
memory: averages of the gradient, their consistency, recent flips (:mod:`.plus_features`, :mod:`..hypernets.plus`). With
``keep_size`` the whole is scaled so that its RMS in each layer stays that of Delta: a direction is learned, not a
learning rate. A part of ``tanh a`` that all weights of a layer share would then only let ``b`` weigh more than rho
allows, so it is taken off. The networks' last layers start from zero, so that the first step is exactly that of
``ste``.

The loss depends on the networks' parameters theta only through the committed weights. After ``horizon`` steps K

    dL/dtheta = sum over layers of (g_{t+1} + ... + g_{t+K}) . d w_{t+1} / d theta,

a vector-Jacobian product at the features of step t, where later updates are taken as they were. Gradients and updates
differ between layers by orders of magnitude, so each layer's later gradient is divided by its norm and its update by
RMS(Delta), positive numbers that don't depend on theta. With ``keep_size`` what is minimised is then the sum over
layers of sqrt(n) cos(update, later gradient), n the number of weights: in pure noise, every layer has the same say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..hypernets.plus import Adam, Pass, PlusNets
from ..hypernets.segments import repeated, segment_mean
from . import flat
from .base import Slot
from .flat_driver import FlatDriver, LearnedMethod, gradient
from .plus_features import DECAYS, FAST, FLIP_DECAY, RATIOS, ROWS, SLOW, Step, features, inverse, measure, usual_size


@dataclass(frozen=True, kw_only=True)
class FSGPlus(LearnedMethod):
    """Straight-through gradients, an update with a learned direction. No result is claimed for it yet."""

    name: ClassVar[str] = "fsg-plus"
    sees_progress: ClassVar[bool] = True

    rho: float = 0.5  # how far the update may be reworked: 0 not at all, 1 by as much as its own size
    horizon: int = 1  # K: the networks learn from the gradients of so many later steps
    keep_size: bool = True  # the update keeps its RMS in each layer
    fast: bool = True  # whether there is a fast-net
    slow: bool = True  # whether there is a slow-net
    hidden: int = 16  # hidden units of each
    net_lr: float = 1e-3  # of their Adam; 0: they stay as they are
    flip_penalty: float = 0.0  # price of bits that flip by the reworking alone
    nets: str | None = None  # a safetensors file of networks to start from; the layer embedding starts from zero

    def __post_init__(self) -> None:
        if not 0 <= self.rho <= 1:
            raise ValueError(f"rho={self.rho}: give a number between 0 (plain ste) and 1")
        for name in ("horizon", "hidden"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r}: give a whole number of at least 1")
        for name in ("net_lr", "flip_penalty"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)}: it can't be negative")
        if not self.fast and not self.slow:
            raise ValueError("fast=False and slow=False leave no network; use the method ste instead")
        if not isinstance(self.nets, str | None):
            raise ValueError(f"nets={self.nets!r}: give the path of a .safetensors file")

    def driver(self, slots: list[Slot]) -> FSGPlusDriver:
        return FSGPlusDriver(self, slots)


class Reworked(NamedTuple):
    """An update in units of RMS(Delta), turned by the weights' signs, and what it was made from."""

    value: Tensor
    plain: Tensor  # before its size was restored
    ratio: Tensor | None  # what restored it, one a weight
    gates: Tensor  # tanh a, tanh b
    passes: dict[str, Pass]


class FSGPlusDriver(FlatDriver):
    """Networks, memory and the step they learn from. All of it lies in tensors that stay in their place."""

    def __init__(self, method: FSGPlus, slots: list[Slot]) -> None:
        super().__init__(method, slots)
        self.method = method
        inputs = {name: rows for name, rows in (("fast", FAST), ("slow", SLOW)) if getattr(method, name)}
        self.nets = PlusNets(inputs, method.hidden, self.sizes)
        theta = self.nets.initial(method.seed).to(self.device, self.dtype)
        if method.nets is not None:
            self._load_nets(theta, method.nets)
        self.tensors = {
            "theta": theta,
            "moments": torch.zeros(2, len(theta), dtype=self.dtype, device=self.device),
            "updates": theta.new_zeros(()),  # of theta
            "steps": theta.new_zeros(()),  # of the network
            "gain": theta.new_zeros(()),
            "averages": self.zeros(len(DECAYS)),
            "average_sizes": self.zeros(len(DECAYS[RATIOS])),
            "flips": self.zeros(),
            # The step whose consequences are watched: what it was made from, and the gradients since.
            "features": self.zeros(ROWS),
            "oriented": self.zeros(),
            "signs": self.zeros(),
            "later": self.zeros(),
        }
        if method.flip_penalty > 0:
            self.tensors["distance"] = self.zeros()
        self._constants()
        self._before: tuple[list[int], Tensor, Tensor] | None = None

    def _constants(self) -> None:
        like = {"dtype": self.dtype, "device": self.device}
        self._rates = 1 - torch.tensor(DECAYS, **like)[:, None]
        self._roots = torch.tensor(self.sizes, **like).sqrt()
        self._adam = Adam(self.method.net_lr, self._roots)

    def _load_nets(self, theta: Tensor, path: str) -> None:
        from ..weights import load_weights  # it needs the layers, which need the methods

        weights = load_weights(path)
        self.nets.check(weights, path)
        for name, part in self.nets.parts(theta).items():
            if name in weights:
                part.copy_(weights[name])

    # -- the step -------------------------------------------------------------------------------------------------

    def before_step(self) -> bool:
        self.follow_weights()
        active = [i for i, slot in enumerate(self.slots) if slot.layer.weight.grad is not None]
        gradients = [gradient(self.slots[i]) for i in active]
        self._before = (active, self._whole(active, self._weights(active)), self._whole(active, gradients))
        return True

    def after_step(self, stepped: bool) -> None:
        assert self._before is not None
        (active, w, g), self._before = self._before, None
        if not stepped or not active:
            return
        kept = self.tensors
        moved = self._whole(active, self._weights(active))
        step = measure(w, moved - w, g, self.sizes)
        due = torch.remainder(kept["steps"], self.method.horizon) == 0
        if self.method.net_lr > 0:
            kept["later"].addcmul_(kept["signs"], g)
            self._learn(due & (kept["steps"] > 0))
        kept["steps"].add_(1)
        self._remember(active, step.gradient)
        usual = usual_size(self._rates, kept["steps"])
        memory = kept["averages"], kept["average_sizes"], kept["flips"]
        x = features(step, *memory, usual, self.slots[0].layer._progress)
        # A difference, added to what the base optimizer wrote: where nothing is reworked, no bit of it changes.
        w = moved.addcmul_(step.s * step.unit, self._rework(x, step.oriented).value - step.oriented)
        flat.write(self._weights(active), w[self.columns(active)])
        self._remember_flips(active, (w > 0) != (step.s > 0))
        self._keep(step, x, due)

    def _weights(self, active: list[int]) -> list[Tensor]:
        return [self.slots[i].layer.weight.detach() for i in active]

    def _whole(self, active: list[int], tensors: list[Tensor]) -> Tensor:
        """Flat over all layers; zeros for those that take no part."""
        if len(active) == len(self.slots):
            return self.join(tensors)
        whole = self.zeros()
        if active:
            whole[self.columns(active)] = self.join(tensors)
        return whole

    def _remember(self, active: list[int], g: Tensor) -> None:
        """The gradient enters the memory of the layers that have one."""
        columns, averages, sizes = self.columns(active), self.tensors["averages"], self.tensors["average_sizes"]
        g = g[columns]
        averages[:, columns] = averages[:, columns].lerp(g.expand(len(averages), -1), self._rates)
        sizes[:, columns] = sizes[:, columns].lerp(g.abs().expand(len(sizes), -1), self._rates[RATIOS])

    def _remember_flips(self, active: list[int], flipped: Tensor) -> None:
        columns, flips = self.columns(active), self.tensors["flips"]
        flips[columns] = torch.add(flipped[columns], flips[columns], alpha=FLIP_DECAY)

    def _keep(self, step: Step, x: Tensor, due: Tensor) -> None:
        """From now on this step is watched, if it is the turn for a new one."""
        fresh = {"features": x, "oriented": step.oriented, "signs": step.s * step.alive}
        if "distance" in self.tensors:
            fresh["distance"] = step.distance
        for name, value in fresh.items():
            kept = self.tensors[name]
            kept.copy_(value if self.method.horizon == 1 else torch.where(due, value, kept))
        self.tensors["later"].mul_(~due)

    # -- the networks ---------------------------------------------------------------------------------------------

    def _rework(self, x: Tensor, oriented: Tensor) -> Reworked:
        out, passes = self.nets.forward(self.tensors["theta"], x)
        gates = torch.tanh(out)
        rho = self.method.rho
        gate = self._without_mean(gates[0]) if self.method.keep_size else gates[0]
        plain = torch.add(oriented, gates[1], alpha=rho).addcmul_(oriented, gate, value=rho)
        if not self.method.keep_size:
            return Reworked(plain, plain, None, gates, passes)
        squares = segment_mean(torch.stack([oriented * oriented, plain * plain]), self.sizes)
        # A true quotient: it is exactly 1 where nothing was reworked.
        ratio = torch.where(squares[1] > 0, squares[0] / squares[1], torch.ones_like(squares[1])).sqrt()
        ratio = repeated(ratio, self.sizes)
        return Reworked(plain * ratio, plain, ratio, gates, passes)

    def _learn(self, due: Tensor) -> None:
        """One step of theta, where it is due, from the gradients since the step that is watched."""
        kept = self.tensors
        made = self._rework(kept["features"], kept["oriented"])
        norms = segment_mean(kept["later"].square(), self.sizes).sqrt() * self._roots
        cotangent = kept["later"] * repeated(inverse(norms), self.sizes)
        along, square, before = self._means(cotangent, made.plain)
        gain = (before - along * inverse(square.sqrt())) * self._roots
        kept["gain"].lerp_(gain.mean(), 0.01 * due.to(gain.dtype))
        if self.method.flip_penalty > 0:
            cotangent = cotangent + self._price_of_flips(made.value)
            along = self._means(cotangent, made.plain)[0]
        if made.ratio is not None:  # through the scale: what lies along the update itself changes nothing
            cotangent = made.ratio * (cotangent - made.plain * repeated(along * inverse(square), self.sizes))
        cotangent = self.method.rho * cotangent
        to_gate = cotangent * kept["oriented"]
        back = torch.stack([self._without_mean(to_gate) if self.method.keep_size else to_gate, cotangent])
        back = torch.ops.aten.tanh_backward(back, made.gates)
        found = self.nets.backward(kept["theta"], kept["features"], made.passes, back)
        self._adam.step(kept["theta"], found, kept["moments"], kept["updates"], due)

    def _without_mean(self, x: Tensor) -> Tensor:
        """Less its mean in each layer."""
        return x - repeated(segment_mean(x, self.sizes), self.sizes)

    def _means(self, cotangent: Tensor, plain: Tensor) -> Tensor:
        """Of each layer: cotangent times reworked update, that update's square, cotangent times base update."""
        products = [cotangent * plain, plain * plain, cotangent * self.tensors["oriented"]]
        return segment_mean(torch.stack(products), self.sizes)

    def _price_of_flips(self, value: Tensor) -> Tensor:
        """The derivative of the layer's mean of sigmoid(-position), where the base update alone would not flip."""
        kept = self.tensors
        chance = torch.sigmoid(kept["distance"] + value)
        stays = (kept["distance"] + kept["oriented"] > 0) * kept["signs"].abs()
        return -self.method.flip_penalty * chance * (1 - chance) * stays / repeated(self._roots, self.sizes)

    def metrics(self) -> dict[str, float]:
        """Of the step that is watched: cosine of reworked and base update, mean size of ``tanh a`` and ``tanh b``.

        ``gain``: how much smaller the cosine with the later gradients became by the reworking, averaged over the layers
        and, with decay 0.99, over the steps. Above 0 the networks have found a better direction.
        """
        if not bool(self.tensors["steps"] > 0):
            return {}
        oriented = self.tensors["oriented"]
        made = self._rework(self.tensors["features"], oriented)
        gate, push = made.gates.abs().mean(1).tolist()
        cosine = float(torch.cosine_similarity(made.value, oriented, 0))
        return {"update_cosine": cosine, "gate": gate, "push": push, "gain": float(self.tensors["gain"])}

    # -- state ----------------------------------------------------------------------------------------------------

    def move(self, device: torch.device) -> None:
        self.tensors = {name: tensor.to(device) for name, tensor in self.tensors.items()}
        self._constants()

    def hypernetworks(self) -> Iterable[tuple[str, Tensor]]:
        return self.nets.parts(self.tensors["theta"]).items()

    def kept(self) -> dict[str, Tensor]:
        words = {"averages": "the gradient's averages", "features": "the last features", "later": "the later gradients"}
        return {said: self.tensors[name] for name, said in words.items()}

    def state_dict(self) -> dict[str, Any]:
        return {**self.tensors, "layers": [slot.name for slot in self.slots]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        names = [slot.name for slot in self.slots]
        fits = {name: tensor.shape for name, tensor in self.tensors.items()}
        if state.get("layers") != names or {k: getattr(state.get(k), "shape", None) for k in fits} != fits:
            raise ValueError(
                f"the saved state isn't one of fsg-plus with these fields and layers ({', '.join(names[:3])}, ...); "
                "binarize the same layers of the same model in the same way before loading it"
            )
        for name, tensor in self.tensors.items():
            tensor.copy_(state[name])
