"""Other images than a network was trained on, made to look to it as those did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from ..data import Description
from ..data.dataset import AnySet
from ..training.run import RunFolder
from .load import images_of
from .packed import PackedNetwork


def seen_by(network: nn.Module, what: Path) -> Description | None:
    """The images of its training, as a packed file or a run says; None: a file of weights says nothing."""
    if isinstance(network, PackedNetwork):
        info = network.engine.info
        mean, std = (tuple(values) if len(values) == 3 else () for values in (info.mean, info.std))
        return Description(network.engine.input_shape, info.classes, mean, std)  # pyright: ignore[reportArgumentType]
    if what.is_dir():
        return images_of(RunFolder.open(what))
    return None


def as_seen(images: AnySet, seen: Description) -> AnySet:
    """Normalised as in training, and labelled by the network's order of the classes."""
    if seen.mean:
        images = replace(images, mean=seen.mean, std=seen.std)
    if not seen.classes or images.classes == seen.classes:
        return images
    strange = sorted(set(images.classes) - set(seen.classes))
    if strange:
        raise ValueError(
            f"the data has a class {strange[0]!r}, which the network doesn't know; it knows {', '.join(seen.classes)}"
        )
    place = torch.tensor([seen.classes.index(name) for name in images.classes])
    return replace(images, labels=place[images.labels], classes=seen.classes)
