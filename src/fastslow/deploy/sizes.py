"""How many bytes a packed model takes: the one place that counts them, for the file and for the summary alike."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from .format import stored_tensors
from .graph import Graph, weight_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn


@dataclass(frozen=True)
class LayerSize:
    """One layer of a packed graph: its weights and everything it needs."""

    name: str
    op: str
    binary: bool
    weights: int  # how many
    packed_bytes: int  # in the file's payload, with scale and bias
    float_bytes: int  # the same in float32


def layer_sizes(graph: Graph, dtype: str = "float32") -> tuple[LayerSize, ...]:
    """Every node that holds constants; `packed_bytes` sum to the payload of the file exactly."""
    stored = {name: tensor.nbytes for name, tensor in stored_tensors(graph, dtype).items()}
    shapes = graph.shapes()
    rows = []
    for node in graph.nodes:
        if not node.tensors:
            continue
        weights = prod(weight_shape(node, shapes[node.inputs[0]][0])) if node.op in ("conv", "linear") else 0
        others = sum(int(np.size(tensor)) for role, tensor in node.tensors.items() if role not in ("bits", "weight"))
        packed = sum(stored[f"{node.name}.{role}"] for role in node.tensors)
        rows.append(LayerSize(node.name, node.op, node.binary, weights, packed, 4 * (weights + others)))
    return tuple(rows)


def sizes(model: nn.Module, input_shape: Sequence[int] = (3, 32, 32), dtype: str = "float32") -> tuple[LayerSize, ...]:
    """What `pack` would write for a torch model, layer by layer."""
    from .pack import packed_graph

    return layer_sizes(packed_graph(model, input_shape), dtype)
