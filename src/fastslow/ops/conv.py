"""A convolution whose weight gradient is a Triton kernel; forward and input gradient stay torch's own.

cuDNN's weight gradients of narrow layers (16 to 64 channels, a batch of small images) take several times as long as
reading their inputs does: the result is tiny and the sum behind it long, which its kernels are not made for.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .switch import LAST, ceil, channels_last, is_fused, launch, on_current_device, trusted

Pair = tuple[int, ...]

# Wider layers have enough rows and columns to fill a GPU without splitting the sum: they are left to cuDNN.
_WIDEST = 64
_MULTIPROCESSORS = 132  # of an H200: each runs three or four programs at a time
_WORKSPACE = 8 << 20  # bytes of partial sums to stay below, where a split is needed at all
_POSITIONS = 32  # output positions of a step of a program
_ROWS = 128  # partial sums that are read together
_COLUMNS = 16  # numbers of the gradient that one program adds up


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = (1, 1),
    padding: str | Pair = (0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> Tensor:
    """``F.conv2d``, with our own weight gradient where the fused operations are on and take it."""
    if is_fused() and not isinstance(padding, str) and can_run(x, weight, groups):
        return cast(Tensor, _Conv.apply(*_cast(x, weight, bias), (stride, padding, dilation)))
    return F.conv2d(x, weight, bias, stride, padding, dilation, groups)


def can_run(x: Tensor, weight: Tensor, groups: int = 1) -> bool:
    """Whether the kernel takes these, and works on their device."""
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    return (
        torch.is_grad_enabled()
        and weight.requires_grad
        and groups == 1
        and weight.dtype == torch.float32
        and (dtype == torch.bfloat16 or (dtype == x.dtype == torch.float32 and tf32_allowed()))
        and all(channels % 16 == 0 and channels <= _WIDEST for channels in weight.shape[:2])
        and channels_last(x)
        and weight.is_contiguous(memory_format=LAST)
        and 0 < x.numel() < 2**31
        and on_current_device(x)
        and trusted("conv", dtype, x.device)
    )


def tf32_allowed() -> bool:
    """Whether torch's own convolutions of float32 may round their factors to TF32: then so may ours."""
    conv = getattr(torch.backends.cudnn, "conv", None)  # torch 2.9 and later, where asking the older name may fail
    return torch.backends.cudnn.allow_tf32 if conv is None else conv.fp32_precision == "tf32"


