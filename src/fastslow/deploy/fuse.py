"""Which nodes of a graph run as one step.

A residual add and a ReLU or clip become the last step of the layer before them, and a binary layer that is read only
for its signs writes bits.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from .graph import Graph, Node

WEIGHTED = ("conv", "linear")
_CLAMPABLE = (*WEIGHTED, "affine", "add", "max_pool", "avg_pool", "mean")


@dataclass(eq=False, repr=False)
class Step:
    """A node with what was fused into it. `value` is the value that its result stands for."""

    node: Node
    value: int
    inputs: tuple[int, ...]
    other: int | None = None
    low: float = -math.inf
    high: float = math.inf
    packed: bool = False  # the result is signs
    norm: Node | None = None  # packed: an affine node between the max-pool and the signs


def fuse(graph: Graph) -> list[Step]:
    """Steps in order of execution."""
    readers: defaultdict[int, int] = defaultdict(int)
    for node in graph.nodes:
        for source in node.inputs:
            readers[source] += 1
    readers[len(graph.nodes)] += 1  # the caller
    steps: dict[int, Step] = {}  # by value
    for index, node in enumerate(graph.nodes):
        value = index + 1
        before = steps.get(max(node.inputs))
        alone = (
            before is not None and readers[before.value] == 1 and before.low == -math.inf and before.high == math.inf
        )
        if before is not None and alone and node.op in ("relu", "clip") and before.node.op in _CLAMPABLE:
            before.low, before.high = (0.0, math.inf) if node.op == "relu" else (node["low"], node["high"])
        elif before is not None and alone and node.op == "add" and before.node.op in WEIGHTED and before.other is None:
            before.other = min(node.inputs)
        else:
            steps[value] = Step(node, value, node.inputs)
            continue
        del steps[before.value]
        before.value = value
        steps[value] = before
    ordered = list(steps.values())
    _pack_outputs(ordered, len(graph.nodes))
    return ordered


def takes_signs(node: Node) -> bool:
    return node.op in WEIGHTED and node["sign_input"]


def groups_of(node: Node) -> int:
    return node["groups"] if node.op == "conv" else 1


def _pack_outputs(steps: list[Step], output: int) -> None:
    """Let a binary layer write bits where every reader would take the signs of its result, also through a max-pool."""
    for step in list(steps):
        if not takes_signs(step.node) or groups_of(step.node) != 1 or step.other is not None:
            continue
        readers = _readers(steps, step.value)
        if len(readers) == 1 and readers[0].node.op == "max_pool" and readers[0].inputs == (step.value,):
            _pack_pool(steps, step, readers[0], output)
        else:
            # A clamp around zero doesn't change a sign.
            step.packed = _signs_only(steps, step.value, output) and step.low <= 0 < step.high


def _pack_pool(steps: list[Step], layer: Step, pool: Step, output: int) -> None:
    """The sign of a maximum is the maximum of signs, and BatchNorm behind the pool only turns some of them around."""
    readers = _readers(steps, pool.value)
    norm = readers[0] if len(readers) == 1 and readers[0].node.op == "affine" and readers[0].other is None else None
    last = norm or pool
    clamped = [step for step in (layer, pool) if (step.low, step.high) != (-math.inf, math.inf)]
    if (norm and clamped) or any(not step.low <= 0 < step.high for step in (*clamped, last)):
        return
    if not _signs_only(steps, last.value, output):
        return
    layer.packed = pool.packed = True
    if norm:
        layer.norm = pool.norm = norm.node
        pool.value = norm.value
        steps.remove(norm)


def _readers(steps: list[Step], value: int) -> list[Step]:
    return [step for step in steps if value in step.inputs or step.other == value]


def _signs_only(steps: list[Step], value: int, output: int) -> bool:
    return value != output and all(
        takes_signs(reader.node) and groups_of(reader.node) == 1 and reader.other != value
        for reader in _readers(steps, value)
    )
