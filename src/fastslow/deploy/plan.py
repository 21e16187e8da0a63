"""From a graph to the flat program that the native library runs: memory and operands.

Values live in one arena, channels last. A value that a padded convolution reads has a margin of zeros around it; since
nobody writes margins, a buffer may be used again for any value of exactly the same geometry.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import FormatError
from .fuse import WEIGHTED, Step, fuse, groups_of, takes_signs
from .graph import Graph, Node, Shape
from .layouts import (
    ELEMENT_BYTES,
    SIGNS,
    aligned_zeros,
    bit_weights,
    channel_vector,
    float_weights,
    node_bits,
    round_up,
    sign_weights,
    tap_sums,
    thresholds,
    turned_signs,
)
from .native import BLOCK, TILES, Kind, Layout, Op, View

MAX_ARENA = 2**30
SLACK = 256  # a vector load at the end of a value may read past it


def _suits_winograd(node: Node, inputs: int, shape: Shape) -> bool:
    """Where transforming pays: enough channels to share it, and few enough that the weights stay in cache."""
    if node.op != "conv" or node["kernel"] != (3, 3) or node["stride"] != (1, 1) or node["dilation"] != (1, 1):
        return False
    even = shape[1] % 2 == 0 and shape[2] % 2 == 0
    return even and node["groups"] == 1 and inputs >= 8 and inputs * node["outputs"] <= 64 * 64


@dataclass(eq=False, repr=False)
class Memory:
    """Offsets in the arena, reused by geometry."""

    size: int = 0
    free: defaultdict[Any, list[int]] = field(default_factory=lambda: defaultdict(list))

    def take(
        self, shape: Shape, pixel: int, margin: tuple[int, int], fresh: bool, groups: int = 0
    ) -> tuple[View, Any, int]:
        """Packed signs say in how many ``groups``: the bits between these stay 0, which memory of floats wouldn't."""
        channels, height, width = shape if len(shape) == 3 else (shape[0], 1, 1)
        row = (width + 2 * margin[1]) * pixel
        size = round_up((height + 2 * margin[0]) * row + SLACK, 64)
        key = (channels, height, width, pixel, margin, groups)
        if self.free[key] and not fresh:
            start = self.free[key].pop()
        else:
            start = self.size
            self.size += size
        if self.size > MAX_ARENA:
            raise FormatError(f"the network's values need more than {MAX_ARENA} bytes a sample")
        offset = start + margin[0] * row + margin[1] * pixel
        return View(offset, row, pixel, height, width, channels), key, start


@dataclass(eq=False, repr=False)
class Program:
    """What `fastslow_run` needs; `keep` holds the arrays that the ops point into."""

    ops: Any
    names: list[str]
    arena_bytes: int
    scratch_bytes: int
    weight_bytes: int
    keep: list[NDArray[Any]]


def compile_program(graph: Graph, layout: Layout) -> Program:
    """Lower a checked graph for kernels that want 1-bit operands in `layout`."""
    return _Compiler(graph, layout).compile()


