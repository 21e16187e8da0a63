"""`load(name)`: every data set as the same pair of image sets."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..registry import Registry
from .batches import Batches
from .cifar import CIFAR10, CIFAR100, Cifar, read_cifar
from .embedded import read_mini
from .errors import DataError
from .fetch import fetch_archive, is_present
from .folder import read_folder
from .images import HALF, Channels, ImageSet
from .stream import FileSet, StreamedBatches, read_stream

_FOLDER, _STREAM = "folder:", "stream:"
PATHS = (_FOLDER, _STREAM)  # of your own images
_Root = str | os.PathLike[str] | None
AnySet = ImageSet | FileSet
AnyBatches = Batches | StreamedBatches
_Reader = Callable[[str], AnySet]  # of one split, "train" or "test"


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """What a run trains on and what it is measured on.

    `test` is the official test set, or with `holdout > 0` the last that many training images.
    """

    name: str
    train: AnySet
    test: AnySet
    holdout: int = 0


def list_datasets() -> list[str]:
    """The names that `load` knows; PATH stands for a folder of your own."""
    return [*_DATASETS, *(f"{kind}PATH" for kind in PATHS)]


def is_available(name: str, root: _Root = None) -> bool:
    """Whether `load(name)` needs no download."""
    archives = {"cifar10": CIFAR10.archive, "cifar100": CIFAR100.archive}
    return name not in archives or is_present(archives[name], root)


def load(
    name: str,
    root: _Root = None,
    holdout: int = 0,
    download: bool = True,
    *,
    size: int | None = None,
    url: str | None = None,
) -> Dataset:
    """Load `cifar10`, `cifar100`, `mini`, `folder:PATH` or, with the images left on disk, `stream:PATH`.

    CIFAR is looked for in `root` (default: FASTSLOW_DATA, else ~/.cache/fastslow) and downloaded there if missing, from
    the mirror `url` if given. `holdout=n` sets the last n training images aside for evaluation and does not even read
    the test set: the way to choose hyper-parameters. `size` is the side of your own images in pixels
    (default: 32 in a folder, 224 in a stream).

    Examples:
        >>> mini = load("mini", holdout=400)
        >>> len(mini.train), len(mini.test), mini.train.shape
        (3600, 400, (3, 32, 32))
    """
    read = _reader(name, root, download, size, url)
    train = read("train")
    if not holdout:
        return Dataset(name=name, train=train, test=read("test"))
    if not 0 < holdout < len(train):
        raise ValueError(
            f"holdout must be from 0 to {len(train) - 1}, not {holdout}: {name} has {len(train)} images to train"
        )
    if name == "mini":
        train = train.subset(_in_turns(train.labels))
    kept = len(train) - holdout
    return Dataset(
        name=name, train=train.subset(slice(None, kept)), test=train.subset(slice(kept, None)), holdout=holdout
    )


@dataclass(frozen=True)
class Description:
    """What a network must know of the images that it was trained on."""

    shape: tuple[int, ...]
    classes: tuple[str, ...]
    mean: Channels
    std: Channels


def describe(name: str, *, size: int | None = None) -> Description:
    """The same as the sets that `load` returns say of themselves; no image is read, and CIFAR needn't be there."""
    cifar = {"cifar10": CIFAR10, "cifar100": CIFAR100, "mini": CIFAR10}.get(name)  # the mini set is a part of CIFAR-10
    if cifar is not None and size is None:
        return Description((3, 32, 32), cifar.classes, cifar.mean, cifar.std)
    if name.startswith(_FOLDER):  # listed as a stream is, which has other numbers for mean and deviation
        listed = describe(f"{_STREAM}{name.removeprefix(_FOLDER)}", size=32 if size is None else size)
        return replace(listed, mean=HALF, std=HALF)
    images = load(name, size=size).test
    return Description(images.shape, images.classes, images.mean, images.std)


def _in_turns(labels: Tensor) -> Tensor:
    """The first image of every class, then the second ones: in its own order the mini set ends with a single class."""
    counts = torch.nn.functional.one_hot(labels).cumsum(0)
    return counts.gather(1, labels[:, None])[:, 0].argsort(stable=True)


def batches_of(image_set: AnySet, batch_size: int, *, workers: int | None = None, **options: Any) -> AnyBatches:
    """:class:`Batches` or :class:`StreamedBatches`, whichever the set needs; `workers` decode the latter's files."""
    if isinstance(image_set, FileSet):
        return StreamedBatches(image_set, batch_size, workers=workers, **options)
    return Batches(image_set, batch_size, **options)


def _reader(name: str, root: _Root, download: bool, size: int | None, url: str | None) -> _Reader:
    for kind, read, usual in ((_FOLDER, read_folder, 32), (_STREAM, read_stream, 224)):
        if name.startswith(kind):
            path = name.removeprefix(kind)
            if not path:
                raise DataError(f"{name!r} names no folder: write {kind}PATH")
            return partial(read, path, size=usual if size is None else size)
    reader = _DATASETS[name]
    if size is not None:
        raise ValueError(
            f"size={size} applies to folder:PATH and stream:PATH only, images of {name} have 32x32 pixels: leave it out"
        )
    return reader(root, download, url)


def _cifar(cifar: Cifar, root: _Root, download: bool, url: str | None) -> _Reader:
    return partial(read_cifar, cifar, fetch_archive(cifar.archive, root, url=url, download=download))


_DATASETS: Registry[Callable[[_Root, bool, str | None], _Reader]] = Registry("data set")
_DATASETS.add("cifar10", partial(_cifar, CIFAR10))
_DATASETS.add("cifar100", partial(_cifar, CIFAR100))
_DATASETS.add("mini", lambda root, download, url: read_mini)
