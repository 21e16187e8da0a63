"""Checkpoints: one safetensors file each, its structure as JSON in the header, no pickle anywhere.

A state is any nesting of dicts, lists, tuples, tensors and plain values. Tensors go into the file's payload; the rest,
with the places of the tensors, becomes the JSON. Files appear under their name only when they are complete on disk.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save as save_bytes
from torch import Tensor

from ..files import make_folder, write_atomically

log = logging.getLogger("fastslow")

VERSION = 1
_PREFIX, _SUFFIX = "step-", ".safetensors"


class CheckpointError(ValueError):
    """A checkpoint that can't be used, and why."""


def flatten(state: Any) -> tuple[dict[str, Tensor], Any]:
    """Tensors by running number, and the rest as JSON-ready structure."""
    tensors: dict[str, Tensor] = {}
    return tensors, _encode(state, tensors)


def _encode(node: Any, tensors: dict[str, Tensor]) -> Any:
    # Not a function inside of `flatten`: one that calls itself is a reference cycle, and would keep the tensors of each
    # checkpoint in memory until Python's collector comes by.
    if isinstance(node, Tensor):
        key = f"t{len(tensors)}"
        # Copies: safetensors refuses tensors that share memory, which parameters and their aliases may.
        tensors[key] = node.detach().cpu().contiguous().clone()
        return {"t": key}
    if isinstance(node, dict):  # keys may be whole numbers, as in an optimizer's state
        for key in node:
            if not isinstance(key, str | int):
                raise TypeError(f"a checkpoint's keys are strings and whole numbers, not {key!r}")
        return {"d": [[key, _encode(value, tensors)] for key, value in node.items()]}
    if isinstance(node, list):
        return {"l": [_encode(value, tensors) for value in node]}
    if isinstance(node, tuple):
        return {"u": [_encode(value, tensors) for value in node]}
    if node is None or isinstance(node, bool | int | float | str):
        return {"v": node}
    raise TypeError(f"a checkpoint can't hold a {type(node).__name__}")


def unflatten(tensors: dict[str, Tensor], tree: Any) -> Any:
    """The inverse of :func:`flatten`."""
    ((kind, content),) = tree.items()
    if kind == "t":
        return tensors[content]
    if kind == "d":
        return {key: unflatten(tensors, value) for key, value in content}
    if kind == "l":
        return [unflatten(tensors, value) for value in content]
    if kind == "u":
        return tuple(unflatten(tensors, value) for value in content)
    if kind == "v":
        return content
    raise CheckpointError(f"unknown node {kind!r}")


def _digest(tree_text: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(tree_text.encode())
    for key in sorted(tensors):
        digest.update(f"{key}{tensors[key].dtype}{tuple(tensors[key].shape)}".encode())
        digest.update(tensors[key].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def save(path: Path, state: Any) -> None:
    """Write one checkpoint."""
    tensors, tree = flatten(state)
    text = json.dumps(tree, separators=(",", ":"))
    header = {"version": str(VERSION), "tree": text, "sha256": _digest(text, tensors)}
    write_atomically(path, save_bytes(tensors, header))


def load(path: Path) -> Any:
    """Read one checkpoint; a damaged one raises :class:`CheckpointError`."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
        if header.get("version") != str(VERSION):
            raise CheckpointError(f"its format is version {header.get('version')!r}, this library reads {VERSION}")
        if _digest(header["tree"], tensors) != header.get("sha256"):
            raise CheckpointError("its checksum is wrong")
        return unflatten(tensors, json.loads(header["tree"]))
    except (
        safetensors.SafetensorError,
        OSError,
        ValueError,  # CheckpointError and JSON errors among them; the rest is what a strange structure can cause
        TypeError,
        AttributeError,
        LookupError,
        RuntimeError,
    ) as error:
        raise CheckpointError(f"{path} can't be used: {error}") from error


class Checkpoints:
    """The checkpoints of a run folder; the newest ``keep`` are kept."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder = folder
        self.keep = keep

    def paths(self) -> list[Path]:
        """Oldest first."""
        return sorted(self.folder.glob(f"{_PREFIX}*{_SUFFIX}"))

    def save(self, step: int, state: Any) -> Path:
        """Write the checkpoint of a step, then drop the oldest; if writing fails, all that was there stays."""
        path = self.folder / f"{_PREFIX}{step:09d}{_SUFFIX}"
        try:
            make_folder(self.folder)
            save(path, state)
        except OSError as error:
            older = self.paths()
            left = f"the newest one is {older[-1]}" if older else "there is none yet"
            raise CheckpointError(
                f"the checkpoint {path} can't be written ({error.strerror}); {left}; "
                "make room or the folder writable, then resume the run"
            ) from error
        # A checkpoint of a later step is one that couldn't be read when the run was resumed: it counts for nothing.
        for old in [other for other in self.paths() if other <= path][: -self.keep]:
            old.unlink()
        return path

    def sweep(self) -> None:
        """Remove what a killed process had begun to write."""
        for path in self.folder.glob(f".{_PREFIX}*.tmp"):
            path.unlink()

    def load_newest(self) -> tuple[Path, Any]:
        """The newest readable checkpoint; a damaged one is passed over with a warning."""
        for path in reversed(self.paths()):
            try:
                return path, load(path)
            except CheckpointError as error:
                log.warning("%s; trying the one before", error)
        raise CheckpointError(f"{self.folder} holds no usable checkpoint; start the run again in another folder")
