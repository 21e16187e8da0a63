"""A labelled set of images as two tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

Channels = tuple[float, float, float]

HALF: Channels = (0.5, 0.5, 0.5)


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageSet:
    """Images as uint8 (N, 3, H, W), labels as int64 (N,), and the constants that normalise the images.

    `mean` and `std` are in units of a pixel scaled to [0, 1], one value a channel.
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    mean: Channels = HALF
    std: Channels = HALF

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4 or self.images.shape[1] != 3:
            raise ValueError(f"images must be uint8 (N, 3, H, W), not {self.images.dtype} {tuple(self.images.shape)}")
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise ValueError(
                f"labels must be int64 ({len(self.images)},), not {self.labels.dtype} {tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one image: channels, height, width."""
        return tuple(self.images.shape[1:])

    def to(self, device: torch.device | str) -> ImageSet:
        """The same set on `device`; tensors that are there already are shared, not copied."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def subset(self, indices: Tensor | slice) -> ImageSet:
        """The images at `indices`, in that order; a slice shares memory."""
        if isinstance(indices, Tensor):
            indices = indices.to(self.images.device)
        return replace(self, images=self.images[indices], labels=self.labels[indices])
