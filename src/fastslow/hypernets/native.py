"""The slow-net on the CPU as compiled code (``csrc/``): d_model 1, dt_rank 1, float32.

The library is built at installation where there is a C++ compiler; without it, and for everything else, the PyTorch
path runs. Both are exact: they differ in speed only, and the tests hold them together.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fastslow.hypernets.horizon import horizon
from fastslow.hypernets.segments import constant, segment_max

if TYPE_CHECKING:
    from fastslow.hypernets.slow import MambaSlowNet

log = logging.getLogger("fastslow")

MAX_TOKENS = 64  # of a per-weight sequence: beyond, what the backward pass keeps leaves the cache
_STATES, _TAPS = (4, 16), (4, 8)  # the sizes that kernels are compiled for; smaller ones are padded with zeros
_LAYER = np.dtype(
    [("start", "<i8"), ("starts", "<u8"), ("size", "<i4"), ("lre", "<f4"), ("scale", "<f4"), ("unused", "<i4")]
)
_TASK = np.dtype([("start", "<i4"), ("stop", "<i4"), ("lre", "<f4"), ("scale", "<f4")])


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels, or None (said once in the log) where they weren't built."""
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_native{suffix}")
        if path.is_file():
            lib = ctypes.CDLL(str(path))
            i, p, f = ctypes.c_int, ctypes.c_void_p, ctypes.c_float
            lib.fastslow_per_weight.argtypes = [i, i, i, i, i, i, p, f, p, ctypes.c_int64, i, p, i, p, p, p]
            lib.fastslow_concat.argtypes = [i, i, i, i, i, p, f, p, ctypes.c_int64, i, p, i, p, p, p]
            return lib
    log.info(
        "the compiled slow-net wasn't built (no C++ compiler at installation?): the CPU uses PyTorch, which is slower"
    )
    return None


def best_level() -> int:
    """The best instruction set of this machine: 0 portable, 1 AVX2, 2 AVX-512."""
    return _library().fastslow_best_level()


def padded_sizes(net: MambaSlowNet) -> tuple[int, int] | None:
    """(states, taps) of the kernel that can run this net, or None."""
    dt_rank, d_state, _ = net.splits
    if net.lre.embedding_dim != 1 or dt_rank != 1 or (net.W_a is not None and net.W_a.in_features != 1):
        return None
    states = next((n for n in _STATES if n >= d_state), None)
    taps = next((n for n in _TAPS if n >= net.conv.kernel_size[0]), None)
    return None if states is None or taps is None else (states, taps)


def can_run(net: MambaSlowNet, history: Tensor) -> bool:
    """Whether the kernels take this net and history: float32 on the CPU, no gradient for the history itself."""
    return (
        history.device.type == "cpu"
        and history.dtype == net.D.dtype == torch.float32
        and not history.requires_grad
        and padded_sizes(net) is not None
        and library() is not None
    )


def records(net: MambaSlowNet, states: int, taps: int) -> Tensor:
    """The parameters as the kernels read them, one row a channel (`Record` in csrc/common.h); differentiable."""
    in_x, in_z = net.in_proj.weight.chunk(2)
    to_dt, to_B, to_C = net.x_proj.weight.T.split(net.splits, dim=1)
    out = net.out_proj.weight.T if net.W_b is None else net.out_proj.weight.T * net.W_b.weight
    more = states - net.splits[1]  # states that nothing enters
    columns = [
        F.pad(net.conv.weight[:, 0] * in_x, (taps - net.conv.kernel_size[0], 0)),
        cast(Tensor, net.conv.bias)[:, None],
        to_dt,
        F.pad(to_B, (0, more)),
        F.pad(to_C, (0, more)),
        net.dt_proj.weight,
        net.dt_proj.bias[:, None],
        F.pad(-net.A_log.exp(), (0, more), value=-1.0),
        net.D[:, None],
        out,
        in_z,
    ]
    return torch.cat(columns, dim=1)


