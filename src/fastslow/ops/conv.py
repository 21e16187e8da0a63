"""A convolution of narrow layers in Triton kernels: its weight gradient, and where it is 3x3 with stride 1 all of it.

With 16 to 64 channels and a batch of small images, cuDNN takes several times as long as reading and writing does: its
kernels are made for larger matrices. Other kernels' and strides' outputs and input gradients, and outputs with a bias,
stay torch's own.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .switch import LAST, ceil, channels_last, is_fused, launch, may_round_to_tf32, on_current_device, trusted

Pair = tuple[int, ...]
Tile = tuple[int, int, int, int]

# Wider layers have enough rows and columns to fill a GPU without splitting the sum: they are left to cuDNN.
_WIDEST = 64
_MULTIPROCESSORS = 132  # of an H200: each runs three or four programs at a time
_WORKSPACE = 8 << 20  # bytes of partial sums to stay below, where a split is needed at all
_POSITIONS = 32  # output positions of a step of a program
_ROWS = 128  # partial sums that are read together
_COLUMNS = 16  # numbers of the gradient that one program adds up

# Output and input gradient, by the larger number of channels. A program's places, output rows at each, output channels
# in units of 16, and warps; then the numbers of channels for which this is faster than cuDNN.
_FORWARD: dict[int, Tile] = {16: (16, 8, 1, 1), 32: (16, 4, 2, 1), 48: (16, 1, 3, 1), 64: (8, 4, 2, 1)}
_BACKWARD: dict[int, Tile] = {**_FORWARD, 64: (8, 8, 1, 1)}
FORWARD_CHANNELS = {16, 32, 48, 64}
BACKWARD_CHANNELS = {16, 32, 48, 64}


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = (1, 1),
    padding: str | Pair = (0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> Tensor:
    """``F.conv2d``, in kernels of our own where the fused operations are on and take it."""
    if is_fused() and not isinstance(padding, str) and can_run(x, weight, groups):
        return cast(Tensor, _Conv.apply(*_cast(x, weight, bias), (stride, padding, dilation)))
    return F.conv2d(x, weight, bias, stride, padding, dilation, groups)


def can_run(x: Tensor, weight: Tensor, groups: int = 1) -> bool:
    """Whether the weight gradient's kernel takes these, and all kernels work on their device.

    Without gradients they are taken too: a teacher's convolutions.
    """
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    return (
        (weight.requires_grad or not torch.is_grad_enabled())
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
    return may_round_to_tf32(torch.backends.cudnn, getattr(torch.backends.cudnn, "conv", None))


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
        if bias is None and _is_own(x, weight, geometry, FORWARD_CHANNELS):
            return convolve(x, rounded, geometry[1], False)
        return F.conv2d(x, rounded, bias, *geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        dy = dy.contiguous(memory_format=LAST)
        dx, dw, db = None, None, None
        own = ctx.needs_input_grad[0] and _is_own(x, weight, ctx.geometry, BACKWARD_CHANNELS)
        mask = [ctx.needs_input_grad[0] and not own, False, ctx.needs_input_grad[2]]
        if any(mask):
            dx, _, db = torch.ops.aten.convolution_backward(
                dy, x, weight, ctx.bias_sizes, *ctx.geometry, False, (0, 0), 1, mask
            )
        if own:
            dx = convolve(dy, weight, ctx.geometry[1], True)
        if ctx.needs_input_grad[1]:
            dw = weight_gradient(x, dy, torch.empty_like(ctx.like, device=x.device), *ctx.geometry)
        return dx, dw, db, None


def _is_own(x: Tensor, weight: Tensor, geometry: tuple[Pair, Pair, Pair], channels: set[int]) -> bool:
    """Whether ``convolve`` takes a convolution of these, or its input gradient."""
    stride, padding, dilation = geometry
    CO, CI, *kernel = weight.shape
    H, W = (side + 2 * pad for side, pad in zip(x.shape[2:], padding, strict=True))
    return (
        tuple(stride) == tuple(dilation) == (1, 1)
        and kernel == [3, 3]
        and max(CO, CI) in channels
        and min(H, W) >= 3  # or torch refuses it
        and len(x) * CO * H * W < 2**31
    )


def convolve(x: Tensor, weight: Tensor, padding: Pair, mirrored: bool) -> Tensor:
    """A convolution with stride 1 of channels-last tensors; with ``mirrored`` its input gradient, ``x`` being dy."""
    from . import conv_forward_kernels

    CO, CI, KH, KW = weight.shape
    PH, PW = padding
    if mirrored:  # taps and channels change places
        CO, CI, PH, PW = CI, CO, KH - 1 - PH, KW - 1 - PW
    n, _, H, W = x.shape
    OH, OW = H + 2 * PH - KH + 1, W + 2 * PW - KW + 1
    y = torch.empty(n, CO, OH, OW, dtype=x.dtype, device=x.device, memory_format=LAST)
    BM, ROWS, BLOCKS, warps = (_BACKWARD if mirrored else _FORWARD)[max(CI, CO)]
    BLOCKS = math.gcd(BLOCKS, CO // 16)
    places = n * ceil(OH, ROWS) * OW
    image = {"H": H, "W": W, "OH": OH, "OW": OW, "CI": CI, "CO": CO, "KH": KH, "KW": KW, "PH": PH, "PW": PW}
    kind = {"MIRRORED": mirrored, "CUT": x.dtype == torch.float32, "PAIR": 4 // x.element_size()}
    tile = {"BM": BM, "ROWS": ROWS, "BLOCKS": BLOCKS, "num_warps": warps, "num_stages": 1}
    grid = (ceil(places, BM), CO // (16 * BLOCKS))
    launch(conv_forward_kernels.convolve, grid, x, weight, y, places, **image, **kind, **tile)
    return y


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
    """All three parts against torch's own, on whole numbers, which TF32 and bf16 hold exactly."""
    generator = torch.Generator().manual_seed(0)

    def whole(*shape: int) -> Tensor:
        return torch.randint(-2, 3, shape, generator=generator).to(device, torch.float32, memory_format=LAST)

    for shape, (CO, CI, size), (stride, padding) in (
        ((2, 16, 5, 9), (16, 16, 3), (1, 1)),
        ((2, 32, 8, 8), (64, 32, 1), (2, 0)),
        ((1, 32, 7, 7), (32, 32, 3), (2, 1)),
        ((1, 64, 4, 3), (32, 64, 3), (1, 1)),
    ):
        x, w = whole(*shape).requires_grad_(), whole(CO, CI, size, size).requires_grad_()
        geometry = ((stride, stride), (padding, padding), (1, 1))
        with torch.enable_grad():
            y = F.conv2d(x, w, None, *geometry)
        dy = whole(*y.shape)
        dx, dw = torch.autograd.grad(y, (x, w), dy)
        held = [part.detach().to(dtype) for part in (x, w, dy)]
        pairs = [(weight_gradient(held[0], held[2], torch.empty_like(dw), *geometry), dw)]
        if _is_own(x, w, geometry, FORWARD_CHANNELS):
            pairs.append((convolve(held[0], held[1], geometry[1], False), y.detach()))
        if _is_own(x, w, geometry, BACKWARD_CHANNELS):
            pairs.append((convolve(held[2], held[1], geometry[1], True), dx))
        # Below 256, so exact in bf16 too; but some of cuDNN's algorithms round even here.
        if not all(float((got - want).abs().max()) < 0.1 for got, want in pairs):
            return False
    return True
