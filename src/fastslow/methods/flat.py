"""Many tensors as one flat vector and back, in few operations whatever their memory layout.

A flat vector holds tensors in the order of their elements' indices, which doesn't depend on the device. On a GPU
weights are channels-last, so flattening one by one copies each of them. Here they are taken as they lie in memory, all
in one operation, and the whole is put in order by one more.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

_Kind = tuple[tuple[int, ...], tuple[int, ...]]  # a tensor's shape, and its dimensions in the order of memory


def join(tensors: Sequence[Tensor]) -> Tensor:
    """All elements of all tensors, one after the other."""
    kinds = _kinds(tensors)
    if kinds is None:
        return torch.cat([tensor.reshape(-1) for tensor in tensors])
    together = torch.cat([_as_in_memory(tensor, kind) for tensor, kind in zip(tensors, kinds, strict=True)])
    return together.index_select(0, _orders(kinds, together.device)[0])


def write(tensors: Sequence[Tensor], flat: Tensor) -> None:
    """The inverse: put a flat vector's elements into the tensors."""
    kinds = _kinds(tensors)
    if kinds is None:
        for tensor, piece in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(piece.view(tensor.shape))
        return
    pieces = flat.index_select(0, _orders(kinds, flat.device)[1]).split([tensor.numel() for tensor in tensors])
    copy_all([_as_in_memory(tensor, kind) for tensor, kind in zip(tensors, kinds, strict=True)], pieces)


def copy_all(to: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """`to[i].copy_(tensors[i])` for all of them, in one operation where torch has it."""
    torch._foreach_copy_(list(to), list(tensors))  # pyright: ignore[reportPrivateImportUsage]


def subtract_all(a: Sequence[Tensor], b: Sequence[Tensor]) -> list[Tensor]:
    """`a[i] - b[i]`, likewise."""
    return list(torch._foreach_sub(list(a), list(b)))  # pyright: ignore[reportPrivateImportUsage]


def _kinds(tensors: Sequence[Tensor]) -> tuple[_Kind, ...] | None:
    """How the tensors lie in memory; None where that is their natural order, or they have gaps."""
    if all(tensor.is_contiguous() for tensor in tensors):
        return None
    kinds = []
    for tensor in tensors:
        dims = tuple(sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim)))
        if not tensor.permute(dims).is_contiguous():
            return None
        kinds.append((tuple(tensor.shape), dims))
    return tuple(kinds)


def _as_in_memory(tensor: Tensor, kind: _Kind) -> Tensor:
    return tensor.permute(kind[1]).view(-1)


@functools.lru_cache(maxsize=64)
def _orders(kinds: tuple[_Kind, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Where each element of the flat vector lies in memory, and the inverse."""
    parts, start = [], 0
    for shape, dims in kinds:
        size = torch.Size(shape).numel()
        in_memory = torch.arange(start, start + size).view([shape[dim] for dim in dims])
        parts.append(in_memory.permute([dims.index(dim) for dim in range(len(dims))]).reshape(-1))
        start += size
    order = torch.cat(parts)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order))
    return order.to(device), inverse.to(device)
