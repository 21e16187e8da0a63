"""A packed graph as a torch module with float weights: what the benchmark compares with when it has only the file."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .graph import Graph, Node, canonical
from .numpy_ops import weight


class TorchGraph(nn.Module):
    """The packed network in float32: BatchNorm stays folded, bits are expanded to +-scale."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        self.output_shape = graph.output_shape()
        shapes = graph.shapes()
        for index, node in enumerate(graph.nodes):
            for role, array in _float_tensors(node, shapes[node.inputs[0]][0]).items():
                self.register_buffer(f"{role}_{index}", torch.from_numpy(np.ascontiguousarray(array)))

    def forward(self, x: Tensor) -> Tensor:
        values = [x.reshape(-1, *canonical(self.graph.input_shape))]
        for index, node in enumerate(self.graph.nodes):
            values.append(self._run(index, node, [values[source] for source in node.inputs]))
        return values[-1].reshape(-1, *self.output_shape)

    def _tensor(self, role: str, index: int) -> Tensor | None:
        return self._buffers.get(f"{role}_{index}")

    def _channels(self, role: str, index: int, like: Tensor, default: float) -> Tensor | float:
        tensor = self._tensor(role, index)
        return default if tensor is None else tensor.reshape(1, -1, *[1] * (like.dim() - 2))

    def _run(self, index: int, node: Node, inputs: list[Tensor]) -> Tensor:
        x = inputs[0]
        match node.op:
            case "conv" | "linear":
                if node["sign_input"]:
                    x = torch.where(x > 0, 1.0, -1.0)
                w, bias = self._tensor("weight", index), self._tensor("bias", index)
                assert w is not None
                if node.op == "linear":
                    return F.linear(x, w, bias)
                return F.conv2d(x, w, bias, node["stride"], node["padding"], node["dilation"], node["groups"])
            case "affine":
                return x * self._channels("scale", index, x, 1.0) + self._channels("bias", index, x, 0.0)
            case "relu":
                return F.relu(x)
            case "clip":
                return x.clamp(node["low"], node["high"])
            case "prelu":
                slope = self._tensor("slope", index)
                assert slope is not None
                return F.prelu(x, slope)
            case "sign":
                return torch.where(x > 0, 1.0, -1.0)
            case "max_pool":
                return F.max_pool2d(x, node["kernel"], node["stride"], node["padding"], node["dilation"])
            case "avg_pool":
                include = node["count_include_pad"]
                return F.avg_pool2d(x, node["kernel"], node["stride"], node["padding"], count_include_pad=include)
            case "mean":
                return x.mean((2, 3), keepdim=True)
            case "flatten":
                return x.flatten(1)
            case "add":
                return inputs[0] + inputs[1]
            case "concat":
                return torch.cat(inputs, 1)
            case "subsample":
                return x[:, :, :: node["stride"][0], :: node["stride"][1]]
            case "pad":
                pads = [side[axis] for axis in (2, 1, 0) for side in (node["before"], node["after"])]
                return F.pad(x, pads)
            case _:
                raise AssertionError(f"no torch form for {node.op}")


def _float_tensors(node: Node, inputs: int) -> dict[str, np.ndarray]:
    tensors = {role: tensor for role, tensor in node.tensors.items() if role != "bits"}
    if node.binary:
        scale = tensors.pop("scale", np.ones(1, np.float32))
        signs = weight(node, inputs)
        tensors["weight"] = signs * scale.reshape(-1, *[1] * (signs.ndim - 1))
    return tensors
