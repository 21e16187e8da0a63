"""BatchNorm with the residual sum and the ReLU that follow it, in two kernels forward and two backward.

In evaluation without gradients, as a teacher sees its images, it is one kernel.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .switch import LAST, ceil, channels_last, is_fused, launch, on_current_device, trusted

_WIDTH = 64  # channels of a program, at most
_SUM_TILE = 8192  # numbers that a program with 16 warps looks at together
_MAP_TILE = 4096  # with 8 warps
_SPLITS = 128  # ranges of rows, at most: every program of the second kernel reads a result of each
_PROGRAMS = 264  # of the second kernel: two for each multiprocessor of an H200


def norm_act(bn: nn.BatchNorm2d, x: Tensor, residual: Tensor | None = None, relu: bool = True) -> Tensor:
    """``relu(bn(x) + residual)``, in kernels of our own where the fused operations are on and take it."""
    if is_fused() and can_run(bn, x, residual):
        residual = None if residual is None else residual.contiguous(memory_format=LAST)
        if not bn.training:
            return evaluate(x, residual, bn, relu)
        return cast(Tensor, _NormAct.apply(x, bn.weight, bn.bias, residual, bn, relu))
    y = bn(x)
    if residual is not None:
        y = y + residual
    return F.relu(y) if relu else y


def can_run(bn: nn.BatchNorm2d, x: Tensor, residual: Tensor | None = None) -> bool:
    """Whether the kernels take these, and work on their device."""
    return (
        type(bn) is nn.BatchNorm2d
        and bn.training == torch.is_grad_enabled()
        and bn.running_mean is not None
        and bn.running_mean.dtype == torch.float32
        and bn.momentum is not None
        and not _hooked(bn)
        and isinstance(x, Tensor)
        and channels_last(x)
        and x.dtype in (torch.float32, torch.bfloat16)
        and x.shape[1] == bn.num_features
        and x.shape[1] % 8 == 0
        and x.shape[1] < x.numel() < 2**31
        and (residual is None or (residual.shape == x.shape and residual.dtype == x.dtype))
        and on_current_device(x)
        and trusted("norm", x.dtype, x.device)
    )


def _hooked(bn: nn.Module) -> bool:
    """Whether somebody watches the module, whose ``forward`` isn't called when its work is fused."""
    return bool(bn._forward_hooks or bn._forward_pre_hooks or bn._backward_hooks or bn._backward_pre_hooks)


class _NormAct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        residual: Tensor | None,
        bn: nn.BatchNorm2d,
        relu: bool,
    ) -> Tensor:
        y = torch.empty_like(x)
        saved = normalise(x, weight, bias, residual, bn, relu, y)
        closed = y if relu and residual is not None else None
        ctx.save_for_backward(x, weight, bias, saved, closed)
        ctx.kind = (residual is not None, relu)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight, bias, saved, y = ctx.saved_tensors
        gradients = differentiate(x, weight, bias, saved, y, dy.contiguous(memory_format=LAST), *ctx.kind)
        return *gradients, None, None


def normalise(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None, bn: nn.BatchNorm2d, relu: bool,
    y: Tensor,
) -> Tensor:  # fmt: skip
    """Write the output into ``y`` and move the running statistics; returns mean and 1 / standard deviation, (2, C)."""
    from . import norm_kernels

    C, rows = x.shape[1], x.numel() // x.shape[1]
    sums = _sum_shape(rows, C)
    partial = torch.empty(2, sums.programs, C, dtype=torch.float32, device=x.device)
    saved = torch.empty(2, C, dtype=torch.float32, device=x.device)
    launch(norm_kernels.statistics, sums.grid, x, partial, rows, **sums.constants)
    maps = _map_shape(rows, C)
    kind = {"AFFINE": weight is not None, "RESIDUAL": residual is not None, "RELU": relu}
    buffers = (bn.running_mean, bn.running_var, bn.num_batches_tracked)
    assert bn.momentum is not None
    launch(
        norm_kernels.normalise, maps.grid,
        *(x, residual, y, partial, weight, bias, *buffers, saved, rows, sums.rows, bn.eps, bn.momentum),
        **maps.constants, **_parts(sums.programs), **kind,
    )  # fmt: skip
    return saved


