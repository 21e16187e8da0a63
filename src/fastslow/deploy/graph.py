"""The small graph that a packed file holds: a list of nodes, each reading the input or an earlier node.

Value 0 is the network's input and value ``i + 1`` the result of node ``i``, so a graph has no cycles by construction.
Shapes are those of one sample: ``(channels, height, width)`` or ``(features,)``. A sequence ``(channels, length)`` is
an image of height 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from numpy.typing import NDArray

from .bits import row_bytes

Shape = tuple[int, ...]
Tensors = dict[str, NDArray[Any]]

# One layer must not be able to ask for more than a machine has: a file of a few bytes can name any size.
MAX_ELEMENTS = 2**24  # of one value of one sample
MAX_WORK = 2**34  # multiply-adds of one layer of one sample
MAX_SIGNS = 2**16 - 1  # products of signs in one output: they are counted in 16 bits


class GraphError(ValueError):
    """A node that makes no sense; the message says which and why."""


@dataclass(frozen=True, eq=False)
class Node:
    """One operation. `tensors` are its constants, by role: ``weight`` or ``bits``, ``scale``, ``bias``, ``slope``."""

    op: str
    name: str
    inputs: tuple[int, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __getitem__(self, attribute: str) -> Any:
        return self.attributes[attribute]

    @property
    def binary(self) -> bool:
        """Whether its weights are single bits."""
        return "bits" in self.tensors


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in order of execution; the last one is the output. `input_shape` is what the caller passes."""

    input_shape: Shape
    nodes: tuple[Node, ...]

    def shapes(self) -> list[Shape]:
        """The shape of every value; raises `GraphError` where they don't fit."""
        values = [canonical(self.input_shape)]
        _check_size(values[0], "the input")
        for index, node in enumerate(self.nodes):
            values.append(infer(index, node, values))
        return values

    def output_shape(self) -> Shape:
        """What the caller gets: a sequence comes out as a sequence if it went in as one."""
        shape = self.shapes()[-1]
        return (shape[0], shape[2]) if len(self.input_shape) == 2 and len(shape) == 3 else shape


def canonical(shape: Shape) -> Shape:
    """The shape of a caller's sample inside the graph."""
    if len(shape) not in (1, 2, 3):
        raise GraphError(f"input shape {shape} must be (features,), (channels, length) or (channels, height, width)")
    return (shape[0], 1, shape[1]) if len(shape) == 2 else shape


def window_size(size: int, axis: int, node: Node) -> int:
    """Output size of a convolution or pool along one axis."""
    reach = node.attributes.get("dilation", (1, 1))[axis] * (node["kernel"][axis] - 1) + 1
    return (size + 2 * node["padding"][axis] - reach) // node["stride"][axis] + 1