def per_weight(
    net: MambaSlowNet,
    history: Tensor,
    sizes: Sequence[int],
    layers: Sequence[int],
    scales: Tensor | None,
    *,
    known: Tensor | None = None,
    level: int | None = None,
    threads: int | None = None,
) -> Tensor:
    """`MambaSlowNet.per_weight` for what `can_run` allows; history (l, N), result (N,)."""
    padded = padded_sizes(net)
    assert padded is not None
    call = _PerWeightCall(net, padded, history, sizes, scales, level, threads)
    return _apply(net, padded, layers, call, known)


def concat(
    net: MambaSlowNet,
    history: Tensor,
    sizes: Sequence[int],
    layers: Sequence[int],
    scales: Tensor | None,
    starts: Tensor | None = None,
    *,
    known: Tensor | None = None,
    level: int | None = None,
    threads: int | None = None,
) -> Tensor:
    """`MambaSlowNet.concat` for what `can_run` allows; history (l, N), result (N,).

    `starts` (layers, channels, states) are the first tokens that matter to each state; None reads everything.
    """
    padded = padded_sizes(net)
    assert padded is not None
    padded = (_STATES[-1], padded[1])
    if starts is not None:  # states that nothing enters need no token at all
        unused = torch.iinfo(torch.int32).max
        starts = F.pad(starts.to(torch.int32), (0, padded[0] - starts.shape[2]), value=unused).contiguous()
    call = _ConcatCall(net, padded, history, sizes, scales, level, threads, starts)
    return _apply(net, padded, layers, call, known)


def concat_to_horizon(
    net: MambaSlowNet,
    history: Tensor,
    sizes: Sequence[int],
    layers: Sequence[int],
    scales: Tensor | None,
    *,
    known: Tensor | None = None,
) -> Tensor:
    """`concat`, leaving out what lies beyond `net.horizon_tol`."""
    if net.horizon_tol == 0 or len(history) == 1:
        return concat(net, history, sizes, layers, scales, known=known)
    starts, guess = horizon(net, history, sizes, layers, scales, net.horizon_tol)
    out = concat(net, history, sizes, layers, scales, starts, known=known)
    largest = segment_max(out.detach().abs(), sizes)
    enough = (largest if scales is None else largest / scales) >= guess
    if bool(enough.all()):
        return out
    starts = torch.where(enough[:, None, None], starts, 0)
    return concat(net, history, sizes, layers, scales, starts, known=known)


def _apply(
    net: MambaSlowNet, padded: tuple[int, int], layers: Sequence[int], call: _Call, known: Tensor | None
) -> Tensor:
    token_weight = torch.ones(1, 1) if net.W_a is None else net.W_a.weight
    lre = net.lre.weight[:, 0].index_select(0, constant(layers, net.lre.weight.device))
    return cast(Tensor, _Native.apply(records(net, *padded), token_weight, lre, call, known))


class _Native(torch.autograd.Function):
    """One call forward, one backward; nothing is kept between them but the arguments."""

    @staticmethod
    def forward(
        ctx: Any, records: Tensor, token_weight: Tensor, lre: Tensor, call: _Call, known: Tensor | None
    ) -> Tensor:
        if known is None:
            out = torch.empty_like(call.history[0])
            call(records, token_weight, lre, out=out)
        else:
            out = known.clone()
        ctx.save_for_backward(records, token_weight, lre)
        ctx.call = call
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        records, token_weight, lre = ctx.saved_tensors
        partial = np.empty((ctx.call.tasks, records.numel() + 2))
        ctx.call(records, token_weight, lre, cotangent=cotangent.contiguous(), partial=partial)
        total = torch.from_numpy(partial.sum(0)).to(records.dtype)
        dlre = torch.from_numpy(np.bincount(ctx.call.layer_of_task, partial[:, -1], len(lre))).to(records.dtype)
        return total[:-2].view_as(records), total[-2:-1].view_as(token_weight), dlre, None, None


