"""From latent weights to bits: the pre-processing A, the quantizer Q and their calibration, as pure functions.

A *binarizer* turns a latent weight ``W`` into the values the network computes with, ``Wb = Q(A(W))``, and says how a
gradient ``g = dL/dWb`` would pass it under the straight-through estimator: ``dL/dW = g * C(W)``. Which gradient is used
in training is the other axis, the method (:mod:`fastslow.methods`).

One convention holds everywhere in the library: a value of exactly zero becomes **-1**. It is what Eq. 2 gives, since
rounding is half to even.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .registry import Registry


def _largest_tanh(tanh_w: Tensor) -> Tensor:
    """max |tanh W| over the layer, detached; 1 for a layer of zeros, so that A = 1/2 and C = 1 there instead of NaN."""
    if tanh_w.numel() == 0:
        return tanh_w.new_ones(())
    largest = tanh_w.detach().abs().amax()
    return torch.where(largest > 0, largest, torch.ones_like(largest))


def preprocess(w: Tensor) -> Tensor:
    """Eq. 1: ``A(W) = tanh(W) / (2 max|tanh W|) + 1/2``, in [0, 1]. The maximum is taken over the tensor, detached.

    Examples:
        >>> preprocess(torch.tensor([-2.0, 0.0, 2.0]))
        tensor([0.0000, 0.5000, 1.0000])
    """
    t = torch.tanh(w)
    return t / (2 * _largest_tanh(t)) + 0.5


def quantize(w_hat: Tensor, bits: int = 1) -> Tensor:
    """Eq. 2: ``Q(What) = 2 round((2^k - 1) What) / (2^k - 1) - 1``: {-1, +1} for k = 1, 2^k even steps in general.

    Examples:
        >>> quantize(torch.tensor([0.2, 0.5, 0.9]))
        tensor([-1., -1.,  1.])
        >>> quantize(torch.tensor([0.0, 0.3, 0.9]), bits=2)
        tensor([-1.0000, -0.3333,  1.0000])
    """
    levels = 2**bits - 1
    return 2 * torch.round(levels * w_hat) / levels - 1


def calibration(w: Tensor) -> Tensor:
    """``C(W) = (1 - tanh(W)^2) / max|tanh W|``, the factor of the straight-through gradient ``dL/dW = g * C``.

    It is 2 dA/dW: the 2 of Q cancels the 1/2 of A.
    """
    # Deviation: the paper multiplies by dA/dW, half of this; its public code uses the factor of the chain rule.
    t = torch.tanh(w)
    return (1 - t * t) / _largest_tanh(t)


def sign(x: Tensor) -> Tensor:
    """+1 where x > 0, else -1: always a bit, also for zero."""
    return torch.where(x > 0, torch.ones_like(x), -torch.ones_like(x))


def layer_scale(w: Tensor) -> Tensor:
    """mean |W| over the layer (0-d)."""
    return w.abs().mean() if w.numel() else w.new_ones(())


def filter_dims(w: Tensor) -> tuple[int, ...]:
    """The dimensions of one output filter."""
    return tuple(range(1, w.dim()))


def filter_scale(w: Tensor) -> Tensor:
    """mean |W| over each output filter, shaped to broadcast against ``w``."""
    return w.abs().mean(filter_dims(w), keepdim=True) if w.numel() else torch.ones_like(w)


def centre(w: Tensor) -> Tensor:
    """``W - mean(W)``, filter by filter."""
    return w - w.mean(filter_dims(w), keepdim=True)


def standardise(w: Tensor) -> Tensor:
    """``(W - mean(W)) / std(W)``, filter by filter (unbiased std); a filter of equal weights becomes zeros."""
    centred = centre(w)
    std = w.std(filter_dims(w), keepdim=True)
    return centred / torch.where(std > 0, std, torch.ones_like(std))


def straight_through(value: Tensor, w: Tensor, factor: Tensor | None = None) -> Tensor:
    """``value`` in the forward pass; the gradient reaches ``w`` multiplied by ``factor`` (unchanged when None).

    ``w - w.detach()`` is exactly zero, so the bits stay exact, and the expression needs no custom autograd function:
    it compiles, vectorises and differentiates like any other.
    """
    carrier = w - w.detach()
    return value.detach() + (carrier if factor is None else factor.detach() * carrier)


@dataclass(frozen=True)
class Binarizer:
    """Values, pre-image and calibration of one way to make bits. Subclasses are pure: they hold no tensors."""

    bits: int = 1
    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if isinstance(self.bits, bool) or not isinstance(self.bits, int) or not 1 <= self.bits <= 8:
            raise ValueError(f"bits={self.bits!r}: give a whole number from 1 to 8")
        if self.bits != 1 and not isinstance(self, DoReFa):
            raise ValueError(
                f"bits={self.bits}: the binarizer {self.name!r} has one bit; binarizer='dorefa' takes more, with "
                "methods that can train it"
            )

    def hat(self, w: Tensor) -> Tensor:
        """``What = A(W)``, what the hypernetworks see of the weight."""
        raise NotImplementedError

    def values(self, w: Tensor) -> Tensor:
        """``Wb = Q(A(W))``, what the network computes with."""
        raise NotImplementedError

    def calibration(self, w: Tensor) -> Tensor:
        """``C(W)`` of the straight-through gradient ``g * C``."""
        raise NotImplementedError


@dataclass(frozen=True)
class DoReFa(Binarizer):
    """The paper's A and Q (Eq. 1, 2): tanh pre-processing, k-bit rounding, no scale."""

    name: ClassVar[str] = "dorefa"

    def hat(self, w: Tensor) -> Tensor:
        return preprocess(w)

    def values(self, w: Tensor) -> Tensor:
        # In half precision A would round weights near zero to exactly 1/2, and take positive ones for -1.
        exact = w.float() if w.dtype in (torch.bfloat16, torch.float16) else w
        return quantize(preprocess(exact), self.bits).to(w.dtype)

    def calibration(self, w: Tensor) -> Tensor:
        return calibration(w)


