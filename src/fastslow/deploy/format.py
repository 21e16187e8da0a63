"""Packed files: a safetensors container, read without trusting a byte of it. `docs/format.md` is the specification.

Reading is done here and not by the safetensors library, because it must refuse what it doesn't understand with one
clear sentence and never allocate more than the file's own size. Writing is done here because the same model must give
the same bytes; the library writes its metadata in random order. Any safetensors reader opens the files.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import FormatError
from .graph import Graph
from .header import MAX_INTEGER, Info, decode, encode, parse_json

if TYPE_CHECKING:  # importing pathlib takes as long as reading a file
    from pathlib import Path

_DTYPES = {"U8": np.dtype(np.uint8), "F32": np.dtype("<f4"), "F16": np.dtype("<f2")}
_CODES = {dtype.name: code for code, dtype in _DTYPES.items()}
MAX_FILE = 2**31


@dataclass(frozen=True, eq=False)
class PackedModel:
    """The content of a packed file."""

    graph: Graph
    info: Info
    header_bytes: int
    payload_bytes: int

    @property
    def file_bytes(self) -> int:
        return self.header_bytes + self.payload_bytes


def stored_tensors(graph: Graph, dtype: str) -> dict[str, NDArray[Any]]:
    """Every tensor of the file under its name: bits as bytes, everything else in `dtype`."""
    tensors = {}
    for node in graph.nodes:
        for role, tensor in node.tensors.items():
            with np.errstate(over="ignore"):
                stored = tensor if role == "bits" else tensor.astype(dtype)
            if role != "bits" and not np.isfinite(stored).all():
                if not np.isfinite(tensor.astype("float32")).all():
                    raise ValueError(f"{node.name}.{role} isn't finite: the network is broken, train it anew")
                raise ValueError(f"{node.name}.{role} doesn't fit into {dtype}; use dtype='float32'")
            if role == "scale" and ((stored == 0) & (tensor != 0)).any():
                raise ValueError(f"{node.name}.scale is too small for {dtype}, it would be 0; use dtype='float32'")
            tensors[f"{node.name}.{role}"] = np.ascontiguousarray(stored)
    return tensors


def to_bytes(graph: Graph, info: Info) -> bytes:
    """A whole packed file."""
    text = encode(graph, info)
    tensors = stored_tensors(graph, info.dtype)
    # Wide types first, so that every tensor is aligned to its own size.
    names = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    header: dict[str, Any] = {"__metadata__": {"fastslow": text, "sha256": digest(text, tensors)}}
    position = 0
    for name in names:
        tensor = tensors[name]
        offsets = [position, position := position + tensor.nbytes]
        header[name] = {"dtype": _CODES[tensor.dtype.name], "shape": list(tensor.shape), "data_offsets": offsets}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head + b"".join(tensors[name].tobytes() for name in names)


def read(path: str | Path) -> PackedModel:
    """Load and check a packed file."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f"no packed model at {path}")
    if os.path.getsize(path) > MAX_FILE:
        raise FormatError(f"{path}: larger than {MAX_FILE} bytes")
    with open(path, "rb") as file:
        data = file.read()
    try:
        return from_bytes(data)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None


def from_bytes(data: bytes) -> PackedModel:
    """Check and decode the content of a packed file."""
    header_bytes, entries, metadata = _container(data)
    text = metadata.get("fastslow")
    if not isinstance(text, str):
        raise FormatError("a safetensors file, but not a packed fastslow model: make one with fs.pack")
    tensors = {name: _tensor(data, header_bytes, name, entry) for name, entry in entries.items()}
    _check_layout(tensors, entries, len(data) - header_bytes)
    if metadata.get("sha256") != digest(text, tensors):
        raise FormatError("the checksum doesn't match: the file is damaged, copy or pack it again")
    graph, info = decode(text, tensors)
    return PackedModel(graph, info, header_bytes, len(data) - header_bytes)


def digest(header: str, tensors: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 over the header's text and every tensor with its name, type and shape, in the order of names."""
    state = hashlib.sha256(header.encode("utf-8", "surrogatepass"))
    for name in sorted(tensors):
        tensor = tensors[name]
        shape = ",".join(map(str, tensor.shape))
        state.update(f"\n{name} {_CODES[tensor.dtype.name]} [{shape}]\n".encode("utf-8", "surrogatepass"))
        state.update(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)
    return state.hexdigest()


def _container(data: bytes) -> tuple[int, dict[str, Any], dict[str, Any]]:
    if len(data) < 8:
        raise FormatError(f"{len(data)} bytes are too few for a safetensors file")
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= len(data) - 8:
        raise FormatError(
            f"the header claims {length} bytes, the file has {len(data) - 8} after its length: truncated?"
        )
    try:
        text = data[8 : 8 + length].decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"the safetensors header is no UTF-8: {error}") from None
    document = parse_json(text, "the safetensors header")
    if not isinstance(document, dict):
        raise FormatError("the safetensors header is no JSON object")
    metadata = document.pop("__metadata__", None)
    if not isinstance(metadata, dict):
        raise FormatError("a safetensors file without metadata, not a packed fastslow model: make one with fs.pack")
    return 8 + length, document, metadata


def _tensor(data: bytes, start: int, name: str, entry: object) -> NDArray[Any]:
    match entry:
        case {"dtype": str(code), "shape": list(shape), "data_offsets": [int(begin), int(end)], **rest} if not rest:
            pass
        case _:
            raise FormatError(f"tensor {name!r}: the entry is not dtype, shape and data_offsets")
    dtype = _DTYPES.get(code)
    if dtype is None:
        raise FormatError(f"tensor {name!r}: type {code!r} is none of {', '.join(_DTYPES)}")
    if not all(type(size) is int and 0 < size <= MAX_INTEGER for size in shape) or len(shape) > 4:
        raise FormatError(f"tensor {name!r}: bad shape {str(shape)[:60]}")
    if not 0 <= begin <= end <= len(data) - start or end - begin != prod(shape) * dtype.itemsize:
        raise FormatError(f"tensor {name!r}: {code} {shape} can't be the bytes {begin} to {end} of {len(data) - start}")
    return np.frombuffer(data, dtype, prod(shape), start + begin).reshape(shape)


def _check_layout(tensors: Mapping[str, NDArray[Any]], entries: Mapping[str, Any], size: int) -> None:
    """Tensors must tile the payload: no byte unused, none used twice."""
    position = 0
    for begin, end in sorted(entries[name]["data_offsets"] for name in tensors):
        if begin != position:
            raise FormatError(f"the tensors leave a gap or overlap at byte {position} of the payload")
        position = end
    if position != size:
        raise FormatError(f"the tensors take {position} bytes, the payload has {size}: truncated, or bytes appended")
