"""Graphs and models that the deploy tests share. No torch is imported here."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastslow.deploy import Engine, PackedModel, available_backends
from fastslow.deploy.bits import pack_signs
from fastslow.deploy.graph import Graph, Node
from fastslow.deploy.header import Info

NATIVE = [name for name in available_backends() if name != "numpy"]


def engine(graph: Graph, backend: str, threads: int = 1) -> Engine:
    return Engine(PackedModel(graph, Info(), 0, 0), backend, threads)


def conv(
    rng: np.random.Generator,
    shape: tuple[int, int, int],
    outputs: int,
    *,
    kind: str = "bits",
    kernel: tuple[int, int] = (3, 3),
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    name: str = "conv",
    source: int = 0,
    plain: bool = False,
) -> Node:
    """A convolution with random constants; `kind` is float, signs (W1A32) or bits (W1A1)."""
    weight = rng.standard_normal((outputs, shape[0] // groups, *kernel)).astype(np.float32)
    tensors: dict[str, Any] = {"weight": weight} if kind == "float" else {"bits": pack_signs(weight)}
    if not plain:
        tensors["bias"] = rng.standard_normal(outputs).astype(np.float32)
        if kind != "float":
            tensors["scale"] = rng.standard_normal(outputs).astype(np.float32)
    attributes = {
        "kernel": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "outputs": outputs,
        "sign_input": kind == "bits",
    }
    return Node("conv", name, (source,), attributes, tensors)


def linear(
    rng: np.random.Generator, inputs: int, outputs: int, *, kind: str, name: str = "fc", source: int = 0
) -> Node:
    weight = rng.standard_normal((outputs, inputs)).astype(np.float32)
    tensors: dict[str, Any] = {"weight": weight} if kind == "float" else {"bits": pack_signs(weight)}
    tensors["bias"] = rng.standard_normal(outputs).astype(np.float32)
    return Node("linear", name, (source,), {"outputs": outputs, "sign_input": kind == "bits"}, tensors)


def residual_graph(rng: np.random.Generator) -> Graph:
    """A small network that uses every operation of the format at least once."""
    image = (5, 9, 7)
    scale, bias, slope = (rng.standard_normal(20).astype(np.float32) for _ in range(3))
    window = {"kernel": (2, 3), "stride": (2, 2), "padding": (1, 1)}
    nodes = (
        conv(rng, image, 20, kind="float", padding=(1, 1), name="stem"),  # 1
        Node("affine", "norm", (1,), {}, {"scale": scale, "bias": bias}),  # 2
        Node("prelu", "prelu", (2,), {}, {"slope": slope}),  # 3
        conv(rng, (20, 9, 7), 20, kind="bits", padding=(1, 1), name="first", source=3),  # 4
        conv(rng, (20, 9, 7), 20, kind="bits", padding=(1, 1), name="second", source=4),  # 5
        Node("add", "sum", (5, 3)),  # 6
        Node("relu", "relu", (6,)),  # 7
        Node("max_pool", "max", (7,), window | {"dilation": (1, 1)}),  # 8
        Node("avg_pool", "avg", (7,), window | {"count_include_pad": False}),  # 9
        Node("concat", "cat", (8, 9)),  # 10
        Node("subsample", "half", (10,), {"stride": (2, 1)}),  # 11
        Node("pad", "pad", (11,), {"before": (1, 2, 0), "after": (0, 1, 4)}),  # 12
        Node("clip", "clip", (12,), {"low": -1.0, "high": 1.0}),  # 13
        Node("sign", "sign", (13,)),  # 14
        conv(rng, (41, 6, 8), 41, kind="signs", padding=(1, 1), name="square", source=14),  # 15, by Winograd
        conv(rng, (41, 6, 8), 6, kind="signs", stride=(2, 2), dilation=(2, 1), padding=(0, 2), name="wide", source=15),
        Node("flatten", "flat", (16,)),  # 17
        linear(rng, 30, 33, kind="bits", name="hidden", source=17),  # 18
        linear(rng, 33, 10, kind="signs", name="head", source=18),  # 19
    )
    return Graph(image, nodes)