def evaluate(x: Tensor, residual: Tensor | None, bn: nn.BatchNorm2d, relu: bool) -> Tensor:
    """The output with the running statistics."""
    from . import norm_kernels

    rows, y = x.numel() // x.shape[1], torch.empty_like(x)
    maps = _map_shape(rows, x.shape[1])
    kind = {"AFFINE": bn.weight is not None, "RESIDUAL": residual is not None, "RELU": relu}
    launch(
        norm_kernels.evaluate, maps.grid,
        *(x, residual, y, bn.weight, bn.bias, bn.running_mean, bn.running_var, rows, bn.eps), **maps.constants, **kind,
    )  # fmt: skip
    return y


def differentiate(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, saved: Tensor, y: Tensor | None, dy: Tensor,
    residual: bool, relu: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """The gradients of input, weight, bias and residual."""
    from . import norm_kernels

    C, rows = x.shape[1], x.numel() // x.shape[1]
    sums, maps = _sum_shape(rows, C), _map_shape(rows, C)
    partial = torch.empty(2, sums.programs, C, dtype=torch.float32, device=x.device)
    both = residual and relu
    masked = torch.empty_like(dy) if both else None
    kind = {"AFFINE": weight is not None, "RESIDUAL": residual, "RELU": relu}
    launch(
        norm_kernels.sum_gradients, sums.grid,
        *(x, dy, y, masked, partial, weight, bias, saved, rows), **sums.constants, **kind,
    )  # fmt: skip
    dx = torch.empty_like(x)
    dweight, dbias = (None if part is None else torch.empty_like(part) for part in (weight, bias))
    g = dy if masked is None else masked
    launch(
        norm_kernels.input_gradient, maps.grid,
        *(x, g, dx, partial, weight, bias, saved, dweight, dbias, rows), **maps.constants, **_parts(sums.programs),
        AFFINE=weight is not None, MASK=relu and not residual,
    )  # fmt: skip
    return dx, dweight, dbias, g if residual else None


class _Shape:
    """Programs of a kernel, each with ``rows`` rows in steps of a tile, and its channels."""

    def __init__(self, rows: int, C: int, tile: int, programs: int, warps: int) -> None:
        BC = min(_WIDTH, 1 << (C - 1).bit_length())
        BR = tile // BC
        blocks = ceil(C, BC)
        rounds = ceil(ceil(rows, BR), max(1, programs // blocks))
        self.rows = BR * rounds
        self.programs = ceil(rows, self.rows)
        self.grid = (self.programs, blocks)
        self.constants = {"C": C, "BR": BR, "BC": BC, "ROUNDS": rounds, "num_warps": warps}


def _sum_shape(rows: int, C: int) -> _Shape:
    return _Shape(rows, C, _SUM_TILE, _SPLITS, 16)


def _map_shape(rows: int, C: int) -> _Shape:
    return _Shape(rows, C, _MAP_TILE, _PROGRAMS, 8)


def _parts(splits: int) -> dict[str, int]:
    return {"SPLITS": splits, "PADDED": 1 << (splits - 1).bit_length()}


def agrees(dtype: torch.dtype, device: torch.device) -> bool:
    """Outputs, gradients and running statistics against torch's own."""
    generator = torch.Generator().manual_seed(0)
    x, dy, residual = (
        torch.randn(5, 32, 7, 9, generator=generator).to(device, dtype).contiguous(memory_format=LAST) for _ in range(3)
    )
    for relu, with_residual in ((True, True), (True, False), (False, True)):
        results = []
        for own in (True, False):
            bn = nn.BatchNorm2d(32).to(device)
            bn.weight.detach().copy_(torch.linspace(0.5, 2, 32))
            # Torch computes in float32: it would round bn(x) to 16 bits before the sum, and then find other zeros.
            inputs = [part.to(dtype if own else torch.float32).detach().requires_grad_() for part in (x, residual)]
            added = inputs[1] if with_residual else None
            variables = [*inputs[: 2 if with_residual else 1], bn.weight, bn.bias]
            with torch.enable_grad():
                if own:
                    y = cast(Tensor, _NormAct.apply(inputs[0], bn.weight, bn.bias, added, bn, relu))
                else:
                    y = norm_act(bn, inputs[0], added, relu)
            results.append([y.detach(), *torch.autograd.grad(y, variables, dy.to(y.dtype)), *bn.buffers()])
            with torch.no_grad():
                results[-1].append(
                    evaluate(inputs[0], added, bn, relu) if own else norm_act(bn.eval(), inputs[0], added, relu)
                )
        tolerance = 1e-4 if dtype == torch.float32 else 2e-2
        for got, want in zip(*results, strict=True):
            if not float((got - want).double().norm()) <= tolerance * float(want.double().norm()):
                return False
    return True