@dataclass(frozen=True)
class OriginalDoReFa(DoReFa):
    """DoReFa-Net as published: one bit is ``mean|W| sign(W)`` with an identity gradient, more are Eq. 1 and 2."""

    name: ClassVar[str] = "dorefa-original"

    def hat(self, w: Tensor) -> Tensor:
        return w if self.bits == 1 else super().hat(w)

    def values(self, w: Tensor) -> Tensor:
        return layer_scale(w) * sign(w) if self.bits == 1 else super().values(w)

    def calibration(self, w: Tensor) -> Tensor:
        return torch.ones_like(w) if self.bits == 1 else super().calibration(w)


@dataclass(frozen=True)
class Sign(Binarizer):
    """Plain sign of the latent weight; the gradient passes where |W| <= 1 (clipped straight-through)."""

    name: ClassVar[str] = "sign"

    def hat(self, w: Tensor) -> Tensor:
        return w

    def scale(self, w: Tensor) -> Tensor:
        """What multiplies the sign: shaped to broadcast against ``w``, differentiable."""
        return w.new_ones(())

    def values(self, w: Tensor) -> Tensor:
        return self.scale(w) * sign(w)

    def calibration(self, w: Tensor) -> Tensor:
        return (w.abs() <= 1).to(w.dtype)


@dataclass(frozen=True)
class LayerScaledSign(Sign):
    """BWN as MetaQuant uses it: ``mean|W| sign(W)``, one scale a layer. The scale takes no part in the gradient."""

    name: ClassVar[str] = "scaled-sign"

    def scale(self, w: Tensor) -> Tensor:
        return layer_scale(w)


@dataclass(frozen=True)
class FilterScaledSign(Sign):
    """BWN of XNOR-Net's paper: ``mean|W| sign(W)``, one scale an output filter."""

    name: ClassVar[str] = "scaled-sign-filter"

    def scale(self, w: Tensor) -> Tensor:
        return filter_scale(w)


@dataclass(frozen=True)
class Own(Binarizer):
    """The weights are the method's own formula, which no other method can train: IR-Net's, RBNN's, AdaBin's."""

    name: ClassVar[str] = "own"


BINARIZERS: Registry[type[Binarizer]] = Registry("binarizer")
for _cls in (DoReFa, OriginalDoReFa, Sign, LayerScaledSign, FilterScaledSign, Own):
    BINARIZERS.add(_cls.name, _cls)


def get_binarizer(binarizer: str | Binarizer, bits: int = 1) -> Binarizer:
    """A binarizer by name, or the object itself."""
    return binarizer if isinstance(binarizer, Binarizer) else BINARIZERS[binarizer](bits)
