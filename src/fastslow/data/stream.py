"""Images that stay on disk: worker processes decode each batch while the one before is trained on.

For data that fits neither the training device nor memory. As with :class:`~fastslow.data.Batches`, what an epoch shows
is a pure function of `(seed, epoch)`: its random numbers are drawn at its start, and each image takes its own with it
to whichever worker decodes it. Number of workers, processes and where a run was interrupted change nothing.
"""

from __future__ import annotations

import atexit
import math
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .batches import AUGMENT, HOLES, ORDER, blank, generator, hole_centres, normalize, part_of_batch
from .errors import DataError
from .folder import list_folder, open_rgb
from .images import Channels
from .progress import progress

IMAGENET_MEAN: Channels = (0.485, 0.456, 0.406)
IMAGENET_STD: Channels = (0.229, 0.224, 0.225)
_CENTRE = 224 / 256  # of the shorter side, in evaluation: the usual resize to 256 and crop of 224
_AREA = (0.08, 1.0)  # of a random crop, as a share of the image
_RATIO = 4 / 3  # the most that a random crop is wider than high, or higher than wide


@dataclass(frozen=True, kw_only=True, eq=False)
class FileSet:
    """Paths of images, labels as int64 (N,), and what an :class:`~fastslow.data.ImageSet` has beside them."""

    files: tuple[str, ...]
    labels: Tensor
    classes: tuple[str, ...]
    size: int = 224  # pixels a side, as the network sees them
    mean: Channels = IMAGENET_MEAN
    std: Channels = IMAGENET_STD

    def __len__(self) -> int:
        return len(self.files)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one image as the network sees it: channels, height, width."""
        return 3, self.size, self.size

    def subset(self, indices: Tensor | slice) -> FileSet:
        """The images at `indices`, in that order."""
        chosen = range(len(self))[indices] if isinstance(indices, slice) else indices.tolist()
        return replace(self, files=tuple(self.files[i] for i in chosen), labels=self.labels[indices])


def read_stream(path: str | Path, split: str, *, size: int = 224) -> FileSet:
    """The `"train"` or `"test"` images under `path`, laid out as for `read_folder`; none is read yet."""
    if size < 1:
        raise ValueError(f"size must be at least 1 pixel, not {size}")
    files, labels, classes = list_folder(path, split)
    return FileSet(files=tuple(map(str, files)), labels=torch.tensor(labels), classes=classes, size=size)


class Item(NamedTuple):
    """One image to decode: its crop as four numbers in [0, 1) (area, ratio, place down and right), or the centre."""

    file: str
    crop: tuple[float, float, float, float] | None
    flip: bool


def crop_box(
    width: int, height: int, crop: tuple[float, float, float, float] | None
) -> tuple[float, float, float, float]:
    """Left, upper, right and lower edge of the part of an image that is shown.

    A random crop has an area of 8 to 100 % of the image and sides of 3:4 to 4:3 (log-uniform); one that is longer than
    the image is cut to it. Without random numbers: the centre square of 7/8 of the shorter side.
    """
    if crop is None:
        side = min(width, height) * _CENTRE
        return (width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2
    area, ratio, down, right = crop
    pixels = width * height * (_AREA[0] + (_AREA[1] - _AREA[0]) * area)
    ratio = math.exp(math.log(_RATIO) * (2 * ratio - 1))
    w, h = min(math.sqrt(pixels * ratio), width), min(math.sqrt(pixels / ratio), height)
    left, upper = right * (width - w), down * (height - h)
    return left, upper, min(left + w, width), min(upper + h, height)  # not beyond the edge by a rounding


def decode(item: Item, size: int) -> np.ndarray:
    """The part of the image that is shown, as uint8 (3, size, size)."""
    image = open_rgb(Path(item.file))
    shown = image.resize((size, size), Image.Resampling.BILINEAR, box=crop_box(*image.size, item.crop))
    if item.flip:
        shown = shown.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.array(shown).transpose(2, 0, 1)


class _Decoder(Dataset[Any]):
    """What a worker does with a batch of items. It holds nothing: paths and numbers come with the request."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __getitems__(self, items: list[Item]) -> Tensor | str:
        try:
            images = np.empty((len(items), 3, self.size, self.size), np.uint8)
            for image, item in zip(images, items, strict=True):
                image[:] = decode(item, self.size)
            return torch.from_numpy(images)
        except DataError as error:
            return str(error)  # an exception would arrive with the worker's whole traceback in its message


def _keep(batch: Any) -> Any:
    return batch


