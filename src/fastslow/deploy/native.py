"""The native kernels as Python sees them: a shared library called through ctypes, found or not found at import.

The structures mirror `native/program.h`. Calls release the interpreter lock.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import os
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum
from functools import cache
from typing import Any

ABI_VERSION = 4
BLOCK = 16  # channels of a float value are padded to a multiple of this
TILES = 24  # squares that CONV_WINOGRAD transforms at a time


class Kind(IntEnum):
    LOAD = 0
    STORE = 1
    CONV_FLOAT = 2
    CONV_SIGNS = 3
    CONV_BITS = 4
    PACK_SIGNS = 5
    MAX_POOL = 6
    AVERAGE_POOL = 7
    MEAN = 8
    ADD = 9
    AFFINE = 10
    PRELU = 11
    SIGN = 12
    FLATTEN = 13
    COPY = 14
    CONV_WINOGRAD = 15
    PACK_IMAGE = 16
    POOL_BITS = 17


class Layout(IntEnum):
    WORDS = 0
    NIBBLES = 1


class View(ctypes.Structure):
    _fields_ = [
        ("offset", c_int64),
        ("row", c_int64),
        ("pixel", c_int32),
        ("height", c_int32),
        ("width", c_int32),
        ("channels", c_int32),
    ]


class Op(ctypes.Structure):
    _fields_ = [
        ("kind", c_int32),
        ("has_other", c_int32),
        ("packed_out", c_int32),
        ("count_pad", c_int32),
        ("in_", View),
        ("other", View),
        ("out", View),
        ("kernel", c_int32 * 2),
        ("stride", c_int32 * 2),
        ("padding", c_int32 * 2),
        ("dilation", c_int32 * 2),
        ("groups", c_int32),
        ("channel_shift", c_int32),
        ("pixel_shift", c_int32 * 2),
        ("low", c_float),
        ("high", c_float),
        ("weight", c_void_p),
        ("scale", c_void_p),
        ("bias", c_void_p),
        ("tap_sums", c_void_p),
        ("threshold", c_void_p),
        ("flip", c_void_p),
    ]


class Program(ctypes.Structure):
    _fields_ = [
        ("backend", c_int32),
        ("op_count", c_int32),
        ("pool", c_void_p),
        ("ops", POINTER(Op)),
        ("memory", c_void_p),
        ("region", c_int64),
        ("scratch", c_int64),
        ("input_size", c_int64),
        ("output_size", c_int64),
    ]


@cache
def library() -> Any | None:
    """The shared library, or None where it was not built. FASTSLOW_NATIVE names another one (or ``off``)."""
    chosen = os.environ.get("FASTSLOW_NATIVE")
    if chosen == "off":
        return None
    own = [os.path.join(os.path.dirname(__file__), f"_native{end}") for end in importlib.machinery.EXTENSION_SUFFIXES]
    path = next(filter(os.path.isfile, [chosen] if chosen else own), None)
    if path is None:
        return None
    native = ctypes.CDLL(path)
    native.fastslow_abi.restype = c_int32
    if native.fastslow_abi() != ABI_VERSION:
        return None  # built from other sources, an old checkout say: numpy is right, it would not be
    for size, structure in ((native.fastslow_op_size, Op), (native.fastslow_program_size, Program)):
        size.restype = c_int32
        if size() != ctypes.sizeof(structure):
            return None
    native.fastslow_backend_name.argtypes = [c_int32]
    native.fastslow_backend_name.restype = c_char_p
    native.fastslow_backend_layout.argtypes = [c_int32]
    native.fastslow_backend_layout.restype = c_int32
    native.fastslow_pool_new.argtypes = [c_int32]
    native.fastslow_pool_new.restype = c_void_p
    native.fastslow_pool_free.argtypes = [c_void_p]
    native.fastslow_pool_free.restype = None
    native.fastslow_run.restype = c_int32
    native.fastslow_run.argtypes = [POINTER(Program), c_void_p, c_void_p, c_int64, POINTER(c_double)]
    return native


def backends() -> list[str]:
    """Instruction sets with native kernels on this machine, the best first; empty without the library."""
    native = library()
    names: list[str] = []
    while native is not None and (name := native.fastslow_backend_name(len(names))) is not None:
        names.append(name.decode())
    return names
