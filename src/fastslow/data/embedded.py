"""The mini set inside the package: 4,000 + 1,000 images of CIFAR-10, for the demo and the tests, without a network.

Of each class it holds the first 400 training and the first 100 test images in official order (tools/make_mini.py).
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable

import numpy as np
import torch
from PIL import Image

from .cifar import CIFAR10
from .errors import DataError
from .images import ImageSet

_COLUMNS, _ROWS = 40, 25  # images in a mosaic
_TRAIN = 4000
# MD5 of the decoded pixels (N, 3, 32, 32) followed by the labels: a decoder that is not exact must not go unnoticed.
_MOSAICS = {"train": ["train0.webp", "train1.webp", "train2.webp", "train3.webp"], "test": ["test0.webp"]}
_MD5 = {"train": "888ec699e2849bbb768085bf813b285a", "test": "1551c6f66a074d47dd56c940c2fc3e05"}


def read_mini(split: str) -> ImageSet:
    """The `"train"` or `"test"` part of the mini set."""
    folder = files("fastslow.data") / "mini"
    images = np.concatenate([_decode(folder / name) for name in _MOSAICS[split]])
    labels = np.frombuffer((folder / "labels.bin").read_bytes(), np.uint8)
    labels = labels[:_TRAIN] if split == "train" else labels[_TRAIN:]
    md5 = hashlib.md5(images.tobytes() + labels.tobytes(), usedforsecurity=False).hexdigest()
    if md5 != _MD5[split]:
        raise DataError(
            f"the embedded mini set in {folder} decodes to MD5 {md5}, not {_MD5[split]}: reinstall fastslow"
        )
    return ImageSet(
        images=torch.from_numpy(images),
        labels=torch.from_numpy(labels.astype(np.int64)),
        classes=CIFAR10.classes,
        mean=CIFAR10.mean,
        std=CIFAR10.std,
    )


def _decode(file: Traversable) -> np.ndarray:
    with file.open("rb") as stream, Image.open(stream) as image:
        mosaic = np.asarray(image.convert("RGB"))
    return mosaic.reshape(_ROWS, 32, _COLUMNS, 32, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, 32, 32)
