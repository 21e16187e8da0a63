"""Weights in the order in which the native kernels read them. `native/program.h` names the layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bits import unpack_bits
from .graph import Node, weight_shape
from .native import BLOCK, Layout

UNIT = {Layout.WORDS: 16, Layout.NIBBLES: 32}  # output channels in a block of 1-bit weights
SIGNS = {Layout.WORDS: 64, Layout.NIBBLES: 4}  # channels in an element of 1-bit activations
ELEMENT_BYTES = {Layout.WORDS: 8, Layout.NIBBLES: 1}


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def aligned_zeros(size: int) -> NDArray[np.uint8]:
    """Bytes that begin at a cache line."""
    block = np.zeros(size + 64, np.uint8)
    start = -block.ctypes.data % 64
    return block[start : start + size]


def grouped(rows: NDArray[Any], groups: int, block: int) -> NDArray[Any]:
    """(O, K) -> (groups, blocks, K, block): output channels fastest, filled up with zeros."""
    outputs, depth = len(rows) // groups, rows.shape[1]
    filled = np.zeros((groups, round_up(outputs, block), depth), rows.dtype)
    filled[:, :outputs] = rows.reshape(groups, outputs, depth)
    return np.ascontiguousarray(filled.reshape(groups, -1, block, depth).transpose(0, 1, 3, 2))


def float_weights(weight: NDArray[np.float32], groups: int) -> NDArray[np.float32]:
    """(O, I, *kernel) -> [group][block][tap and channel][BLOCK]."""
    rows = np.moveaxis(weight, 1, -1).reshape(len(weight), -1)
    return grouped(np.ascontiguousarray(rows, np.float32), groups, BLOCK)


def sign_weights(bits: NDArray[np.uint8], groups: int) -> NDArray[np.uint16]:
    """(O, K) zeros and ones -> [group][block][tap and channel], one uint16 for BLOCK channels."""
    return np.packbits(grouped(bits, groups, BLOCK), axis=3, bitorder="little").view("<u2")


def bit_weights(bits: NDArray[np.uint8], taps: int, groups: int, layout: Layout) -> NDArray[Any]:
    """(O, K) zeros and ones -> [group][block][tap and element][UNIT]; an element holds 4 or 64 channels of a tap."""
    inputs = bits.shape[1] // taps
    filled = np.zeros((len(bits), taps, round_up(inputs, max(SIGNS[layout], 8))), np.uint8)
    filled[:, :, :inputs] = bits.reshape(len(bits), taps, inputs)
    packed = np.packbits(filled, axis=2, bitorder="little")
    if layout is Layout.WORDS:
        elements: NDArray[Any] = packed.view("<u8")
    else:
        elements = _nibbles(packed)[:, :, : -(-inputs // 4)]
    blocks = grouped(elements.reshape(len(bits), -1), groups, UNIT[layout])
    if layout is Layout.WORDS:
        return blocks
    # Byte 2i of a unit is channel i, byte 2i + 1 is channel i + 16: the kernel adds up the halves of words apart.
    return np.ascontiguousarray(blocks.reshape(*blocks.shape[:-1], 2, -1).swapaxes(-1, -2)).reshape(blocks.shape)


def tap_sums(bits: NDArray[np.uint8], taps: int) -> NDArray[np.int32]:
    """Sum of the +-1 weights under each tap: [tap][output channel], rows padded to BLOCK, and one block more."""
    inputs = bits.shape[1] // taps
    sums = 2 * bits.reshape(len(bits), taps, inputs).sum(2, dtype=np.int32).T - inputs
    row = round_up(len(bits), BLOCK)
    filled = np.zeros(taps * row + BLOCK, np.int32)
    filled[: taps * row].reshape(taps, row)[:, : len(bits)] = sums
    return filled


def node_bits(node: Node, inputs: int) -> NDArray[np.uint8]:
    """(O, K) zeros and ones of a binary node."""
    return unpack_bits(node.tensors["bits"], int(np.prod(weight_shape(node, inputs)[1:])))


def channel_vector(tensor: NDArray[Any] | None, channels: int) -> NDArray[np.float32] | None:
    """Constants of each channel with a block of zeros behind them, so that a vector load at the end stays inside."""
    if tensor is None:
        return None
    filled = np.zeros(round_up(channels, BLOCK) + BLOCK, np.float32)
    filled[:channels] = tensor
    return filled


def thresholds(node: Node, depth: int, norm: Node | None = None) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Integers such that `scale * dot + bias > 0` in float32 exactly where `(dot > threshold) != flip`.

    The left side is monotone in `dot`, also after rounding, so bisection over the integers finds the step. `norm` is
    applied to it first where a max-pool stands between; where it turns signs around, the flip is for the turned sign.
    """
    channels = node["outputs"]
    scale, bias = _affine(node, channels)
    norm_scale, norm_bias = _affine(norm, channels)
    turned = norm_scale < 0
    flip = (scale < 0) != turned
    low, high = np.full(channels, -depth - 1, np.int64), np.full(channels, depth, np.int64)
    while (low < high).any():  # the largest dot whose bit is `flip`, or -depth - 1 if all have the other
        middle = (low + high + 1) // 2
        with np.errstate(over="ignore", invalid="ignore"):  # an infinite product has the right sign
            positive = norm_scale * (middle.astype(np.float32) * scale + bias) + norm_bias > 0
        low, high = np.where(positive == flip, middle, low), np.where(positive == flip, high, middle - 1)
    size = round_up(channels, BLOCK) + BLOCK
    limits, flips = np.zeros(size, np.int32), np.zeros(size, np.uint8)
    limits[:channels], flips[:channels] = low, flip != turned
    return limits, np.packbits(flips, bitorder="little")


def turned_signs(norm: Node | None, channels: int, layout: Layout) -> NDArray[Any]:
    """The bits that `norm` behind a max-pool turns around, as one pixel of packed signs."""
    turned = np.zeros(round_up(channels, 64), np.uint8)
    turned[:channels] = _affine(norm, channels)[0] < 0
    packed = np.packbits(turned, bitorder="little")
    return packed if layout is Layout.WORDS else _nibbles(packed)


def _nibbles(packed: NDArray[np.uint8]) -> NDArray[Any]:
    """Bytes to twice as many half bytes, along the last axis."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


def _affine(node: Node | None, channels: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    tensors = node.tensors if node else {}
    scale, bias = tensors.get("scale", np.ones(1, np.float32)), tensors.get("bias", np.zeros(1, np.float32))
    return np.broadcast_to(scale, channels), np.broadcast_to(bias, channels)
