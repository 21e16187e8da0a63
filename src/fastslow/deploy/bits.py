"""One bit a weight: the layout of `docs/format.md`, and what the kernels want instead.

On disk, bit ``i`` of filter ``o`` is ``packed[o, i // 8] >> (i % 8) & 1``; 1 means +1 and 0 means -1. The bits of a
filter run over (kernel row, kernel column, input channel), the last fastest; unused bits of its last byte are 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def row_bytes(depth: int) -> int:
    """Bytes of one filter with `depth` weights."""
    return -(-depth // 8)


def pack_signs(weight: NDArray[np.floating]) -> Bytes:
    """Signs of an (O, I, *kernel) or (O, I) weight in the order of the file."""
    last = np.moveaxis(weight, 1, -1)
    return np.packbits(last.reshape(len(weight), -1) > 0, axis=1, bitorder="little")


def unpack_bits(packed: Bytes, depth: int) -> Bytes:
    """(O, depth) zeros and ones."""
    return np.unpackbits(packed, axis=1, count=depth, bitorder="little")


def unpack_signs(packed: Bytes, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The (O, I, *kernel) weight of +-1.0 that `pack_signs` was given, up to its scale."""
    outputs, inputs, *kernel = shape
    bits = unpack_bits(packed, int(np.prod(shape[1:], dtype=np.int64)))
    signs = bits.astype(np.float32) * 2 - 1
    return np.ascontiguousarray(np.moveaxis(signs.reshape(outputs, *kernel, inputs), -1, 1))


def padding_is_zero(packed: Bytes, depth: int) -> bool:
    """Whether the unused bits are 0, as the kernels rely on."""
    return depth % 8 == 0 or not np.any(packed[:, -1] >> (depth % 8))