class _Compiler:
    def __init__(self, graph: Graph, layout: Layout) -> None:
        self.graph = graph
        self.layout = layout
        self.shapes = graph.shapes()
        self.steps = fuse(graph)
        self.memory = Memory()
        self.views: dict[Any, View] = {}  # by value, or by (value, groups) for packed signs
        self.slots: dict[Any, tuple[Any, int]] = {}
        self.last_use: dict[Any, int] = {}
        self.ops: list[Op] = []
        self.names: list[str] = []
        self.keep: list[NDArray[Any]] = []
        self.scratch = 64

    def compile(self) -> Program:
        self._find_uses()
        if self._input_is_signs():
            self._emit("input", Kind.PACK_IMAGE, out=self._sign_view(0, 1))
        else:
            self._emit("input", Kind.LOAD, out=self._view(0, pixel=self._input_pixel()))
        for number, step in enumerate(self.steps):
            self._lower(step)
            for key in [key for key, use in self.last_use.items() if use == number and key in self.slots]:
                place, offset = self.slots.pop(key)
                self.memory.free[place].append(offset)
        self._emit("output", Kind.STORE, in_=self.views[len(self.graph.nodes)])
        ops = (Op * len(self.ops))(*self.ops)
        weights = sum(array.nbytes for array in self.keep)
        return Program(ops, self.names, round_up(self.memory.size, 64), round_up(self.scratch, 64), weights, self.keep)

    def _find_uses(self) -> None:
        """The last step that reads each buffer; the packed signs of a value are a buffer of their own."""
        for number, step in enumerate(self.steps):
            for source in [*step.inputs, *([] if step.other is None else [step.other])]:
                self.last_use[source] = number
            if takes_signs(step.node) or step.packed:
                self.last_use[step.inputs[0], groups_of(step.node)] = number
        output = len(self.graph.nodes)
        self.last_use.pop(output, None)
        for step in reversed(self.steps):  # a buffer lives as long as the longest of its names
            if self._is_alias(step):
                source, kept = step.inputs[0], step.value == output or step.value not in self.last_use
                if kept:
                    self.last_use.pop(source, None)
                elif source in self.last_use:
                    self.last_use[source] = max(self.last_use[source], self.last_use[step.value])

    def _is_alias(self, step: Step) -> bool:
        """One pixel is a vector already: flattening it gives the same memory another name."""
        return step.node.op == "flatten" and math.prod(self.shapes[step.inputs[0]][1:]) == 1

    def _input_is_signs(self) -> bool:
        """Whether nothing but the signs of an image are read."""
        readers = [step for step in self.steps if 0 in step.inputs or step.other == 0]
        signs = all(takes_signs(step.node) and groups_of(step.node) == 1 and step.other != 0 for step in readers)
        return signs and len(self.shapes[0]) == 3

    def _input_pixel(self) -> int | None:
        """Convolutions read single channels, so an input that only they read needs no padding to whole vectors."""
        readers = [step for step in self.steps if 0 in step.inputs or step.other == 0]
        plain = all(step.node.op == "conv" and not step.node["sign_input"] and step.other != 0 for step in readers)
        return 4 * self.shapes[0][0] if plain and len(self.shapes[0]) == 3 else None

    def _margin(self, value: int, *, signs: bool) -> tuple[int, int]:
        pads = [
            step.node["padding"]
            for step in self.steps
            if step.node.op == "conv" and step.inputs[0] == value and step.node["sign_input"] == signs
        ]
        return (max((pad[0] for pad in pads), default=0), max((pad[1] for pad in pads), default=0))

    def _view(self, value: int, *, pixel: int | None = None, fresh: bool = False) -> View:
        shape = self.shapes[value]
        size = pixel or 4 * round_up(shape[0], BLOCK)
        view, place, offset = self.memory.take(shape, size, self._margin(value, signs=False), fresh)
        self.views[value] = view
        if not fresh:
            self.slots[value] = (place, offset)
        return view

    def _sign_view(self, value: int, groups: int) -> View:
        key = (value, groups)
        shape = self.shapes[value]
        elements = groups * -(-(shape[0] // groups) // SIGNS[self.layout])
        pixel = elements * ELEMENT_BYTES[self.layout]
        view, place, offset = self.memory.take(shape, pixel, self._margin(value, signs=True), False, groups)
        self.views[key] = view
        self.slots[key] = (place, offset)
        return view

    def _emit(self, name: str, kind: Kind, **fields: Any) -> Op:
        op = Op(kind=kind, kernel=(1, 1), stride=(1, 1), dilation=(1, 1), groups=1, low=-math.inf, high=math.inf)
        for key, value in fields.items():
            setattr(op, key, value)
        self.ops.append(op)
        self.names.append(name)
        return op

    def _pointer(self, array: NDArray[Any] | None) -> int | None:
        if array is None:
            return None
        # To whole cache lines: a vector that lies across two is two loads.
        placed = aligned_zeros(array.nbytes).view(array.dtype).reshape(array.shape)
        placed[...] = array
        self.keep.append(placed)
        return placed.ctypes.data

    def _lower(self, step: Step) -> None:
        node = step.node
        common: dict[str, Any] = {"low": step.low, "high": step.high}
        if step.other is not None:
            common |= {"has_other": 1, "other": self.views[step.other]}
        if node.op in WEIGHTED:
            self._lower_weights(step, common)
            return
        if step.packed:
            self._lower_bit_pool(step)
            return
        source = self.views[step.inputs[0]]
        if self._is_alias(step):
            self.views[step.value] = source
            return
        if node.op in ("concat", "pad", "subsample"):
            self._lower_copies(step)
            return
        out = self._view(step.value)
        if node.op == "add":
            common |= {"has_other": 1, "other": self.views[step.inputs[1]]}
        for attribute in ("kernel", "stride", "padding", "dilation"):
            if attribute in node.attributes:
                common[attribute] = node[attribute]
        if node.op == "relu":
            common |= {"low": 0.0}
        if node.op == "clip":
            common |= {"low": node["low"], "high": node["high"]}
        channels = self.shapes[step.value][0]
        for role, name in (("scale", "scale"), ("slope", "scale"), ("bias", "bias")):
            if role in node.tensors:
                common[name] = self._pointer(channel_vector(node.tensors[role], channels))
        common["count_pad"] = int(node.attributes.get("count_include_pad", False))
        self._emit(node.name, _KINDS[node.op], in_=source, out=out, **common)

    def _lower_bit_pool(self, step: Step) -> None:
        window = {attribute: step.node[attribute] for attribute in ("kernel", "stride", "padding", "dilation")}
        source, out = self.views[step.inputs[0], 1], self._sign_view(step.value, 1)
        turned = self._pointer(turned_signs(step.norm, out.channels, self.layout))
        self._emit(step.node.name, Kind.POOL_BITS, in_=source, out=out, flip=turned, **window)

    def _lower_copies(self, step: Step) -> None:
        node = step.node
        # Zero padding relies on memory that nobody wrote before.
        out = self._view(step.value, fresh=node.op == "pad")
        channel = 0
        for source in step.inputs:
            shift = {"stride": node["stride"]} if node.op == "subsample" else {}
            if node.op == "pad":
                channel, *pixels = node["before"]
                shift = {"pixel_shift": tuple(pixels)}
            view = self.views[source]
            self._emit(node.name, Kind.COPY, in_=view, out=out, channel_shift=channel, **shift)
            channel += view.channels

    def _lower_weights(self, step: Step, common: dict[str, Any]) -> None:
        node, source = step.node, step.inputs[0]
        inputs = self.shapes[source][0]
        groups = groups_of(node)
        kernel = node["kernel"] if node.op == "conv" else (1, 1)
        taps = kernel[0] * kernel[1]
        if node.op == "conv":
            common |= {key: node[key] for key in ("kernel", "stride", "padding", "dilation", "groups")}
        for role, neutral in (("scale", 1), ("bias", 0)):
            default = np.full(1, neutral, np.float32) if takes_signs(node) else None  # which the kernel then expects
            common[role] = self._pointer(channel_vector(node.tensors.get(role, default), node["outputs"]))
        self.scratch = max(self.scratch, taps * 24 + 128)  # runs, and taps outside the image
        if not node.binary:
            weights: NDArray[Any] = float_weights(node.tensors["weight"], groups)
            kind, view = Kind.CONV_FLOAT, self.views[source]
        elif not node["sign_input"]:
            weights = sign_weights(node_bits(node, inputs), groups)
            view = self.views[source]
            if _suits_winograd(node, inputs, self.shapes[step.value]):
                kind = Kind.CONV_WINOGRAD
                weights_size = (inputs + 1) * round_up(node["outputs"], BLOCK)
                tiles_size = TILES * round_up(inputs, BLOCK) + BLOCK + TILES * BLOCK
                self.scratch = max(self.scratch, 4 * 16 * (weights_size + tiles_size))
            else:
                kind = Kind.CONV_SIGNS
                self.scratch = max(self.scratch, round_up(taps * 16, 64) + taps * inputs // groups * BLOCK * 4)
        else:
            bits = node_bits(node, inputs)
            weights = bit_weights(bits, taps, groups, self.layout)
            kind, view = Kind.CONV_BITS, self._signs(source, groups, node.name)
            self.scratch = max(self.scratch, taps * 20 + 64 + 48 * 16 * 32 + 512 * 64 * 2)
            if self.layout is Layout.NIBBLES:  # a copy of the input, two bytes a nibble
                rows = view.height + 2 * common.get("padding", (0, 0))[0]
                self.scratch = max(self.scratch, round_up(taps * 16, 64) + 2 * rows * view.row + 64)
            else:
                common["tap_sums"] = self._pointer(tap_sums(bits, taps))
            if step.packed:
                limits, flips = thresholds(node, bits.shape[1], step.norm)
                common |= {"packed_out": 1, "threshold": self._pointer(limits), "flip": self._pointer(flips)}
        common["weight"] = self._pointer(weights)
        out = self._sign_view(step.value, 1) if step.packed else self._view(step.value)
        self._emit(node.name, kind, in_=view, out=out, **common)

    def _signs(self, source: int, groups: int, name: str) -> View:
        """The packed signs of a value: written by its own layer, by an earlier reader, or here."""
        key = (source, groups)
        if key not in self.views:
            view = self._sign_view(source, groups)
            self._emit(f"{name}.pack", Kind.PACK_SIGNS, in_=self.views[source], out=view, groups=groups)
        return self.views[key]


_KINDS = {
    "affine": Kind.AFFINE,
    "relu": Kind.AFFINE,
    "clip": Kind.AFFINE,
    "prelu": Kind.PRELU,
    "sign": Kind.SIGN,
    "max_pool": Kind.MAX_POOL,
    "avg_pool": Kind.AVERAGE_POOL,
    "mean": Kind.MEAN,
    "flatten": Kind.FLATTEN,
    "add": Kind.ADD,
}
