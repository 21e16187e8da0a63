"""Batches made where they are used: the whole set lies on the training device as uint8, and so does the augmentation.

What an epoch shows is a pure function of `(seed, epoch)`. All of its random numbers are drawn at its start, on the CPU
and from generators of their own, so they are the same on every device and for every method, model and batch size, and
the middle of an epoch can be resumed without replaying its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from .images import ImageSet

PAD = 4
ORDER, AUGMENT, HOLES = 0, 1, 2  # independent random streams of one seed


def gather(images: Tensor, indices: Tensor, shifts: Tensor, flips: Tensor) -> Tensor:
    """Crops of `images[indices]` `shifts` (B, 2) pixels further down and right, mirrored where `flips`.

    Result (b, c, y, x) is image (indices[b], c, y + shifts[b, 0], x' + shifts[b, 1]) with x' = W - 1 - x if flipped,
    and 0 outside of the image: padding is black *before* normalisation, as in the usual pipeline, not the mean colour.
    One indexing operation; the result has channels-last strides, because channels come last out of it.
    """
    height, width = images.shape[2:]
    y = torch.arange(height, device=images.device)
    x = torch.arange(width, device=images.device)
    rows = y + shifts[:, :1]  # (B, H)
    columns = torch.where(flips[:, None], width - 1 - x, x) + shifts[:, 1:]  # (B, W)
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    rows, columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    crops = images[indices[:, None, None], :, rows[:, :, None], columns[:, None, :]]  # (B, H, W, C)
    return (crops * inside[..., None]).permute(0, 3, 1, 2)


def normalize(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """`(images / 255 - mean) / std` in float32."""
    return images.to(torch.float32).div(255).sub_(mean[:, None, None]).div_(std[:, None, None])


def hole_centres(images: int, sides: Sequence[int], numbers: torch.Generator) -> Tensor:
    """A pixel of each image, (images, 2)."""
    return torch.stack([torch.randint(0, side, (images,), generator=numbers) for side in sides], 1)


def blank(x: Tensor, centres: Tensor, side: int) -> Tensor:
    """Cutout (DeVries and Taylor 2017): a square of `side` pixels around `centres` (B, 2) of each image becomes 0.

    Of normalised images that is the mean colour. What of a square lies outside of its image is lost.
    """
    first = centres - side // 2
    y = torch.arange(x.shape[2], device=x.device) - first[:, :1]
    x_ = torch.arange(x.shape[3], device=x.device) - first[:, 1:]
    hole = ((y >= 0) & (y < side))[:, :, None] & ((x_ >= 0) & (x_ < side))[:, None, :]
    return x * ~hole[:, None]


class Batches:
    """Batches `(x, y)` of an image set: x float32 and normalised, y int64, both on `device`.

    With `augment` an image is shifted by up to four pixels and mirrored in half of the cases; with `cutout` a square of
    so many pixels a side is blanked, anywhere. `augment=False, shuffle=False` is the evaluation pass. Images are
    channels-first in memory unless `channels_last`. `share` is the part of a batch of n images that this process gets,
    where several share each batch.
    """

    def __init__(
        self,
        image_set: ImageSet,
        batch_size: int,
        *,
        seed: int = 0,
        augment: bool = False,
        cutout: int = 0,
        shuffle: bool = False,
        device: torch.device | str = "cpu",
        drop_last: bool = False,
        channels_last: bool = False,
        share: Callable[[int], slice] = slice,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        if seed < 0:
            raise ValueError(f"seed must not be negative, not {seed}")
        self.image_set = image_set.to(device)
        self.batch_size = batch_size
        self.seed = seed
        self.augment = augment
        self.cutout = cutout
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.share = share
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self._mean = torch.tensor(image_set.mean, device=device)
        self._std = torch.tensor(image_set.std, device=device)

    def __len__(self) -> int:
        """Batches in an epoch."""
        full, rest = divmod(len(self.image_set), self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def plan(self, epoch: int) -> tuple[Tensor, ...]:
        """Everything random about an epoch, in the order shown, on the CPU.

        Indices (N,), shifts (N, 2), flips (N,), and with `cutout` the centres of the squares that are blanked (N, 2).
        """
        n = len(self.image_set)
        indices, shifts, flips = torch.arange(n), torch.zeros(n, 2, dtype=torch.int64), torch.zeros(n, dtype=torch.bool)
        if self.shuffle:
            indices = torch.randperm(n, generator=generator(self.seed, epoch, ORDER))
        if self.augment:
            numbers = generator(self.seed, epoch, AUGMENT)
            shifts = torch.randint(-PAD, PAD + 1, (n, 2), generator=numbers)
            flips = torch.randint(0, 2, (n,), generator=numbers) == 1
        if not self.cutout:
            return indices, shifts, flips
        return indices, shifts, flips, hole_centres(n, self.image_set.shape[1:], generator(self.seed, epoch, HOLES))

    def gather(self, indices: Tensor, shifts: Tensor, flips: Tensor, centres: Tensor | None = None) -> Tensor:
        """One batch: `gather` of this set's images, then `normalize`, then `blank` around the centres, if any."""
        images = self.image_set.images
        crops = gather(images, indices, shifts, flips) if self.augment else images[indices]
        x = normalize(crops, self._mean, self._std)
        if centres is not None:
            x = blank(x, centres, self.cutout)
        return x.contiguous(memory_format=self.memory_format)

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch from batch `start` on; the same ones that a run from its beginning would see."""
        if not 0 <= start <= len(self):
            raise ValueError(f"start must be a batch index from 0 to {len(self)}, not {start}")
        return self._epoch(epoch, start)

    def _epoch(self, epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        images, labels = self.image_set.images, self.image_set.labels
        indices, *places = (part.to(images.device) for part in self.plan(epoch))
        for batch in range(start, len(self)):
            part = part_of_batch(batch, self.batch_size, len(indices), self.share)
            yield self.gather(indices[part], *(place[part] for place in places)), labels[indices[part]]


def part_of_batch(batch: int, batch_size: int, images: int, share: Callable[[int], slice]) -> slice:
    """Where this process finds its images of a batch in the order of the epoch."""
    first = batch * batch_size
    mine = share(min(batch_size, images - first))
    return slice(first + (mine.start or 0), first + mine.stop)


def generator(seed: int, epoch: int, stream: int) -> torch.Generator:
    """The random numbers of one kind in one epoch."""
    # SeedSequence spreads neighbouring seeds and epochs, so that no two streams are correlated.
    state = np.random.SeedSequence(seed, spawn_key=(stream, epoch)).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]))
