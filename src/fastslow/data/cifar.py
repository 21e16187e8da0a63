"""CIFAR-10 and CIFAR-100 from their official binary files: no pickle, nothing to trust but a checksum.

A record is its label (CIFAR-100: a coarse byte, then the fine one) followed by 3 x 32 x 32 pixels, channel by channel.
https://www.cs.toronto.edu/~kriz/cifar.html
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from .errors import DataError
from .fetch import Archive, File
from .images import HALF, Channels, ImageSet

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True, kw_only=True)
class Cifar:
    """What tells one CIFAR from the other.

    The first `train_files` files of the archive are the training set; the last of the `label_bytes` bytes before the
    pixels is the label.
    """

    archive: Archive
    train_files: int
    label_bytes: int
    classes: tuple[str, ...]
    mean: Channels
    std: Channels


CIFAR10 = Cifar(
    archive=Archive(
        url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        md5="c32a1d4ab5d03f1284b67883e8d87530",
        folder="cifar-10-batches-bin",
        files=(
            File("data_batch_1.bin", 30_730_000, "5dd7e06a14cb22eb9f671a540d1b7c25"),
            File("data_batch_2.bin", 30_730_000, "5ea93a67294ea407fff1d09f752e9692"),
            File("data_batch_3.bin", 30_730_000, "942cd6a4bcdd0dd3c604fbe906cb4421"),
            File("data_batch_4.bin", 30_730_000, "ae636b3ba5c66a11e91e8cb52e771fcb"),
            File("data_batch_5.bin", 30_730_000, "53f37980c15c3d472c316c40844f3f0d"),
            File("test_batch.bin", 30_730_000, "803d5f7f4d78ea53de84dbe85f74fb6d"),
        ),
    ),
    train_files=5,
    label_bytes=1,
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2023, 0.1994, 0.2010),
)

_FINE = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can "
    "castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin "
    "elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard "
    "lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear "
    "pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark "
    "shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone "
    "television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)

CIFAR100 = Cifar(
    archive=Archive(
        url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        md5="03b5dce01913d631647c71ecec9e9cb8",
        folder="cifar-100-binary",
        files=(
            File("train.bin", 153_700_000, "6172c7755cfe09b2fe270c85cebc1b15"),
            File("test.bin", 30_740_000, "4499cfba6c016c1be1438163640a0898"),
        ),
    ),
    train_files=1,
    label_bytes=2,
    classes=tuple(_FINE.split()),
    mean=HALF,  # as the published float networks were trained
    std=HALF,
)


def read_cifar(cifar: Cifar, folder: Path, split: str) -> ImageSet:
    """The `"train"` or `"test"` images of the files in `folder`, each checked against its size and MD5."""
    files, n = cifar.archive.files, cifar.train_files
    records = [
        _read(folder / f.name, f, cifar.label_bytes + _PIXELS) for f in (files[:n] if split == "train" else files[n:])
    ]
    labels = np.concatenate([part[:, cifar.label_bytes - 1] for part in records])
    pixels = np.concatenate([part[:, cifar.label_bytes :] for part in records])
    return ImageSet(
        images=torch.from_numpy(pixels.reshape(-1, 3, 32, 32)),
        labels=torch.from_numpy(labels.astype(np.int64)),
        classes=cifar.classes,
        mean=cifar.mean,
        std=cifar.std,
    )


def _read(path: Path, file: File, record: int) -> np.ndarray:
    remedy = "delete it and it will be downloaded again"
    found = path.stat().st_size
    if found != file.size:
        raise DataError(f"{path} has {found} bytes, not {file.size}: {remedy}")
    data = np.fromfile(path, np.uint8)
    md5 = hashlib.md5(data.data, usedforsecurity=False).hexdigest()
    if md5 != file.md5:
        raise DataError(f"{path} has MD5 {md5}, not {file.md5}: {remedy}")
    return data.reshape(-1, record)
