"""Packed networks that come with the package."""

from __future__ import annotations

from pathlib import Path

from ..files import PRETRAINED


def shipped(name: str = "resnet20_cifar10") -> Path:
    """The file of a packed network that comes with the package, trained on the data set in its name.

    Examples:
        >>> from fastslow.deploy import load_packed, shipped
        >>> engine = load_packed(shipped())
        >>> engine.input_shape, engine.info.classes[3]
        ((3, 32, 32), 'cat')
    """
    folder = PRETRAINED / "packed"
    there = sorted(path.stem for path in folder.glob("*.safetensors"))
    if name not in there:
        raise ValueError(f"no packed network {name!r} is shipped; there is {', '.join(there) or 'none'}")
    return folder / f"{name}.safetensors"
