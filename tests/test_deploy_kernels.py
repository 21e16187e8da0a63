"""Every native kernel against its numpy twin, on shapes that don't fit vectors, words or tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastslow.deploy.graph import Graph, Node
from fastslow.deploy.native import Kind
from test_deploy_support import NATIVE, conv, engine, linear, residual_graph

pytestmark = pytest.mark.skipif(not NATIVE, reason="the native library is not built (no compiler at install time)")

# (input channels, height, width), output channels, options
SHAPES: list[tuple[tuple[int, int, int], int, dict[str, Any]]] = [
    ((16, 8, 8), 16, {"padding": (1, 1)}),
    ((3, 11, 9), 17, {"padding": (1, 1)}),
    ((65, 6, 6), 33, {"padding": (1, 1)}),
    ((64, 9, 9), 70, {"stride": (2, 2), "padding": (1, 1)}),
    ((100, 7, 5), 129, {"padding": (1, 1)}),
    ((130, 5, 5), 100, {"kernel": (1, 1)}),
    ((30, 10, 10), 20, {"kernel": (1, 1), "stride": (2, 2)}),
    ((7, 12, 12), 5, {"padding": (2, 2), "dilation": (2, 2)}),
    ((9, 13, 8), 40, {"kernel": (5, 3), "padding": (3, 0), "dilation": (1, 2)}),
    ((12, 9, 9), 18, {"groups": 3, "padding": (1, 1)}),
    ((24, 7, 7), 24, {"groups": 24, "padding": (1, 1)}),
    ((132, 5, 5), 68, {"groups": 2, "padding": (1, 1), "stride": (1, 2)}),
    ((3, 20, 20), 64, {"kernel": (7, 7), "padding": (3, 3), "stride": (2, 2)}),
    ((4, 1, 31), 6, {"kernel": (1, 5), "padding": (0, 2)}),
    ((2, 4, 4), 3, {"kernel": (2, 2), "padding": (3, 3)}),
    ((260, 3, 3), 256, {"padding": (1, 1)}),
    ((9, 10, 6), 20, {}),  # this and the next: Winograd without and with more than the usual padding
    ((12, 14, 30), 40, {"padding": (2, 2)}),
]


@pytest.mark.parametrize("backend", NATIVE)
@pytest.mark.parametrize("kind", ["float", "signs", "bits"])
@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("case", range(len(SHAPES)))
def test_convolution(backend: str, kind: str, batch: int, case: int) -> None:
    shape, outputs, options = SHAPES[case]
    rng = np.random.default_rng(case)
    graph = Graph(shape, (conv(rng, shape, outputs, kind=kind, **options),))
    x = rng.standard_normal((batch, *shape)).astype(np.float32)
    x[:, :, 0, 0] = 0  # the sign of zero is -1
    # A batch goes image by image; a single image is split between threads, at any pixel.
    expected, actual = engine(graph, "numpy")(x), engine(graph, backend, threads=1 if batch > 1 else 3)(x)
    if kind == "bits":
        np.testing.assert_array_equal(actual, expected)  # integers until one product and one sum
    else:
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("backend", NATIVE)
@pytest.mark.parametrize("kind", ["float", "signs", "bits"])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (5, 3), (64, 10), (65, 257), (1000, 17), (4097, 31)])
def test_linear(backend: str, kind: str, inputs: int, outputs: int) -> None:
    rng = np.random.default_rng(inputs)
    graph = Graph((inputs,), (linear(rng, inputs, outputs, kind=kind),))
    x = rng.standard_normal((3, inputs)).astype(np.float32)
    expected, actual = engine(graph, "numpy")(x), engine(graph, backend, threads=2)(x)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("backend", NATIVE)
def test_bits_stay_packed_between_layers(backend: str) -> None:
    """Thresholds in place of scale, bias and sign: exact for negative, zero and tiny scales and for ties."""
    rng = np.random.default_rng(0)
    shape = (33, 9, 8)
    first = conv(rng, shape, 70, padding=(1, 1), name="a")
    first.tensors["scale"][:12] = [0, 0, 0, 1, 1, -1, -1, 0.5, -0.5, 1e-30, -1e-30, 1e30]  # pyright: ignore[reportIndexIssue]
    first.tensors["bias"][:12] = [1, -1, 0, 0, 3, 0, 3, -0.5, 0.5, 0, 0, 1]  # pyright: ignore[reportIndexIssue]
    second = conv(rng, (70, 9, 8), 70, padding=(2, 2), stride=(2, 2), name="b", source=1)
    third = conv(rng, (70, 6, 5), 10, name="c", source=2)
    graph = Graph(shape, (first, second, third))
    fast = engine(graph, backend)
    assert sum(op.packed_out for op in fast._backend.program.ops) == 2  # pyright: ignore[reportAttributeAccessIssue]
    x = rng.standard_normal((3, *shape)).astype(np.float32)
    np.testing.assert_array_equal(fast(x), engine(graph, "numpy")(x))


@pytest.mark.parametrize("backend", NATIVE)
@pytest.mark.parametrize("norm", [False, True])
def test_bits_stay_packed_through_a_max_pool(backend: str, norm: bool) -> None:
    """BatchNorm behind the pool may turn signs around, be constant, or hit zero exactly."""
    rng = np.random.default_rng(0)
    shape, channels = (33, 9, 8), 70
    first = conv(rng, shape, channels, padding=(1, 1), name="a")
    first.tensors["scale"][:4] = [0, 1, -1, 1e-30]  # pyright: ignore[reportIndexIssue]
    window = {"kernel": (3, 2), "stride": (2, 2), "padding": (1, 1), "dilation": (1, 2)}
    nodes = [first, Node("max_pool", "pool", (1,), window)]
    if norm:
        scale, bias = (rng.standard_normal(channels).astype(np.float32) for _ in range(2))
        scale[:6], bias[:6] = [0, 0, 0, 0.5, -0.5, -1], [1, -1, 0, 0, 0, -3]
        nodes += [Node("affine", "norm", (2,), {}, {"scale": scale, "bias": bias}), Node("relu", "relu", (3,))]
    nodes.append(conv(rng, (channels, 5, 4), 10, padding=(1, 1), name="b", source=len(nodes)))
    graph = Graph(shape, tuple(nodes))
    fast = engine(graph, backend, threads=2)
    kinds = [op.kind for op in fast._backend.program.ops]  # pyright: ignore[reportAttributeAccessIssue]
    assert kinds == [Kind.PACK_IMAGE, Kind.CONV_BITS, Kind.POOL_BITS, Kind.CONV_BITS, Kind.STORE]
    x = rng.standard_normal((3, *shape)).astype(np.float32)
    np.testing.assert_array_equal(fast(x), engine(graph, "numpy")(x))


@pytest.mark.parametrize("backend", NATIVE)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("batch", [0, 1, 2, 7])
def test_every_operation_together(backend: str, threads: int, batch: int) -> None:
    rng = np.random.default_rng(4)
    graph = residual_graph(rng)
    x = rng.standard_normal((batch, *graph.input_shape)).astype(np.float32)
    expected, fast = engine(graph, "numpy")(x), engine(graph, backend, threads)
    for _ in range(2):  # a second run finds the first one's memory
        np.testing.assert_allclose(fast(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", NATIVE)
@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("max_pool", {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1), "dilation": (1, 1)}),
        ("max_pool", {"kernel": (2, 1), "stride": (1, 3), "padding": (0, 0), "dilation": (3, 1)}),
        ("avg_pool", {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 1), "count_include_pad": True}),
        ("avg_pool", {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 1), "count_include_pad": False}),
        ("mean", {}),
        ("flatten", {}),
        ("relu", {}),
        ("sign", {}),
        ("clip", {"low": -0.25, "high": 0.5}),
        ("subsample", {"stride": (2, 3)}),
        ("pad", {"before": (2, 0, 1), "after": (3, 2, 0)}),
    ],
)
def test_other_operations(backend: str, op: str, attributes: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    for shape in [(1, 5, 6), (16, 7, 7), (37, 8, 9)]:
        graph = Graph(shape, (Node(op, op, (0,), attributes),))
        x = rng.standard_normal((2, *shape)).astype(np.float32)
        np.testing.assert_allclose(engine(graph, backend, 2)(x), engine(graph, "numpy")(x), rtol=1e-6, atol=1e-6)