def _ignore_signals(_: int) -> None:
    """A Ctrl-C reaches every process of the terminal: the training process stops the workers when it has saved."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    trainer = multiprocessing.parent_process()
    if trainer is not None:  # torch's own watch looks at the fork server, which outlives a killed trainer
        threading.Thread(target=_end_with, args=(trainer.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def default_workers(processes: int = 1) -> int:
    """Workers for each of so many processes on this machine: all cores are used, eight are enough for one process."""
    return max(1, min(8, (os.cpu_count() or 1) // processes))


class StreamedBatches:
    """Batches `(x, y)` of a :class:`FileSet`, with the interface of :class:`~fastslow.data.Batches`.

    With `augment` an image is a random crop, resized, and mirrored in half of the cases; without, its centre. With
    `cutout` a square of so many pixels a side is blanked, anywhere.
    `workers=0` decodes in this process.
    """

    def __init__(
        self,
        image_set: FileSet,
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
        workers: int | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        self.image_set = image_set
        self.batch_size = batch_size
        self.seed = seed
        self.augment = augment
        self.cutout = cutout
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.share = share
        self.workers = default_workers() if workers is None else workers
        self.device = torch.device(device)
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self._mean = torch.tensor(image_set.mean, device=device)
        self._std = torch.tensor(image_set.std, device=device)

    def __len__(self) -> int:
        """Batches in an epoch."""
        full, rest = divmod(len(self.image_set), self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def plan(self, epoch: int) -> tuple[Tensor, Tensor | None, Tensor]:
        """Everything random about an epoch, in the order shown: indices (N,), crops (N, 4) or none, flips (N,)."""
        n = len(self.image_set)
        indices, crops, flips = torch.arange(n), None, torch.zeros(n, dtype=torch.bool)
        if self.shuffle:
            indices = torch.randperm(n, generator=generator(self.seed, epoch, ORDER))
        if self.augment:
            numbers = generator(self.seed, epoch, AUGMENT)
            crops = torch.rand(n, 4, generator=numbers, dtype=torch.float64)
            flips = torch.randint(0, 2, (n,), generator=numbers) == 1
        return indices, crops, flips

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch from batch `start` on; the same ones that a run from its beginning would see."""
        if not 0 <= start <= len(self):
            raise ValueError(f"start must be a batch index from 0 to {len(self)}, not {start}")
        return self._epoch(epoch, start)

    def _epoch(self, epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        indices, crops, flips = self.plan(epoch)
        n = len(indices)
        parts = [part_of_batch(i, self.batch_size, n, self.share) for i in range(start, len(self))]
        requests = _Requests(self.image_set.files, indices, crops, flips, parts)
        decoded = _decode_all(requests, self.image_set.size, self.workers, pin=self.device.type == "cuda")
        centres = (
            hole_centres(n, 2 * [self.image_set.size], generator(self.seed, epoch, HOLES)) if self.cutout else None
        )
        for part, images in zip(parts, decoded, strict=True):
            x = normalize(images.to(self.device, non_blocking=True), self._mean, self._std)
            if centres is not None:
                x = blank(x, centres[part].to(self.device, non_blocking=True), self.cutout)
            y = self.image_set.labels[indices[part]].to(self.device, non_blocking=True)
            yield x.contiguous(memory_format=self.memory_format), y


@dataclass(frozen=True)
class _Requests:
    """The items of each batch, made when it is asked for: an epoch of a million images is not written out."""

    files: tuple[str, ...]
    indices: Tensor
    crops: Tensor | None
    flips: Tensor
    parts: list[slice]

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[list[Item]]:
        for part in self.parts:
            flips = self.flips[part].tolist()
            crops = [None] * len(flips) if self.crops is None else [tuple(c) for c in self.crops[part].tolist()]
            indices = self.indices[part].tolist()
            yield [Item(self.files[i], crop, flip) for i, crop, flip in zip(indices, crops, flips, strict=True)]


def _decode_all(requests: Any, size: int, workers: int, pin: bool = False) -> Iterator[Tensor]:
    """The images of each request, in order."""
    decoded = _decoded(requests, size, workers, pin)
    _decoding.add(decoded)
    return decoded


_decoding: weakref.WeakSet[Generator[Tensor]] = weakref.WeakSet()


@atexit.register  # before Python waits for its processes, since this module was imported after those of torch
def _stop_workers() -> None:
    """Workers ignore signals: those of an epoch that nobody went through to its end would be waited for for ever."""
    for decoded in list(_decoding):
        decoded.close()


def _decoded(requests: Any, size: int, workers: int, pin: bool) -> Generator[Tensor]:
    # A loader draws a seed for its workers, which don't use it: not from the generator that dropout draws from.
    fields: dict[str, Any] = {"generator": torch.Generator()}
    if workers:
        # Not a fork of this process, whose threads and locks (of torch, of a process group) would be copied mid-air.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        fields |= {"multiprocessing_context": context, "worker_init_fn": _ignore_signals, "num_workers": workers}
    loader = DataLoader(_Decoder(size), batch_sampler=requests, collate_fn=_keep, pin_memory=pin, **fields)
    batches = iter(loader)
    try:
        while True:
            try:
                found = next(batches)
            except StopIteration:
                return
            except (RuntimeError, EOFError, ConnectionError, FileNotFoundError) as error:
                # The latter ones: batches that a worker had made can't be fetched any more when it is gone.
                if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
                    raise
                raise DataError(
                    "a process that decodes images was killed, most likely for want of memory: use fewer --workers"
                ) from error.with_traceback(None)
            if isinstance(found, str):
                raise DataError(found)
            yield cast(Tensor, found)
    finally:
        _end(batches)  # also if somebody keeps the exception and, with it, this frame
        del batches


def _end(batches: Any) -> None:
    """Those of the workers that don't end when they are asked to would be waited for for ever: they ignore signals."""
    if hasattr(batches, "_shutdown_workers"):
        batches._shutdown_workers()
        for worker in batches._workers:
            if worker.is_alive():
                worker.kill()


def check_files(image_set: FileSet, workers: int | None = None) -> list[str]:
    """What is wrong with files that can't be decoded, one sentence each. Reads every image once."""
    requests = [[Item(file, None, False)] for file in image_set.files]
    wrong: list[str] = []
    while len(requests) > 0:
        done = 0
        try:
            with progress("checking images", len(requests)) as advance:
                for _ in _decode_all(requests, image_set.size, default_workers() if workers is None else workers):
                    done += 1
                    advance(1)
        except DataError as error:
            wrong.append(str(error))
            requests = requests[done + 1 :]
        else:
            break
    return wrong
