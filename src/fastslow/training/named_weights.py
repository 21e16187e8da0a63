"""Float weights by name: ``name:resnet44_cifar10`` means the same file wherever its folder lies.

A run's key is a hash of its config, so a path in it would make equal runs on two machines different ones. A name is
looked up in the folders of the environment variable ``FASTSLOW_WEIGHTS`` and then among the weights of the package.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from ..files import PRETRAINED

PREFIX = "name:"
VARIABLE = "FASTSLOW_WEIGHTS"  # folders, separated as in PATH


def search_path() -> list[Path]:
    """Where names are looked up, first the folders that the user gave."""
    given = [Path(entry) for entry in os.environ.get(VARIABLE, "").split(os.pathsep) if entry]
    return [*given, PRETRAINED]


def find_weights(weights: str) -> Path:
    """The file of ``name:STEM``."""
    name = weights.removeprefix(PREFIX)
    folders = search_path()
    for folder in folders:
        path = folder / f"{name}.safetensors"
        if path.is_file():
            return path
    raise ValueError(
        f"no float weights {name}.safetensors in {' or '.join(map(str, folders))}; name their folder with "
        f"--weights-dir or {VARIABLE}, or train them with `fastslow pretrain`"
    )


def file_digest(path: Path) -> str:
    """SHA-256 of a file: which weights a recorded run really started from."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
