"""The JSON header of a packed file, to and from a `Graph`: everything in it is checked before it is used."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bits import padding_is_zero
from .errors import FormatError
from .graph import ATTRIBUTES, OPERATIONS, ROLES, Graph, GraphError, Node, weight_shape

VERSION = 1
MAX_INTEGER = 2**24  # of any size in the header
MAX_NODES = 10_000
MAX_NUMBER = float(np.finfo(np.float32).max)  # beyond it a number is infinite where it is used


@dataclass(frozen=True)
class Info:
    """What a packed file says about itself beside the network: for people and for pre-processing."""

    producer: str = ""
    dtype: str = "float32"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    classes: tuple[str, ...] = ()
    binarizer: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)


def encode(graph: Graph, info: Info) -> str:
    """The header's text. Constants are not in it: they are tensors named ``<node>.<role>``."""
    nodes = [
        {"op": node.op, "name": node.name, "inputs": list(node.inputs)}
        | {key: list(value) if isinstance(value, tuple) else value for key, value in node.attributes.items()}
        for node in graph.nodes
    ]
    document = {
        "version": VERSION,
        "producer": info.producer,
        "dtype": info.dtype,
        "input": list(graph.input_shape),
        "nodes": nodes,
        "preprocessing": {"mean": list(info.mean), "std": list(info.std)},
        "classes": list(info.classes),
        "binarizer": info.binarizer,
        "result": dict(info.result),
    }
    try:
        return json.dumps(document, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise ValueError(f"the header holds a number that JSON can't express (NaN or infinity): {error}") from None
    except TypeError as error:
        raise TypeError(
            f"result may hold what JSON can (text, numbers, lists, dicts with text as keys): {error}"
        ) from None


def decode(text: str, tensors: Mapping[str, NDArray[Any]]) -> tuple[Graph, Info]:
    """The graph and its description; raises `FormatError` for whatever is wrong with them."""
    document = _mapping(parse_json(text, "the fastslow header"), "header")
    version = document.get("version")
    if version != VERSION or type(version) is not int:
        raise FormatError(f"format version {version!r} is not {VERSION}: pack the model again, or update fastslow")
    shape = _integers(document, "input", "header", low=1)
    rows = _list(document, "nodes", "header")
    if not 1 <= len(rows) <= MAX_NODES:
        raise FormatError(f"{len(rows)} nodes; a packed network has 1 to {MAX_NODES}")
    unused = set(tensors)
    nodes = tuple(_node(index, row, tensors, unused) for index, row in enumerate(rows))
    if len({node.name for node in nodes}) != len(nodes):
        raise FormatError("two nodes have the same name")
    if unused:
        raise FormatError(f"tensors that no node uses: {', '.join(sorted(unused)[:3])}")
    graph = Graph(shape, nodes)
    try:
        values = graph.shapes()
    except GraphError as error:
        raise FormatError(str(error)) from None
    for node in nodes:
        if node.binary:
            depth = math.prod(weight_shape(node, values[node.inputs[0]][0])[1:])
            if not padding_is_zero(node.tensors["bits"], depth):
                raise FormatError(f"{node.name}: unused bits at the end of a filter are not 0")
    return graph, _info(document, values[0][0])


def parse_json(text: str, where: str) -> Any:
    """JSON without the extensions of Python's parser: no NaN, no repeated keys."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise FormatError(f"{where} repeats a key")
        return result

    def constant(name: str) -> Any:
        raise FormatError(f"{where} holds {name}, which is no JSON number")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=constant)
    except FormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where} is no valid JSON: {error}") from None


def _node(index: int, row: object, tensors: Mapping[str, NDArray[Any]], unused: set[str]) -> Node:
    where = f"node {index}"
    entry = _mapping(row, where)
    op = _string(entry, "op", where)
    if op not in OPERATIONS:
        raise FormatError(f"{where}: unknown operation {op!r}; this version knows {', '.join(OPERATIONS)}")
    fields = ATTRIBUTES.get(op, {})
    surplus = entry.keys() - fields.keys() - {"op", "name", "inputs"}
    if surplus:
        raise FormatError(f"{where} ({op}): unknown attributes {', '.join(sorted(surplus))}")
    name = _string(entry, "name", where)
    attributes = {key: _READERS[kind](entry, key, where) for key, kind in fields.items()}
    constants = {}
    for role in ROLES.get(op, ()):
        key = f"{name}.{role}"
        if key in unused:
            unused.discard(key)
            constants[role] = tensors[key] if role == "bits" else _floats(tensors[key], key)
            if role == "bits" and tensors[key].dtype != np.uint8:
                raise FormatError(f"{key} is {tensors[key].dtype}, expected uint8")
    if "bits" in constants and "weight" in constants:
        raise FormatError(f"{where}: both bits and float weights")
    return Node(op, name, _integers(entry, "inputs", where), attributes, constants)


def _floats(tensor: NDArray[Any], key: str) -> NDArray[np.float32]:
    if tensor.dtype not in (np.float32, np.float16):
        raise FormatError(f"{key} is {tensor.dtype}, expected float32 or float16")
    values = tensor.astype(np.float32)
    if not np.isfinite(values).all():
        raise FormatError(f"{key} holds NaN or infinity")
    return values


def _info(document: Mapping[str, Any], channels: int) -> Info:
    preprocessing = _mapping(document.get("preprocessing"), "preprocessing")
    mean, std = (tuple(_numbers(preprocessing, key, "preprocessing")) for key in ("mean", "std"))
    if len(mean) != len(std) or len(mean) not in (0, channels) or not all(value > 0 for value in std):
        raise FormatError(f"preprocessing needs a mean and a positive std for each of {channels} channels, or neither")
    classes = _list(document, "classes", "header")
    if not all(isinstance(name, str) for name in classes):
        raise FormatError("class names must be strings")
    dtype = _string(document, "dtype", "header")
    if dtype not in ("float32", "float16"):
        raise FormatError(f"dtype {dtype!r} is neither float32 nor float16")
    return Info(
        producer=_string(document, "producer", "header"),
        dtype=dtype,
        mean=mean,
        std=std,
        classes=tuple(classes),
        binarizer=_string(document, "binarizer", "header"),
        result=_mapping(document.get("result"), "result"),
    )


def _mapping(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FormatError(f"{where} must be an object, is {_show(value)}")
    return value


def _list(entry: Mapping[str, Any], key: str, where: str) -> list[Any]:
    value = entry.get(key)
    if not isinstance(value, list):
        raise FormatError(f"{where}: {key} must be a list, is {_show(value)}")
    return value


def _string(entry: Mapping[str, Any], key: str, where: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str):
        raise FormatError(f"{where}: {key} must be a string, is {_show(value)}")
    return value


def _integers(
    entry: Mapping[str, Any], key: str, where: str, *, low: int = 0, count: int | None = None
) -> tuple[int, ...]:
    values = _list(entry, key, where)
    if count is not None and len(values) != count:
        raise FormatError(f"{where}: {key} must have {count} entries, has {len(values)}")
    return tuple(_bounded(value, key, where, low) for value in values)


def _bounded(value: object, key: str, where: str, low: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= MAX_INTEGER:
        raise FormatError(f"{where}: {key} must be an integer from {low} to {MAX_INTEGER}, is {_show(value)}")
    return value


def _numbers(entry: Mapping[str, Any], key: str, where: str) -> list[float]:
    return [_finite(value, key, where) for value in _list(entry, key, where)]


def _finite(value: object, key: str, where: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= MAX_NUMBER:
        raise FormatError(f"{where}: {key} must be a finite number, is {_show(value)}")
    return float(value)


def _flag(entry: Mapping[str, Any], key: str, where: str) -> bool:
    value = entry.get(key)
    if not isinstance(value, bool):
        raise FormatError(f"{where}: {key} must be true or false, is {_show(value)}")
    return value


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


_READERS: dict[str, Callable[[Mapping[str, Any], str, str], Any]] = {
    "sizes": lambda entry, key, where: _integers(entry, key, where, low=1, count=2),
    "pads": lambda entry, key, where: _integers(entry, key, where, count=2),
    "pads3": lambda entry, key, where: _integers(entry, key, where, count=3),
    "count": lambda entry, key, where: _bounded(entry.get(key), key, where, 1),
    "flag": _flag,
    "number": lambda entry, key, where: _finite(entry.get(key), key, where),
}