class _Call:
    """A call of the library with everything but the parameters filled in."""

    layer_of_task: np.ndarray

    def __init__(
        self,
        net: MambaSlowNet,
        padded: tuple[int, int],
        history: Tensor,
        sizes: Sequence[int],
        scales: Tensor | None,
        level: int | None,
        threads: int | None,
    ) -> None:
        self.padded = padded
        self.zoh = net.discretization == "zoh"
        self.history = history.contiguous()
        self.sizes = tuple(sizes)
        self.scales = np.ones(len(sizes), np.float32) if scales is None else scales.numpy()
        self.level = best_level() if level is None else level
        self.threads = torch.get_num_threads() if threads is None else threads

    @property
    def tasks(self) -> int:
        return len(self.layer_of_task)

    def __call__(
        self,
        records: Tensor,
        token_weight: Tensor,
        lre: Tensor,
        *,
        out: Tensor | None = None,
        cotangent: Tensor | None = None,
        partial: np.ndarray | None = None,
    ) -> None:
        raise NotImplementedError


class _PerWeightCall(_Call):
    @property
    def layer_of_task(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleVariableOverride]
        return _partition(self.sizes)[1]

    def __call__(self, records, token_weight, lre, *, out=None, cotangent=None, partial=None) -> None:
        ranges, layer = _partition(self.sizes)
        tasks = np.empty(len(ranges), _TASK)
        tasks["start"], tasks["stop"] = ranges.T
        tasks["lre"], tasks["scale"] = lre.detach().numpy()[layer], self.scales[layer]
        length, weights = self.history.shape
        refused = _library().fastslow_per_weight(
            self.level, self.threads, len(records), *self.padded, self.zoh, _at(records), float(token_weight),
            _at(self.history), weights, length + 1, tasks.ctypes.data, len(tasks), _at(out), _at(cotangent),
            _at(partial),
        )  # fmt: skip
        assert not refused


class _ConcatCall(_Call):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args[:-1])
        self.starts: Tensor | None = args[-1]
        self.layer_of_task = np.argsort(-np.array(self.sizes), kind="stable")  # the largest first

    def __call__(self, records, token_weight, lre, *, out=None, cotangent=None, partial=None) -> None:
        order = self.layer_of_task
        layers = np.zeros(len(order), _LAYER)
        layers["start"] = (np.cumsum(self.sizes) - self.sizes)[order]
        layers["size"] = np.array(self.sizes)[order]
        layers["lre"], layers["scale"] = lre.detach().numpy()[order], self.scales[order]
        if self.starts is not None:
            layers["starts"] = self.starts.data_ptr() + self.starts[0].nbytes * order.astype(np.uint64)
        length, weights = self.history.shape
        refused = _library().fastslow_concat(
            self.level, self.threads, len(records), self.padded[1], self.zoh, _at(records), float(token_weight),
            _at(self.history), weights, length, layers.ctypes.data, len(layers), _at(out), _at(cotangent),
            _at(partial),
        )  # fmt: skip
        assert not refused


def _library() -> ctypes.CDLL:
    lib = library()
    assert lib is not None
    return lib


def _at(array: Tensor | np.ndarray | None) -> int:
    if array is None:
        return 0
    return array.data_ptr() if isinstance(array, Tensor) else array.ctypes.data


@functools.lru_cache(maxsize=8)
def _partition(sizes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Ranges of weights (tasks, 2) that don't cross a layer, and the layer of each.

    It depends on the sizes alone, so that sums over tasks come out the same whatever the number of threads; and there
    are at most about 500, since each keeps gradients of its own for all parameters.
    """
    length = 1024 * -(-sum(sizes) // (1024 * 512))
    ranges, layers, start = [], [], 0
    for layer, size in enumerate(sizes):
        stop = start + size
        ranges += [(first, min(first + length, stop)) for first in range(start, stop, length)]
        layers += [layer] * -(-size // length)
        start = stop
    return np.array(ranges), np.array(layers)
