"""`load(name)`: every data set as the same pair of image sets."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..registry import Registry
from .cifar import CIFAR10, CIFAR100, Cifar, read_cifar
from .embedded import read_mini
from .errors import DataError
from .fetch import fetch_archive, is_present
from .folder import read_folder
from .images import ImageSet

_FOLDER = "folder:"
_Root = str | os.PathLike[str] | None
_Reader = Callable[[str], ImageSet]  # of one split, "train" or "test"


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """What a run trains on and what it is measured on.

    `test` is the official test set, or with `holdout > 0` the last that many training images.
    """

    name: str
    train: ImageSet
    test: ImageSet
    holdout: int = 0


def list_datasets() -> list[str]:
    """The names that `load` knows; PATH stands for a folder of your own."""
    return [*_DATASETS, f"{_FOLDER}PATH"]


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
    """Load `cifar10`, `cifar100`, `mini` or `folder:PATH`.

    CIFAR is looked for in `root` (default: FASTSLOW_DATA, else ~/.cache/fastslow) and downloaded there if missing, from
    the mirror `url` if given. `holdout=n` sets the last n training images aside for evaluation and does not even read
    the test set: the way to choose hyper-parameters. `size` is the side of a folder's images in pixels (default 32).
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


def _in_turns(labels: Tensor) -> Tensor:
    """The first image of every class, then the second ones: in its own order the mini set ends with a single class."""
    counts = torch.nn.functional.one_hot(labels).cumsum(0)
    return counts.gather(1, labels[:, None])[:, 0].argsort(stable=True)


def _reader(name: str, root: _Root, download: bool, size: int | None, url: str | None) -> _Reader:
    if name.startswith(_FOLDER):
        path = name.removeprefix(_FOLDER)
        if not path:
            raise DataError(f"{name!r} names no folder: write folder:PATH")
        return partial(read_folder, path, size=32 if size is None else size)
    reader = _DATASETS[name]
    if size is not None:
        raise ValueError(f"size={size} applies to folder:PATH only, images of {name} have 32x32 pixels: leave it out")
    return reader(root, download, url)


def _cifar(cifar: Cifar, root: _Root, download: bool, url: str | None) -> _Reader:
    return partial(read_cifar, cifar, fetch_archive(cifar.archive, root, url=url, download=download))


_DATASETS: Registry[Callable[[_Root, bool, str | None], _Reader]] = Registry("data set")
_DATASETS.add("cifar10", partial(_cifar, CIFAR10))
_DATASETS.add("cifar100", partial(_cifar, CIFAR100))
_DATASETS.add("mini", lambda root, download, url: read_mini)
