"""fsg-plus: the straight-through gradient, taken from the bit where it was measured to the weight that it moves.

Ours, not from a paper. Backpropagation gives the gradient at ``Wb``, a corner; the latent weight that it moves lies
between the corners. Where the loss is curved along a weight, by ``h``, the gradients there differ:

    g(W) = g(Wb) + h (W - Wb).

On the threshold, halfway between the corners, this is the slope of a quadratic loss from one corner to the other, and
so the derivative that sign() lacks. Straight-through estimation leaves the second term out, although it is as large as
the first: the mean gradient of a bit tends to turn round when the bit flips, and the bit flips back.

The curvature is learned while the network trains. How it differs from weight to weight is taken from a slow memory, a
moving average ``v`` of the squared gradient (Fisher information, but for a factor): ``h = k v``. The factor ``k``
belongs to the layer. It is read off the weights near the threshold, |W| < band mean|W|, which are alike but for their
bits: their gradients differ by h times the distance of the corners, so that with s = sign(W), sums over these weights
and, with decay, over the steps before,

    k = sum(s g r) / sum(v r^2),

where 2 r is that distance. The corners are DoReFa's in the units of the latent weight, r = max|tanh W| of the layer.
What is added to a gradient is ``-strength k v s r``, which makes it the slope from corner to corner wherever the weight
lies, or without ``secant`` ``strength k v (tanh W - s r)``, which makes it that at the weight itself. If gradients of
single images are independent and the network's probabilities right, k is the batch size in theory. As long as nothing
is known k is 0: the first step is exactly that of ``ste``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..binarize import Binarizer, DoReFa, sign
from ..hypernets.segments import repeated, segment_max, segment_mean, segment_sum
from . import flat
from .base import Slot
from .flat_driver import FlatDriver, RememberingMethod, gradient

_SPREAD = 0.5  # how much layers are expected to differ from their common factor, as a share of it


@dataclass(frozen=True, kw_only=True)
class FSGPlus(RememberingMethod):
    """Straight-through gradients with the curvature along each weight, learned from the bits near the threshold."""

    name: ClassVar[str] = "fsg-plus"

    strength: float = 0.5  # share of the measured curvature: 0 is ste
    decay: float = 0.999  # of the memory, a step
    band: float = 0.1  # weights nearer to the threshold than this share of the layer's mean |W| tell the curvature
    secant: bool = True  # the slope from bit to bit, wherever the weight lies; else the gradient at the weight itself

    def __post_init__(self) -> None:
        if not self.strength >= 0:
            raise ValueError(f"strength={self.strength}: it can't be negative")
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay={self.decay}: give a number from 0 up to, not including, 1")
        if not self.band > 0:
            raise ValueError(f"band={self.band}: give a positive number")

    def check_binarizer(self, binarizer: Binarizer) -> None:
        super().check_binarizer(binarizer)
        if binarizer.bits != 1:
            raise ValueError(
                f"bits={binarizer.bits}: fsg-plus measures the curvature between the two values of one bit; leave bits "
                "out, or train more bits with ste or fsg"
            )
        if not self.secant and type(binarizer) is not DoReFa:
            raise ValueError(
                f"fsg-plus with secant=False knows where the bits lie for the binarizer 'dorefa' only, not "
                f"{binarizer.name!r}: leave one of the two out"
            )

    def driver(self, slots: list[Slot]) -> FSGPlusDriver:
        return FSGPlusDriver(self, slots)


class FSGPlusDriver(FlatDriver):
    """The memory, and the factors it yields. All of it lies in tensors that stay in their place."""

    def __init__(self, method: FSGPlus, slots: list[Slot]) -> None:
        super().__init__(method, slots)
        self.method = method
        layers = torch.zeros(len(slots), dtype=self.dtype, device=self.device)
        self.tensors = {
            "squares": self.zeros(),  # moving average of the squared gradient, from zero
            "steps": layers.clone(),  # that entered it
            "turned": layers.clone(),  # sums over weights near the threshold: s g r
            "expected": layers.clone(),  # and v r^2
        }
        self._last: tuple[list[int], Tensor, Tensor] | None = None  # sizes, gradient and what was added to it

    def before_step(self) -> bool:
        self.follow_weights()
        active = [i for i, slot in enumerate(self.slots) if slot.has_gradient]
        if active:
            gradients = [gradient(self.slots[i]) for i in active]
            sizes = [self.sizes[i] for i in active]
            g = self.join(gradients)
            w = self.join([self.slots[i].layer.weight for i in active])
            added = self._correction(active, sizes, w, g)
            flat.write(gradients, g + added)
            self._last = sizes, g, added
        return True

    def _correction(self, active: list[int], sizes: list[int], w: Tensor, g: Tensor) -> Tensor:
        """What the curvature adds to the gradients of these layers."""
        kept, columns = self.tensors, self.columns(active)
        rows = slice(None) if len(active) == len(self.slots) else torch.tensor(active, device=self.device)
        sums = torch.stack([kept["turned"][rows], kept["expected"][rows]])
        # From earlier steps: the noise of this one is not in it.
        k = repeated(self.method.strength * factors(*sums), sizes)
        steps = kept["steps"][rows] + 1
        squares = kept["squares"][columns].lerp(g * g, 1 - self.method.decay)
        v = squares / repeated(1 - self.method.decay**steps, sizes)
        s, t, size = sign(w), torch.tanh(w), w.abs()
        limit, r = repeated(
            torch.stack([self.method.band * segment_mean(size, sizes), segment_max(t.abs(), sizes)]), sizes
        )
        near = r * (size < limit)
        found = segment_sum(torch.stack([near * s * g, near * near * v]), sizes)
        added = k * v * (-s * r if self.method.secant else t - s * r)
        kept["turned"][rows], kept["expected"][rows] = self.method.decay * sums + found
        kept["steps"][rows], kept["squares"][columns] = steps, squares
        return added

    def metrics(self) -> dict[str, float]:
        """``curvature``: the mean factor k, the batch size in theory; ``push``: size of the curvature's part.

        The push is its RMS in the last step over that of the gradient, averaged over the layers that took part.
        """
        if self._last is None:
            return {}
        k = factors(self.tensors["turned"], self.tensors["expected"])
        sizes, g, added = self._last
        push, usual = segment_mean(torch.stack([added * added, g * g]), sizes).sqrt()
        return {"curvature": float(k.mean()), "push": float((push * inverse(usual)).mean())}

    # -- state ----------------------------------------------------------------------------------------------------

    def move(self, device: torch.device) -> None:
        self.tensors = {name: tensor.to(device) for name, tensor in self.tensors.items()}

    def hypernetworks(self) -> Iterable[tuple[str, Tensor]]:
        return ()

    def kept(self) -> dict[str, Tensor]:
        return {"the squared gradient's average": self.tensors["squares"]}

    def state_dict(self) -> dict[str, Any]:
        return {**self.tensors, "layers": [slot.name for slot in self.slots]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        names = [slot.name for slot in self.slots]
        fits = {name: tensor.shape for name, tensor in self.tensors.items()}
        if state.get("layers") != names or {k: getattr(state.get(k), "shape", None) for k in fits} != fits:
            raise ValueError(
                f"the saved state isn't one of fsg-plus with these layers ({', '.join(names[:3])}, ...); "
                "binarize the same layers of the same model in the same way before loading it"
            )
        for name, tensor in self.tensors.items():
            tensor.copy_(state[name])


def factors(turned: Tensor, expected: Tensor) -> Tensor:
    """The factor of each layer, never negative, from its two sums.

    ``turned`` is ``k expected`` and noise, whose variance is taken to be ``expected``, since v is that of a gradient.
    All layers together give a common factor, less what noise alone would give (James and Stein); each layer's own is
    drawn to it as by a normal prior with a spread of half that factor. (Once the sums have decayed, the variance is
    half of that, for it decays twice as fast: the factors err towards 0.)
    """
    total, weight = turned.sum(), expected.sum()
    common = ((total * inverse(weight) - inverse(total)) * (total > 0)).clamp_min(0)
    prior = (_SPREAD * common) ** 2
    return ((turned * prior + common) / (expected * prior + 1)).clamp_min(0)


def inverse(x: Tensor) -> Tensor:
    """1 / x, and 0 for 0."""
    return x.reciprocal().nan_to_num(nan=math.nan, posinf=0.0, neginf=0.0)
