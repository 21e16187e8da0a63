"""Every operation of a packed graph in plain numpy: the reference that the native kernels are compared with, and the
engine where they aren't built. Values are (batch, channels, height, width) or (batch, features) in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from .bits import unpack_signs
from .graph import Node, weight_shape

Array = NDArray[np.float32]
Kernel = Callable[..., Array]


def sign(x: Array) -> Array:
    """+1 where x > 0, else -1."""
    return np.where(x > 0, np.float32(1), np.float32(-1))


def per_channel(tensor: Array, x: Array) -> Array:
    """A vector of constants in a shape that broadcasts over a value."""
    return tensor.reshape(1, -1, *[1] * (x.ndim - 2))


_ROOM = 2**24  # numbers that a convolution may copy at once: 64 MiB


def windows(x: Array, node: Node, fill: float) -> Array:
    """(batch, channels, output height, output width, kernel height, kernel width), a view where nothing is padded."""
    (top, left), kernel, stride = node["padding"], node["kernel"], node["stride"]
    dilation = node.attributes.get("dilation", (1, 1))
    if top or left:
        x = np.pad(x, ((0, 0), (0, 0), (top, top), (left, left)), constant_values=fill)
    reach = tuple(d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True))
    view = sliding_window_view(x, reach, axis=(2, 3))
    return view[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]


def finish(node: Node, y: Array) -> Array:
    """Scale and bias of a convolution or linear layer."""
    if "scale" in node.tensors:
        y = y * per_channel(node.tensors["scale"], y)
    if "bias" in node.tensors:
        y = y + per_channel(node.tensors["bias"], y)
    return y


def weight(node: Node, inputs: int) -> Array:
    """The weight as floats: +-1 where it is packed."""
    return unpack_signs(node.tensors["bits"], weight_shape(node, inputs)) if node.binary else node.tensors["weight"]


def convolve(node: Node, x: Array) -> Array:
    if node["sign_input"]:
        x = sign(x)
    w = weight(node, x.shape[1])
    groups, outputs = node["groups"], node["outputs"]
    view = windows(x, node, 0)
    batch, _, height, width = view.shape[:4]
    matrices = w.reshape(groups, outputs // groups, w[0].size).transpose(0, 2, 1)
    row = groups * w[0].size * width  # numbers in the columns of one row of one image
    images, rows = max(1, _ROOM // max(1, row * height)), max(1, _ROOM // max(1, row))
    y = np.empty((batch, outputs, height, width), np.float32)
    for i in range(0, batch, images):
        for top in range(0, height, rows):
            part = (slice(i, i + images), slice(None), slice(top, top + rows))
            y[part] = _product(view[part], matrices)
    return finish(node, y)


def _product(view: Array, matrices: Array) -> Array:
    """One matrix product a group: (pixels, depth) x (depth, outputs)."""
    batch, channels, height, width = view.shape[:4]
    groups, depth, outputs = matrices.shape
    columns = view.reshape(batch, groups, channels // groups, *view.shape[2:]).transpose(1, 0, 3, 4, 2, 5, 6)
    product = columns.reshape(groups, batch * height * width, depth) @ matrices
    product = product.reshape(groups, batch, height, width, outputs).transpose(1, 0, 4, 2, 3)
    return product.reshape(batch, groups * outputs, height, width)


def linear(node: Node, x: Array) -> Array:
    if node["sign_input"]:
        x = sign(x)
    return finish(node, x @ weight(node, x.shape[1]).T)


def affine(node: Node, x: Array) -> Array:
    return finish(node, x)


def prelu(node: Node, x: Array) -> Array:
    return np.where(x > 0, x, x * per_channel(node.tensors["slope"], x))


def max_pool(node: Node, x: Array) -> Array:
    return windows(x, node, -np.inf).max((4, 5))


def avg_pool(node: Node, x: Array) -> Array:
    total = windows(x, node, 0).sum((4, 5))
    inside = np.ones((1, 1, *x.shape[2:]), np.float32)
    counts = windows(inside, node, 1 if node["count_include_pad"] else 0).sum((4, 5))
    return total / counts


def pad(node: Node, x: Array) -> Array:
    return np.pad(x, ((0, 0), *zip(node["before"], node["after"], strict=True)))


KERNELS: dict[str, Kernel] = {
    "conv": convolve,
    "linear": linear,
    "affine": affine,
    "relu": lambda node, x: np.maximum(x, np.float32(0)),
    "clip": lambda node, x: np.clip(x, np.float32(node["low"]), np.float32(node["high"])),
    "prelu": prelu,
    "sign": lambda node, x: sign(x),
    "max_pool": max_pool,
    "avg_pool": avg_pool,
    "mean": lambda node, x: x.mean((2, 3), keepdims=True, dtype=np.float32),
    "flatten": lambda node, x: x.reshape(len(x), prod(x.shape[1:])),
    "add": lambda node, x, y: x + y,
    "concat": lambda node, *values: np.concatenate(values, 1),
    "subsample": lambda node, x: x[:, :, :: node["stride"][0], :: node["stride"][1]],
    "pad": pad,
}
