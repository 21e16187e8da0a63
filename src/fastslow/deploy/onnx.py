"""A packed model as ONNX: standard operators only, and a file as small as the packed one.

ONNX has no type of one bit. The bits are a ``uint8`` initialiser, and the graph itself turns them into floats by
looking each byte up in a table of 256 rows of eight signs. That is constant, so onnxruntime computes it once at load
and runs a plain convolution.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..files import write_atomically
from .bits import unpack_signs
from .format import PackedModel, read, stored_tensors
from .graph import Graph, Node, Shape, canonical, weight_shape

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

OPSET = 17
IR_VERSION = 8  # the one of opset 17: older readers refuse newer ones


def export(source: str | Path | PackedModel, path: str | Path, *, expand: bool = False) -> int:
    """Write a packed model as ONNX; returns the size of the file in bytes.

    `expand` writes float weights instead of bits: the file that a float network would have, to compare with.
    """
    model = source if isinstance(source, PackedModel) else read(source)
    data = to_onnx(model, expand=expand).SerializeToString()
    write_atomically(Path(path), data)
    return len(data)


def to_onnx(model: PackedModel, *, expand: bool = False) -> ModelProto:
    """The ONNX model; its input has a free batch size."""
    onnx = _import_onnx()
    builder = _Builder(model.graph, model.info.dtype, expand)
    nodes, initializers = builder.build()
    value = onnx.helper.make_tensor_value_info
    float32 = onnx.TensorProto.FLOAT
    inputs = [value("input", float32, ["batch", *model.graph.input_shape])]
    outputs = [value("output", float32, ["batch", *model.graph.output_shape()])]
    graph = onnx.helper.make_graph(nodes, "fastslow", inputs, outputs, initializers)
    result = onnx.helper.make_model(
        graph,
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name=model.info.producer,
    )
    info = model.info
    metadata = {
        "classes": list(info.classes),
        "mean": list(info.mean),
        "std": list(info.std),
        "binarizer": info.binarizer,
        "result": dict(info.result),
    }
    onnx.helper.set_model_props(result, {key: json.dumps(content) for key, content in metadata.items()})
    onnx.checker.check_model(result)
    return result


def _import_onnx() -> Any:
    try:
        import onnx
        import onnx.checker
        import onnx.helper
        import onnx.numpy_helper
    except ImportError as error:
        raise ImportError("exporting needs the package onnx: pip install 'fastslow[onnx]'") from error
    return onnx


class _Builder:
    def __init__(self, graph: Graph, dtype: str, expand: bool) -> None:
        self.onnx = _import_onnx()
        self.expand = expand
        self.graph = graph
        self.stored = stored_tensors(graph, dtype)
        self.shapes = graph.shapes()
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.constants: dict[tuple[str, bytes], str] = {}  # shapes and small numbers, each written once

    def build(self) -> tuple[list[NodeProto], list[TensorProto]]:
        values = ["input"]
        if len(self.graph.input_shape) == 2:
            values = [self.reshape("input", canonical(self.graph.input_shape))]
        for index, node in enumerate(self.graph.nodes):
            values.append(self.lower(node, [values[source] for source in node.inputs], self.shapes[index + 1]))
        inputs = [values[-1], self.vector([-1, *self.graph.output_shape()])]
        self.nodes.append(self.onnx.helper.make_node("Reshape", inputs, ["output"], "output"))
        return self.nodes, self.initializers

    def emit(self, op: str, inputs: list[str], output: str | None = None, **attributes: Any) -> str:
        """Append a node. Results of the unpacking get a number for a name: names are a good part of a small file."""
        result = output or f"/{len(self.nodes)}"  # no module has a slash in its name
        if result in ("input", "output"):  # of the graph itself
            result = f"/{result}"
        self.nodes.append(self.onnx.helper.make_node(op, inputs, [result], output and result, **attributes))
        return result

    def initializer(self, name: str, array: NDArray[Any]) -> str:
        self.initializers.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def constant(self, array: NDArray[Any]) -> str:
        key = (f"{array.dtype}{array.shape}", array.tobytes())
        if key not in self.constants:
            self.constants[key] = self.initializer(f"/constant.{len(self.constants)}", array)
        return self.constants[key]

    def vector(self, numbers: list[int]) -> str:
        return self.constant(np.array(numbers, np.int64))

    def scalar(self, number: float) -> str:
        return self.constant(np.array(number, np.float32))

    def reshape(self, value: str, shape: Shape, output: str | None = None) -> str:
        return self.emit("Reshape", [value, self.vector([-1, *shape])], output)

    def floats(self, name: str, shape: tuple[int, ...] | None = None) -> str:
        """A stored tensor as float32; half precision is widened in the graph."""
        tensor = self.stored[name]
        self.initializer(name, tensor if shape is None else tensor.reshape(shape))
        return name if tensor.dtype == np.float32 else self.emit("Cast", [name], to=self.onnx.TensorProto.FLOAT)

    def signs(self, x: str, output: str | None = None) -> str:
        """+1 where x > 0, else -1. (ONNX's Sign is 0 at 0.)"""
        positive = self.emit("Greater", [x, self.scalar(0)])
        return self.emit("Where", [positive, self.scalar(1), self.scalar(-1)], output)

    def weight(self, node: Node, inputs: int) -> str:
        """The weight as (O, I, kernel...) floats, scaled: bytes -> rows of the table -> its shape.

        The bits are packed anew in the order of ONNX and without gaps between filters, which saves the transposition.
        """
        if not node.binary:
            return self.floats(f"{node.name}.weight")
        shape = weight_shape(node, inputs)
        column = (-1, *[1] * (len(shape) - 1))
        if self.expand:
            signs = unpack_signs(node.tensors["bits"], shape)
            scale = node.tensors.get("scale", np.ones(1, np.float32))
            return self.initializer(f"{node.name}.weight", signs * scale.reshape(column))
        bits = unpack_signs(node.tensors["bits"], shape).reshape(-1) > 0
        packed = self.initializer(f"{node.name}.bits", np.packbits(bits, bitorder="little"))
        index = self.emit("Cast", [packed], to=self.onnx.TensorProto.INT32)
        signs = self.emit("Gather", [self.table(), index])
        if bits.size % 8:
            signs = self.emit("Reshape", [signs, self.vector([-1])])
            signs = self.emit("Slice", [signs, self.vector([0]), self.vector([bits.size])])
        signs = self.emit("Reshape", [signs, self.vector(list(shape))])
        if "scale" not in node.tensors:
            return signs
        return self.emit("Mul", [signs, self.floats(f"{node.name}.scale", column)])

    def table(self) -> str:
        """256 rows: the eight signs of each byte, least significant bit first. Two kilobytes, as int8."""
        key = ("table", b"")
        if key not in self.constants:
            every_byte = np.arange(256, dtype=np.uint8)[:, None]
            signs = self.initializer("/signs.int8", unpack_signs(every_byte, (256, 8)).astype(np.int8))
            self.constants[key] = self.emit("Cast", [signs], to=self.onnx.TensorProto.FLOAT)
        return self.constants[key]

    def lower(self, node: Node, inputs: list[str], shape: Shape) -> str:
        x, name = inputs[0], node.name
        match node.op:
            case "conv" | "linear":
                return self.lower_weights(node, x)
            case "affine":
                channels = (-1, *[1] * (len(shape) - 1))
                for role, op in (("scale", "Mul"), ("bias", "Add")):
                    if role in node.tensors:
                        x = self.emit(op, [x, self.floats(f"{name}.{role}", channels)])
                return x
            case "relu":
                return self.emit("Relu", [x], name)
            case "clip":
                return self.emit("Clip", [x, self.scalar(node["low"]), self.scalar(node["high"])], name)
            case "prelu":
                slope = self.floats(f"{name}.slope", (-1, *[1] * (len(shape) - 1)))
                return self.emit("PRelu", [x, slope], name)
            case "sign":
                return self.signs(x, name)
            case "max_pool" | "avg_pool":
                return self.lower_pool(node, x)
            case "mean":
                return self.emit("GlobalAveragePool", [x], name)
            case "flatten":
                return self.reshape(x, shape, name)
            case "add":
                return self.emit("Add", inputs, name)
            case "concat":
                return self.emit("Concat", inputs, name, axis=1)
            case "subsample":
                starts, ends = self.vector([0, 0]), self.vector([2**31, 2**31])
                return self.emit(
                    "Slice", [x, starts, ends, self.vector([2, 3]), self.vector(list(node["stride"]))], name
                )
            case "pad":
                return self.emit("Pad", [x, self.vector([0, *node["before"], 0, *node["after"]])], name)
            case _:
                raise AssertionError(f"no ONNX form for {node.op}")

    def lower_weights(self, node: Node, x: str) -> str:
        source = self.shapes[node.inputs[0]]
        if node["sign_input"]:
            x = self.signs(x)
        inputs = [x, self.weight(node, source[0])]
        if "bias" in node.tensors:
            inputs.append(self.floats(f"{node.name}.bias"))
        if node.op == "linear":
            return self.emit("Gemm", inputs, node.name, transB=1)
        return self.emit(
            "Conv",
            inputs,
            node.name,
            kernel_shape=node["kernel"],
            strides=node["stride"],
            pads=[*node["padding"], *node["padding"]],
            dilations=node["dilation"],
            group=node["groups"],
        )

    def lower_pool(self, node: Node, x: str) -> str:
        if node.inputs[0] and self.graph.nodes[node.inputs[0] - 1].op == "pad":
            # onnxruntime merges a Pad into the pool behind it, where zeros become "not there": keep the two apart.
            x = self.emit("Max", [x, self.scalar(-math.inf)])
        attributes: dict[str, Any] = {
            "kernel_shape": node["kernel"],
            "strides": node["stride"],
            "pads": [*node["padding"], *node["padding"]],
        }
        if node.op == "max_pool":
            return self.emit("MaxPool", [x], node.name, dilations=node["dilation"], **attributes)
        include = int(node["count_include_pad"])
        return self.emit("AveragePool", [x], node.name, count_include_pad=include, **attributes)
