"""``images.json`` of a run: the images it was begun with.

A folder of images changes and moves. What a network has learned are labels, numbers in the order of the classes, so
their names have to stay with it; and a run that goes on must find the images that it was begun with.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from ..data import AnySet, Description, FileSet


def as_json(train: AnySet, test: AnySet) -> dict[str, Any]:
    """What the file holds."""
    colours = {"mean": list(map(float, train.mean)), "std": list(map(float, train.std))}
    counts = {"train_images": len(train), "test_images": len(test)}
    digests = {"train_sha256": _digest(train), "test_sha256": _digest(test)}
    return {"shape": list(train.shape), "classes": list(train.classes), **colours, **counts, **digests}


def _digest(images: AnySet) -> str:
    """Of labels and pixels in their order; of files that stay on disk their names stand for the pixels."""
    digest = hashlib.sha256(images.labels.cpu().numpy().tobytes())
    if isinstance(images, FileSet):
        names = "\n".join("/".join(Path(file).parts[-2:]) for file in images.files)
        digest.update(names.encode(errors="surrogateescape"))
    else:
        digest.update(images.images.cpu().contiguous().numpy().data)
    return digest.hexdigest()


def description(held: dict[str, Any]) -> Description:
    """The inverse, without the numbers of images; ValueError where it doesn't hold what it should."""
    shape, classes, mean, std = (held.get(name) for name in ("shape", "classes", "mean", "std"))
    if not _is_list(shape, int, 3) or not _is_list(mean, float, 3) or not _is_list(std, float, 3):
        raise ValueError("shape, mean and std are lists of three numbers")
    if not _is_list(classes, str):
        raise ValueError("classes is a list of names")
    return Description(tuple(shape), tuple(classes), tuple(mean), tuple(std))  # pyright: ignore[reportArgumentType]


def _is_list(values: Any, kind: type, length: int | None = None) -> bool:
    fits = isinstance(values, list) and len(values) == (length or len(values))
    return fits and all(type(value) is kind for value in values)


def difference(begun: dict[str, Any], now: dict[str, Any]) -> str | None:
    """What has changed since a run was begun, for a sentence; None: nothing."""
    were, are = (tuple(held.get("classes", ())) for held in (begun, now))
    if were != are:
        gone, new = sorted(set(were) - set(are)), sorted(set(are) - set(were))
        parts = [f"{_some(names)} {verb}" for names, verb in ((gone, "gone"), (new, "new")) if names]
        return f"of the classes {' and '.join(parts)}" if parts else "the classes had another order"
    name = next((name for name in now if begun.get(name, now[name]) != now[name]), None)
    if name is None:
        return None
    if name.endswith("sha256"):
        part = "training" if name.startswith("train") else "test"
        return f"a {part} image, its label or its name is another"
    return f"{name.replace('_', ' ')} {begun[name]} then, {now[name]} now"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(map(repr, names[:3]))}{more} {'is' if len(names) == 1 else 'are'}"