def _cast(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """What autocast would do; the weight stays as it is, since its gradient is made in its own type at once."""
    if not torch.is_autocast_enabled("cuda"):
        return x, weight, bias
    dtype = torch.get_autocast_dtype("cuda")
    return x.to(dtype), weight, None if bias is None else bias.to(dtype)


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: tuple[Pair, Pair, Pair]) -> Tensor:
        rounded = weight.to(x.dtype)
        ctx.save_for_backward(x, rounded)
        ctx.geometry = geometry
        ctx.bias_sizes = None if bias is None else [len(bias)]
        ctx.like = torch.empty_like(weight, device="meta")
        return F.conv2d(x, rounded, bias, *geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        dy = dy.contiguous(memory_format=LAST)
        dx, dw, db = None, None, None
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[2]:
            mask = [ctx.needs_input_grad[0], False, ctx.needs_input_grad[2]]
            dx, _, db = torch.ops.aten.convolution_backward(
                dy, x, weight, ctx.bias_sizes, *ctx.geometry, False, (0, 0), 1, mask
            )
        if ctx.needs_input_grad[1]:
            dw = weight_gradient(x, dy, torch.empty_like(ctx.like, device=x.device), *ctx.geometry)
        return dx, dw, db, None


def weight_gradient(x: Tensor, dy: Tensor, out: Tensor, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
    """The gradient of the weight, written into ``out``; all three channels-last."""
    from . import conv_kernels

    (CO, CI, KH, KW), (H, W), (OH, OW) = out.shape, x.shape[2:], dy.shape[2:]
    positions, columns = dy.numel() // CO, KH * KW * CI
    plan = _Plan(positions, CO, CI, KH * KW)
    partial = torch.empty(plan.splits, CO * columns, dtype=torch.float32, device=x.device)
    image = {"H": H, "W": W, "OH": OH, "OW": OW, "CI": CI, "CO": CO, "KH": KH, "KW": KW}
    moves = zip(("SH", "SW", "PH", "PW", "DH", "DW"), (*stride, *padding, *dilation), strict=True)
    precision = "tf32" if x.dtype == torch.float32 else "ieee"
    grid = (plan.splits, ceil(CO, plan.BM), ceil(columns, plan.BN * plan.tiles))
    constants = {**image, **dict(moves), **plan.shape, "PRECISION": precision}
    launch(conv_kernels.weight_gradient, grid, x, dy, partial, positions, **constants)
    adders = (ceil(CO * columns, _COLUMNS),)
    size = {"SPLITS": plan.splits, "ROWS": min(_ROWS, 1 << (plan.splits - 1).bit_length()), "COLUMNS": _COLUMNS}
    launch(conv_kernels.sum_partials, adders, partial, out, CO * columns, **size)
    return out


class _Plan:
    """How the work is shared out: tile sizes, tiles of a program, and ranges of positions.

    Fixed numbers, whatever the card: sums are in the same order everywhere.
    """

    def __init__(self, positions: int, CO: int, CI: int, taps: int) -> None:
        columns = taps * CI
        # Four warps share a tile by its columns, in products of 16 rows by 8 columns: wide tiles leave none idle.
        if CO % 32 == 0 and columns >= 64:
            self.BM, self.BN, most, programs = 32, 64, 3, 3 * _MULTIPROCESSORS
        elif columns >= 32:
            self.BM, self.BN, most, programs = 16, 32, 5, 4 * _MULTIPROCESSORS
        else:
            self.BM, self.BN, most, programs = 16, 16, 1, 4 * _MULTIPROCESSORS
        total = ceil(columns, self.BN)
        groups = ceil(total, most)  # as many tiles a program as its registers hold, evenly
        self.tiles = ceil(total, groups)
        room = max(1, _WORKSPACE // (4 * CO * columns))
        wanted = max(1, programs // (groups * (CO // self.BM)))
        steps = ceil(positions, _POSITIONS)
        self.rounds = ceil(steps, min(room, wanted))
        self.splits = ceil(steps, self.rounds)

    @property
    def shape(self) -> dict[str, int]:
        """The kernel's constants; without stages, since loads that go around the cache would be slower here."""
        tile = {"BM": self.BM, "BN": self.BN, "BK": _POSITIONS, "TILES": self.tiles, "ROUNDS": self.rounds}
        return {**tile, "num_warps": 4, "num_stages": 1}


def agrees(dtype: torch.dtype, device: torch.device) -> bool:
    """The weight gradient against torch's own, on whole numbers, which TF32 and bf16 hold exactly."""
    generator = torch.Generator().manual_seed(0)
    for shape, (CO, CI, size), (stride, padding) in (
        ((3, 16, 9, 9), (16, 16, 3), (1, 1)),
        ((2, 32, 8, 8), (64, 32, 1), (2, 0)),
        ((1, 32, 7, 7), (32, 32, 3), (2, 1)),
    ):
        x, w = (
            torch.randint(-2, 3, sizes, generator=generator).to(device, torch.float32, memory_format=LAST)
            for sizes in (shape, (CO, CI, size, size))
        )
        w.requires_grad_()
        with torch.enable_grad():
            y = F.conv2d(x, w, None, stride, padding)
        dy = torch.randint(-2, 3, y.shape, generator=generator).to(device, torch.float32, memory_format=LAST)
        (want,) = torch.autograd.grad(y, w, dy)
        out = torch.empty_like(w, requires_grad=False)
        got = weight_gradient(x.to(dtype), dy.to(dtype), out, (stride, stride), (padding, padding), (1, 1))
        if not float((got - want).abs().max()) < 0.1:  # some of cuDNN's algorithms round even here
            return False
    return True
