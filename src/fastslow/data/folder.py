"""Your own images: one folder a class.

    PATH/train/CLASS/*.png  and  PATH/test/CLASS/*.png      a split of your own (val in place of test will do), or
    PATH/CLASS/*.png                                        a tenth of each class becomes the test set

Which tenth depends on the files' names only (those whose hash is smallest), so it stays the same on every machine and
moves little when images are added. The images of a split are ordered by that hash too: classes come mixed, and the last
n of them are a fair holdout.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

from .errors import DataError
from .images import ImageSet
from .progress import progress

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
MAX_BYTES = 4 << 30  # of decoded images; they stay in memory, and on the training device


def read_folder(path: str | Path, split: str, *, size: int = 32, max_bytes: int = MAX_BYTES) -> ImageSet:
    """The `"train"` or `"test"` images under `path` as RGB, shorter side resized to `size`, centre square cropped."""
    if size < 1:
        raise ValueError(f"size must be at least 1 pixel, not {size}")
    files, labels, classes = list_folder(path, split)
    needed = len(files) * 3 * size * size
    if needed > max_bytes:
        raise DataError(
            f"{len(files)} images of {size}x{size} pixels in {path} need {needed / 2**20:.0f} MiB of memory, "
            f"more than the limit of {max_bytes / 2**20:.0f} MiB: choose a smaller size or fewer images, or "
            "leave them on disk with stream:PATH"
        )
    images = torch.empty(len(files), 3, size, size, dtype=torch.uint8)
    with progress(f"reading {split} images", len(files)) as advance:
        for image, file in zip(images, files, strict=True):
            image.copy_(torch.from_numpy(_decode(file, size)))
            advance(1)
    return ImageSet(images=images, labels=torch.tensor(labels), classes=classes)


def list_folder(path: str | Path, split: str) -> tuple[list[Path], list[int], tuple[str, ...]]:
    """The files of a split in their order, the label of each, and the names of the classes."""
    classes = _split(Path(path).expanduser(), split)
    files = [(file, label) for label, name in enumerate(classes) for file in classes[name]]
    files.sort(key=lambda item: _hash(item[0]))
    return [file for file, _ in files], [label for _, label in files], tuple(classes)


def _split(path: Path, split: str) -> dict[str, list[Path]]:
    """The files of each class in one split."""
    if not path.is_dir():
        raise DataError(f"{path} is no folder: name one with a sub-folder of images for each class")
    inside = (child for child in (path / "train").glob("*") if not child.name.startswith("."))
    if not any(child.is_dir() for child in inside):  # not there, or a class of that name
        return {name: _tenth(path / name, files, split) for name, files in _classes(path).items()}
    train = _classes(path / "train")
    if split == "train":
        return train
    other = next((path / name for name in ("test", "val") if (path / name).is_dir()), None)
    if other is None:
        raise DataError(f"{path} has train but no test: add {path / 'test'}, or move the classes of train into {path}")
    test = _classes(other)
    if odd := sorted(train.keys() ^ test.keys()):
        raise DataError(f"class {odd[0]!r} is in only one of {path / 'train'} and {other}: it must be in both")
    return test


def _classes(path: Path) -> dict[str, list[Path]]:
    """The image files of each sub-folder of `path`, by class name."""
    classes = {}
    for folder in sorted(path.iterdir()):
        if folder.is_dir() and not folder.name.startswith("."):
            classes[folder.name] = [
                file
                for file in folder.iterdir()
                if file.suffix.lower() in SUFFIXES and not file.name.startswith(".") and file.is_file()
            ]
    if not any(classes.values()):
        raise DataError(
            f"no images in the sub-folders of {path}: put them there, a folder a class ({' '.join(SUFFIXES)})"
        )
    if empty := [name for name, files in classes.items() if not files]:
        raise DataError(f"class folder {path / empty[0]} holds no images ({' '.join(SUFFIXES)}): add some or remove it")
    if len(classes) == 1:
        raise DataError(
            f"{path} holds only one class, {next(iter(classes))!r}: there must be two or more to tell apart"
        )
    return classes


def _tenth(folder: Path, files: list[Path], split: str) -> list[Path]:
    if len(files) < 2:
        raise DataError(f"class folder {folder} holds one image, which can't be split into train and test: add another")
    files = sorted(files, key=_hash)
    held = max(1, round(len(files) / 10))
    return files[:held] if split == "test" else files[held:]


def _hash(file: Path) -> str:
    name = f"{file.parent.name}/{file.name}"
    return hashlib.md5(name.encode(errors="surrogateescape"), usedforsecurity=False).hexdigest()


_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def _orientation(image: Image.Image) -> int:
    """As EXIF says it. ImageOps.exif_transpose also rewrites the other tags, and fails where one of them is odd."""
    try:
        return int(image.getexif().get(0x0112, 1))
    except Exception:  # the pixels may still be fine
        return 1


def open_rgb(file: Path) -> Image.Image:
    """One file, decoded, upright, as RGB; what can't be read is named."""
    try:
        with Image.open(file) as image:
            if image.mode.startswith(("I", "F")):  # conversion to RGB would clip instead of scale
                raise DataError(f"{file} has more than 8 bits a channel (mode {image.mode}): convert it to 8 bits")
            image.load()  # a TIFF is turned by this already, and says so no more
            turn = _TURNS.get(_orientation(image))
            if image.mode in ("P", "PA"):
                image = image.convert("RGBA")  # a palette may hold transparency, which RGB can't express
            upright = image if turn is None else image.transpose(turn)
            return upright.convert("RGB")
    except (DataError, MemoryError):
        raise
    except Exception as error:  # whatever decoders raise
        raise DataError(f"{file} is not a readable image ({error}): repair or remove it") from error


def _decode(file: Path, size: int) -> np.ndarray:
    """One file as uint8 (3, size, size)."""
    # `fit` crops to the centred square before it resizes, and so never resizes what would be cut off.
    square = ImageOps.fit(open_rgb(file), (size, size), Image.Resampling.BILINEAR)
    return np.array(square).transpose(2, 0, 1)
