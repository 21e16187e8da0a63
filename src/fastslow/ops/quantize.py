"""The binary weight of a forward pass in one kernel (two for a large layer), its gradient in at most one.

`ahead.py` makes the bits of many layers in one launch.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..binarize import Binarizer, DoReFa, calibration, straight_through
from .ahead import Bits, Table, bits_of_many, made_ahead, places
from .switch import LAST, ceil, is_fused, launch, on_current_device, trusted

_BLOCK = 4096  # weights of a program's step
_WHOLE = 1 << 16  # up to so many weights every program looks for the layer's maximum itself


def binary_weight(
    binarizer: Binarizer, weight: Tensor, shift: Tensor | None = None, calibrate: bool = True
) -> Tensor | None:
    """Q(A(W - shift)), differentiable in W: times C(W), or unchanged. None: the plain formulas have to do it."""
    if not (is_fused() and can_run(binarizer, weight, shift)):
        return None
    return cast(Tensor, _Bits.apply(weight, shift, calibrate, made_ahead(weight, shift)))


def can_run(binarizer: Binarizer, weight: Tensor, shift: Tensor | None = None) -> bool:
    """Whether the kernels take these, and work on their device."""
    return (
        type(binarizer) is DoReFa
        and binarizer.bits == 1
        and torch.is_grad_enabled()
        and weight.dtype == torch.float32
        and 0 < weight.numel() < 2**31
        and _same_places(weight, weight)
        and (shift is None or (shift.dtype == weight.dtype and _same_places(weight, shift)))
        and on_current_device(weight)
        and trusted("quantize", weight.dtype, weight.device)
    )


def _same_places(a: Tensor, b: Tensor) -> bool:
    """Whether the same numbers are at the same places of both, without gaps."""
    formats = [torch.contiguous_format, LAST] if a.dim() == 4 else [torch.contiguous_format]
    return a.shape == b.shape and any(
        a.is_contiguous(memory_format=one) and b.is_contiguous(memory_format=one) for one in formats
    )


class _Bits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, shift: Tensor | None, calibrate: bool, made: Bits | None) -> Tensor:
        values, largest = bits(weight, shift) if made is None else made
        if calibrate:
            ctx.save_for_backward(weight, largest)
        ctx.calibrate = calibrate
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return calibrated(g, *ctx.saved_tensors) if ctx.calibrate else g, None, None, None


def bits(weight: Tensor, shift: Tensor | None = None) -> Bits:
    """The bits of one layer."""
    from . import quantize_kernels

    size = weight.numel()
    blocks = ceil(size, _BLOCK)
    values, largest = torch.empty_like(weight), weight.new_empty(())
    common = {"LOOKS_AHEAD": shift is not None, "BLOCK": _BLOCK, "num_warps": 8}
    whole = size <= _WHOLE
    rounds = blocks if whole else ceil(blocks, 512)
    parts = None if whole else weight.new_empty(ceil(blocks, rounds))
    if parts is not None:
        launch(quantize_kernels.part_maxima, (len(parts),), weight, shift, parts, size, ROUNDS=rounds, **common)
    launch(
        quantize_kernels.binary_values, (blocks,), weight, shift, parts, values, largest, size,
        ROUNDS=rounds, PARTS=0 if parts is None else len(parts), LIBDEVICE=weight.is_cuda, **common,
    )  # fmt: skip
    return Bits(values, largest)


def calibrated(g: Tensor, weight: Tensor, largest: Tensor) -> Tensor:
    """``g * C(W)``."""
    from . import quantize_kernels

    g = g if g.dtype == weight.dtype and _same_places(weight, g) else torch.empty_like(weight).copy_(g)
    out, size = torch.empty_like(weight), weight.numel()
    launch(quantize_kernels.calibrated, (ceil(size, 1024),), g, weight, largest, out, size, BLOCK=1024)
    return out


def agrees(dtype: torch.dtype, device: torch.device) -> bool:
    """Every bit, and C closely, on layers with weights around the place where the bit turns."""
    for top in (1e-40, 1e-20, 3e-4, 0.01, 0.07, 0.3, 0.5, 1.0, 2.5, 20.0):
        weight = boundary(top).to(device, dtype).requires_grad_()
        with torch.enable_grad():
            plain = straight_through(DoReFa().values(weight.detach()), weight, calibration(weight.detach()))
            own = cast(Tensor, _Bits.apply(weight, None, True, None))
            want, got = (torch.autograd.grad(y, weight, torch.ones_like(y))[0] for y in (plain, own))
        shifted = bits(torch.full_like(weight, 0.25), 0.25 - weight.detach())[0]
        if not torch.equal(own.detach(), plain.detach()) or not torch.allclose(got, want, rtol=1e-5, atol=1e-6):
            return False
        if not torch.equal(shifted, DoReFa().values(0.25 - (0.25 - weight.detach()))):
            return False
    return _many_agree(device)


def _many_agree(device: torch.device) -> bool:
    """The launch for many layers against those for one, where it may read four weights at once and where it may not."""
    for size in (560, 561):
        weights = [boundary(top)[:size].to(device) for top in (1e-20, 0.01, 0.5, 2.5)]
        for shifts in ([None] * 4, [None, *(0.25 - w for w in weights[1:])]):
            pairs = list(zip(weights, shifts, strict=True))
            for pair, got in zip(pairs, bits_of_many(Table([places(*pair) for pair in pairs])), strict=True):
                if not all(map(torch.equal, got, bits(*pair))):
                    return False
    return True


def boundary(top: float) -> Tensor:
    """Weights up to ``top``: zeros of both signs, the smallest numbers, and the floats around the turning point."""
    weight = torch.linspace(-top, top, 301)
    turn = torch.tanh(torch.tensor(top)) * 2.0**-24
    around = (turn.view(torch.int32) + torch.arange(-64, 65)).clamp_min(0).to(torch.int32).view(torch.float32)
    return torch.cat([weight, around, -around, torch.tensor([0.0, -0.0, 1e-45, -1e-45, 1e-38, -1e-38]).clamp_max(top)])
