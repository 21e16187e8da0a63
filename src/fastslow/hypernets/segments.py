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
    """One value a layer -> one a weight."""
    if values.device.type == "cuda" and not values.requires_grad:
        return values.index_select(0, _owners(tuple(sizes), values.device))  # a tenth of repeat_interleave's time
    return values.repeat_interleave(constant(sizes, values.device), output_size=sum(sizes))


def segment_max(flat: Tensor, sizes: Sequence[int]) -> Tensor:
    """The largest value of each layer."""
    if flat.device.type == "cuda":  # one kernel instead of one a layer
        return torch.segment_reduce(flat, "max", offsets=_offsets(tuple(sizes), flat.device), unsafe=True)
    return torch.stack([part.amax() for part in flat.split(list(sizes))])


def segment_mean(flat: Tensor, sizes: Sequence[int]) -> Tensor:
    """The mean of each layer."""
    if flat.device.type == "cuda":
        return torch.segment_reduce(flat, "mean", offsets=_offsets(tuple(sizes), flat.device), unsafe=True)
    return torch.stack([part.mean() for part in flat.split(list(sizes))])


def segment_sum(flat: Tensor, sizes: Sequence[int]) -> Tensor:
    """The sum of each layer, in a fixed order."""
    if flat.device.type == "cuda":
        return torch.segment_reduce(flat, "sum", offsets=_offsets(tuple(sizes), flat.device), unsafe=True)
    return torch.stack([part.sum() for part in flat.split(list(sizes))])