def weight_shape(node: Node, inputs: int) -> Shape:
    """(O, I, kernel height, kernel width), or (O, I), of a convolution or linear node."""
    outputs = node["outputs"]
    if node.op == "linear":
        return (outputs, inputs)
    return (outputs, inputs // node["groups"], *node["kernel"])


def infer(index: int, node: Node, values: list[Shape]) -> Shape:
    """The shape of a node's result, checked against its inputs and constants."""
    where = f"node {index} ({node.op} {node.name!r})"
    try:
        rule = _RULES.get(node.op)
        if rule is None:
            raise GraphError(f"unknown operation; this version knows {', '.join(_RULES)}")
        for source in node.inputs:
            if not 0 <= source <= index:
                raise GraphError(f"reads value {source}, which is not computed before it (a cycle, or a bad index)")
        expected = {"add": 2, "concat": None}.get(node.op, 1)
        if (len(node.inputs) != expected) if expected else len(node.inputs) < 2:
            raise GraphError(f"takes {expected or 'two or more'} inputs, has {len(node.inputs)}")
        shape = rule(node, [values[source] for source in node.inputs])
    except GraphError as error:
        raise GraphError(f"{where}: {error}") from None
    _check_size(shape, where)
    return shape


def _check_size(shape: Shape, where: str) -> None:
    if min(shape) < 1 or prod(shape) > MAX_ELEMENTS:
        raise GraphError(f"{where}: the shape {shape} is empty or above {MAX_ELEMENTS} elements")


def _check_work(amount: int) -> None:
    if amount > MAX_WORK:
        raise GraphError(f"asks for {amount} multiply-adds a sample, above the limit of {MAX_WORK}")


def _image(shape: Shape) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise GraphError(f"needs an image (channels, height, width), got {shape}")
    return shape[0], shape[1], shape[2]


def _per_channel(node: Node, role: str, channels: int, *, one: bool, required: bool = False) -> None:
    tensor = node.tensors.get(role)
    if tensor is None:
        if required:
            raise GraphError(f"has no {role}")
        return
    allowed = {(channels,), (1,)} if one else {(channels,)}
    if tensor.shape not in allowed:
        raise GraphError(f"{role} has shape {tensor.shape}, expected {' or '.join(map(str, sorted(allowed)))}")


def _check_weight(node: Node, inputs: int, positions: int) -> None:
    shape = weight_shape(node, inputs)
    role, wanted = ("bits", (shape[0], row_bytes(prod(shape[1:])))) if node.binary else ("weight", shape)
    if node["sign_input"] and not node.binary:
        raise GraphError("takes the signs of its input but has float weights; use a sign node before it")
    if node["sign_input"] and prod(shape[1:]) > MAX_SIGNS:
        raise GraphError(f"multiplies {prod(shape[1:])} signs, above the limit of {MAX_SIGNS}")
    tensor = node.tensors.get(role)
    if tensor is None:
        raise GraphError("has neither weight nor bits")
    if tensor.shape != wanted:
        raise GraphError(f"{role} has shape {tensor.shape}, expected {wanted} for a weight of {shape}")
    _per_channel(node, "scale", shape[0], one=True)
    _per_channel(node, "bias", shape[0], one=False)
    _check_work(prod(shape) * positions)


def _windows(node: Node, shape: Shape) -> tuple[int, int]:
    _, height, width = _image(shape)
    padded = prod(size + 2 * pad for size, pad in zip((height, width), node["padding"], strict=True))
    if padded * shape[0] > MAX_ELEMENTS:
        raise GraphError(f"padding {node['padding']} makes the input larger than {MAX_ELEMENTS} elements")
    sizes = window_size(height, 0, node), window_size(width, 1, node)
    if min(sizes) < 1:
        raise GraphError(f"kernel {node['kernel']} doesn't fit into {height} x {width} pixels")
    return sizes


def _conv(node: Node, shapes: list[Shape]) -> Shape:
    channels, groups, outputs = shapes[0][0], node["groups"], node["outputs"]
    if channels % groups or outputs % groups:
        raise GraphError(f"{channels} input and {outputs} output channels can't be split into {groups} groups")
    height, width = _windows(node, shapes[0])
    _check_weight(node, channels, height * width)
    return (outputs, height, width)


def _linear(node: Node, shapes: list[Shape]) -> Shape:
    if len(shapes[0]) != 1:
        raise GraphError(f"needs a vector, got {shapes[0]}")
    _check_weight(node, shapes[0][0], 1)
    return (node["outputs"],)


def _pool(node: Node, shapes: list[Shape]) -> Shape:
    sizes = _windows(node, shapes[0])
    if any(2 * pad > kernel for pad, kernel in zip(node["padding"], node["kernel"], strict=True)):
        raise GraphError(f"padding {node['padding']} is more than half of the kernel {node['kernel']}")
    _check_work(prod(node["kernel"]) * prod(sizes) * shapes[0][0])
    return (shapes[0][0], *sizes)


def _mean(_: Node, shapes: list[Shape]) -> Shape:
    return (_image(shapes[0])[0], 1, 1)


def _flatten(_: Node, shapes: list[Shape]) -> Shape:
    return (prod(shapes[0]),)


def _add(_: Node, shapes: list[Shape]) -> Shape:
    if shapes[0] != shapes[1]:
        raise GraphError(f"can't add {shapes[0]} and {shapes[1]}")
    return shapes[0]


def _affine(node: Node, shapes: list[Shape]) -> Shape:
    _per_channel(node, "scale", shapes[0][0], one=False)
    _per_channel(node, "bias", shapes[0][0], one=False)
    return shapes[0]


def _prelu(node: Node, shapes: list[Shape]) -> Shape:
    _per_channel(node, "slope", shapes[0][0], one=True, required=True)
    return shapes[0]


def _same(_: Node, shapes: list[Shape]) -> Shape:
    return shapes[0]


def _clip(node: Node, shapes: list[Shape]) -> Shape:
    if not node["low"] <= node["high"]:
        raise GraphError(f"clips to [{node['low']}, {node['high']}], which is empty")
    return shapes[0]


def _subsample(node: Node, shapes: list[Shape]) -> Shape:
    channels, height, width = _image(shapes[0])
    return (channels, -(-height // node["stride"][0]), -(-width // node["stride"][1]))


def _pad(node: Node, shapes: list[Shape]) -> Shape:
    before, after = node["before"], node["after"]
    channels, height, width = (
        low + size + high for low, size, high in zip(before, _image(shapes[0]), after, strict=True)
    )
    return (channels, height, width)


def _concat(_: Node, shapes: list[Shape]) -> Shape:
    if len({shape[1:] for shape in shapes}) != 1:
        raise GraphError(f"can't concatenate {shapes}")
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])


_RULES: dict[str, Callable[[Node, list[Shape]], Shape]] = {
    "conv": _conv,
    "linear": _linear,
    "affine": _affine,
    "relu": _same,
    "clip": _clip,
    "prelu": _prelu,
    "sign": _same,
    "max_pool": _pool,
    "avg_pool": _pool,
    "mean": _mean,
    "flatten": _flatten,
    "add": _add,
    "concat": _concat,
    "subsample": _subsample,
    "pad": _pad,
}

# How the attributes of each operation are written in a file: kinds that `header.py` knows how to read.
_WINDOW = {"kernel": "sizes", "stride": "sizes", "padding": "pads"}
ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "conv": _WINDOW | {"dilation": "sizes", "groups": "count", "outputs": "count", "sign_input": "flag"},
    "linear": {"outputs": "count", "sign_input": "flag"},
    "clip": {"low": "number", "high": "number"},
    "max_pool": _WINDOW | {"dilation": "sizes"},
    "avg_pool": _WINDOW | {"count_include_pad": "flag"},
    "subsample": {"stride": "sizes"},
    "pad": {"before": "pads3", "after": "pads3"},
}
ROLES: dict[str, tuple[str, ...]] = {
    "conv": ("weight", "bits", "scale", "bias"),
    "linear": ("weight", "bits", "scale", "bias"),
    "affine": ("scale", "bias"),
    "prelu": ("slope",),
}
OPERATIONS = tuple(_RULES)
