"""Rewriting a traced graph so that less is left to compute: the same function, fewer nodes.

BatchNorm becomes part of the layer before it, signs part of the layer after it, and nothing stays that nobody reads.
All arithmetic is float64 until the last line.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .graph import Graph, Node

_WITH_WEIGHTS = ("conv", "linear")


def fold(graph: Graph) -> Graph:
    """All rewrites, in the order in which they help each other."""
    # What nobody reads goes first: the last node is the output, and must still be so when it is folded away.
    return _to_float32(_drop_unused(_fold_signs(_fold_affine(_drop_unused(graph)))))


def _readers(graph: Graph) -> Counter[int]:
    return Counter(source for node in graph.nodes for source in node.inputs)


def _fold_affine(graph: Graph) -> Graph:
    """scale * (w x + b) + shift = (scale w) x + (scale b + shift), if the layer's own result is read nowhere else."""
    readers = _readers(graph)
    nodes = list(graph.nodes)
    renamed: dict[int, int] = {}  # value -> the value that now equals it
    for index, node in enumerate(nodes):
        node = nodes[index] = replace(node, inputs=tuple(renamed.get(source, source) for source in node.inputs))
        if node.op != "affine":
            continue
        source = node.inputs[0]
        before = nodes[source - 1] if source else None
        if before is not None and before.op in _WITH_WEIGHTS and readers[source] == 1:
            nodes[source - 1] = _scaled(before, node.tensors)
            renamed[index + 1] = source
            readers[source] = readers[index + 1]
    return replace(graph, nodes=tuple(nodes)) if not renamed else _without(graph, nodes, renamed)


def _scaled(node: Node, affine: Any) -> Node:
    tensors: dict[str, NDArray[Any]] = dict(node.tensors)
    scale, shift = affine["scale"].astype(np.float64), affine["bias"].astype(np.float64)
    if node.binary:
        tensors["scale"] = tensors.get("scale", np.ones(1)).astype(np.float64) * scale
    else:
        weight = tensors["weight"].astype(np.float64)
        tensors["weight"] = weight * scale.reshape(-1, *[1] * (weight.ndim - 1))
    tensors["bias"] = tensors.get("bias", np.zeros(1)).astype(np.float64) * scale + shift
    return replace(node, tensors=tensors)


def _fold_signs(graph: Graph) -> Graph:
    """A binary layer that reads signs takes them itself, which its kernel does while packing."""
    nodes = list(graph.nodes)
    for index, node in enumerate(nodes):
        if node.op in _WITH_WEIGHTS and node.binary and node.inputs[0] > 0:
            before = nodes[node.inputs[0] - 1]
            if before.op == "sign":
                attributes = {**node.attributes, "sign_input": True}
                nodes[index] = replace(node, inputs=before.inputs, attributes=attributes)
    return replace(graph, nodes=tuple(nodes))


def _drop_unused(graph: Graph) -> Graph:
    needed = {len(graph.nodes)}
    for index in range(len(graph.nodes), 0, -1):
        if index in needed:
            needed.update(graph.nodes[index - 1].inputs)
    unused = {index: -1 for index in range(1, len(graph.nodes) + 1) if index not in needed}
    return _without(graph, list(graph.nodes), unused)


def _without(graph: Graph, nodes: list[Node], gone: dict[int, int]) -> Graph:
    """The graph without the values in `gone`, each replaced by the value it maps to; the rest renumbered."""
    number = {0: 0}
    kept: list[Node] = []
    for index, node in enumerate(nodes):
        if index + 1 in gone:
            number[index + 1] = number.get(gone[index + 1], -1)
        else:
            kept.append(replace(node, inputs=tuple(number[source] for source in node.inputs)))
            number[index + 1] = len(kept)
    return replace(graph, nodes=tuple(kept))


def _to_float32(graph: Graph) -> Graph:
    """Round once; a scale that is the same for all filters is stored once, one that is 1 not at all."""
    nodes = []
    for node in graph.nodes:
        tensors = {role: t if role == "bits" else t.astype(np.float32) for role, t in node.tensors.items()}
        scale = tensors.get("scale")
        if scale is not None and node.op in _WITH_WEIGHTS and (scale == scale[0]).all():
            tensors["scale"] = scale[:1]
            if scale[0] == 1:
                del tensors["scale"]
        nodes.append(replace(node, tensors=tensors))
    return replace(graph, nodes=tuple(nodes))
