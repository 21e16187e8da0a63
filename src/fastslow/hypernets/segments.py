"""One flat vector, many layers: per-layer numbers, and per-layer numbers spread over the weights.

Nothing here asks a GPU for a value or builds a tensor from Python numbers twice: once it has run, a CUDA graph can
capture it.
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor


@functools.lru_cache(maxsize=64)
def _constant(values: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)


def constant(values: Sequence[int], device: torch.device) -> Tensor:
    """A tensor of these whole numbers, made once. Not to be written to."""
    return _constant(tuple(values), device)


@functools.lru_cache(maxsize=64)
def _offsets(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor([0, *sizes], dtype=torch.int64, device=device).cumsum(0)


@functools.lru_cache(maxsize=64)
def _owners(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.arange(len(sizes), device=device).repeat_interleave(torch.tensor(sizes, device=device))


def repeated(values: Tensor, sizes: Sequence[int]) -> Tensor:
    """One value a layer -> one a weight, along the last dimension."""
    if values.requires_grad:
        return values.repeat_interleave(constant(sizes, values.device), dim=-1, output_size=sum(sizes))
    if values.device.type == "cuda":
        return values.index_select(-1, _owners(tuple(sizes), values.device))  # a tenth of repeat_interleave's time
    each = zip(values.split(1, -1), sizes, strict=True)
    return torch.cat([value.expand(*values.shape[:-1], size) for value, size in each], -1)


def segment_max(values: Tensor, sizes: Sequence[int]) -> Tensor:
    """The largest value of each layer, along the last dimension."""
    if values.device.type == "cuda":
        return _reduced(values, sizes, "max")
    return torch.stack([part.amax(-1) for part in values.split(list(sizes), -1)], -1)


def segment_mean(values: Tensor, sizes: Sequence[int]) -> Tensor:
    """The mean of each layer, along the last dimension."""
    if values.device.type == "cuda":
        return _reduced(values, sizes, "mean")
    return torch.stack([part.mean(-1) for part in values.split(list(sizes), -1)], -1)


def segment_sum(values: Tensor, sizes: Sequence[int]) -> Tensor:
    """The sum of each layer, along the last dimension, in a fixed order."""
    if values.device.type == "cuda":
        return _reduced(values, sizes, "sum")
    return torch.stack([part.sum(-1) for part in values.split(list(sizes), -1)], -1)


def _reduced(values: Tensor, sizes: Sequence[int], how: str) -> Tensor:
    """One kernel instead of one a layer. Rows are laid one after the other: torch is slow along a second dimension."""
    rows = values[..., 0].numel()
    offsets = _offsets(tuple(sizes) * rows, values.device)
    return torch.segment_reduce(values.reshape(-1), how, offsets=offsets, unsafe=True).view(*values.shape[:-1], -1)
