"""From a torch model to the small graph of `graph.py`.

`torch.fx` records which modules and functions the model calls; this module walks that record once with shapes in
place of tensors, so `x.view(x.size(0), -1)` and other arithmetic on sizes are just evaluated.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.fx.node import map_aggregate, map_arg
from torch.nn.modules.dropout import _DropoutNd

from ..layers import BINARY_OF, BinaryLayer, Sign
from .errors import UnsupportedLayerError
from .graph import Graph, GraphError, Node, Shape, canonical, infer
from .trace_layers import LAYERS, Builder, add_pool, add_pool_to, refuse_hooks

SUPPORTED = (
    "Conv1d, Conv2d, Linear, BatchNorm1d, BatchNorm2d, ReLU, ReLU6, Hardtanh, LeakyReLU, PReLU, Sign, max, average and "
    "global average pooling, flatten, add, concatenation of channels, zero padding, strided slices, dropout"
)
BATCH = None  # the one unknown size
VIEWS = ("flatten", "subsample")  # share their input's memory in torch


@dataclass(frozen=True)
class Value:
    """A tensor of the traced model: its number in the graph, and its shape as torch sees it, without the batch."""

    index: int
    shape: Shape


class _Proxy(fx.Proxy):
    """Records ``x += y`` as what it is; the class above would make a new tensor of it."""

    def __iadd__(self, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.iadd, (self, other), {})


class _Tracer(fx.Tracer):
    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        # torch's own layers too, supported or not: an error should name the layer, not a function inside it.
        return isinstance(m, BinaryLayer | Sign) or super().is_leaf_module(m, module_qualified_name)


def trace(model: nn.Module, input_shape: Shape) -> Graph:
    """The graph of a model in evaluation mode for samples of `input_shape`; raises `UnsupportedLayerError`."""
    if isinstance(model, (*LAYERS, BinaryLayer)):
        raise UnsupportedLayerError(f"a {type(model).__name__} alone is no network; write nn.Sequential(layer)")
    refuse_hooks("the model", model)  # those of the layers in it are looked at when they are called
    try:
        recorded = _Tracer().trace(model)
        recorded.eliminate_dead_code(lambda step: step.op in ("placeholder", "output") or _in_place(model, step))
    except Exception as error:  # whatever the model's own code raises when its input is symbolic
        raise UnsupportedLayerError(
            f"can't trace {type(model).__name__}.forward ({error}); it must not branch on the values of tensors"
        ) from error
    return _Walk(model, input_shape).run(recorded)


_INPLACE_ARGUMENT = {F.relu: 1, F.relu6: 1, F.hardtanh: 3}  # where it stands if it isn't given by name


def _in_place(model: nn.Module, step: fx.Node) -> bool:
    """Whether a step changes its first argument. Dropout does nothing here, in place or not."""
    if step.op == "call_module":
        layer = model.get_submodule(str(step.target))
        return bool(getattr(layer, "inplace", False)) and not isinstance(layer, _DropoutNd)
    if step.op == "call_method":
        return str(step.target).endswith("_") and not str(step.target).endswith("__")
    if step.op != "call_function" or step.target in (F.dropout, F.dropout2d):
        return False
    place = _INPLACE_ARGUMENT.get(step.target)  # pyright: ignore[reportArgumentType, reportCallIssue]
    given = place is not None and len(step.args) > place and step.args[place]
    called = getattr(step.target, "__name__", "")
    return bool(given or step.kwargs.get("inplace") or step.target is operator.iadd or called.endswith("_"))


@dataclass
class _Walk(Builder):
    """The graph under construction."""

    model: nn.Module
    input_shape: Shape
    nodes: list[Node] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    memory: dict[int, int] = field(default_factory=dict)  # which earlier value a view shares its memory with

    def run(self, recorded: fx.Graph) -> Graph:
        self.shapes = [canonical(self.input_shape)]
        known: dict[fx.Node, Any] = {}
        result: Any = None
        for step in recorded.nodes:
            if step.op == "placeholder":
                if known:
                    raise UnsupportedLayerError(f"the model takes a second input, {step.name}; only one is supported")
                known[step] = Value(0, tuple(self.input_shape))
            elif step.op == "output":
                result = map_arg(step.args[0], known.__getitem__)
            else:
                known[step] = self._step(step, known)
                if isinstance(known[step], Value) and _in_place(self.model, step):  # not arithmetic on sizes
                    self._changed(step, known)
        if not isinstance(result, Value) or not self.nodes:
            raise UnsupportedLayerError("the model must return one tensor that it computed")
        if result.index != len(self.nodes):
            raise UnsupportedLayerError("the model must return what it computed last")
        return Graph(tuple(self.input_shape), tuple(self.nodes))

    def _changed(self, step: fx.Node, known: dict[fx.Node, Any]) -> None:
        """All other names of the tensor that a step changed mean its result from now on."""
        changed: Value = known[step.all_input_nodes[0]]
        result: Value = known[step]
        memory = self.memory.get(changed.index, changed.index)
        later = set(_recorded_after(step))
        for node, value in known.items():
            if not isinstance(value, Value) or node is step:
                continue
            if value.index == changed.index:
                known[node] = Value(result.index, value.shape)
            elif self.memory.get(value.index, value.index) == memory and not later.isdisjoint(node.users):
                raise UnsupportedLayerError(
                    f"{step.name} changes a tensor in place that is also used in another shape; write it without "
                    "inplace=True"
                )
        self.memory[result.index] = memory

    def add(
        self, op: str, name: str, inputs: list[Any], tensors: dict[str, Any] | None = None, **attributes: Any
    ) -> Any:
        unique, count = name, 1
        while unique in self.names:  # a module that is called twice
            unique, count = f"{name}_{count}", count + 1
        self.names.add(unique)
        node = Node(op, unique, tuple(value.index for value in inputs), attributes, tensors or {})
        try:
            shape = infer(len(self.nodes), node, self.shapes)
        except GraphError as error:
            raise UnsupportedLayerError(str(error)) from None
        self.nodes.append(node)
        self.shapes.append(shape)
        if op in VIEWS:
            self.memory[len(self.nodes)] = self.memory.get(node.inputs[0], node.inputs[0])
        sequence = any(len(value.shape) == 2 for value in inputs) and len(shape) == 3
        return Value(len(self.nodes), (shape[0], shape[2]) if sequence else shape)

    def _step(self, step: fx.Node, known: dict[fx.Node, Any]) -> Any:
        args = map_arg(step.args, known.__getitem__)
        kwargs = map_arg(step.kwargs, known.__getitem__)
        name = step.name
        if step.op == "get_attr":
            raise UnsupportedLayerError(
                f"the model uses its tensor {step.target} directly; only layers may hold constants: use "
                f"a layer such as BatchNorm or PReLU instead"
            )
        if step.op == "call_module":
            layer = self.model.get_submodule(str(step.target))
            refuse_hooks(str(step.target), layer)
            # Exact types: a user's subclass may compute something else. Binary layers stand for their torch class.
            kind = next((kind for kind in LAYERS if type(layer) in (kind, BINARY_OF.get(kind))), None)
            if kind is None:
                raise UnsupportedLayerError(f"{step.target} is a {type(layer).__name__}; supported are {SUPPORTED}")
            return LAYERS[kind](self, str(step.target), layer, *args, **kwargs)
        key = step.target if step.op == "call_function" else ("method", step.target)
        handler = _FUNCTIONS.get(key)
        if handler is not None:
            args, kwargs = _usual_names(args, kwargs)
            try:
                inspect.signature(handler).bind(self, name, *args, **kwargs)
            except TypeError as error:
                raise UnsupportedLayerError(f"{name}: {error}; such a call has no packed form") from None
            return handler(self, name, *args, **kwargs)
        if callable(step.target) and not _holds_value((args, kwargs)):
            try:
                return step.target(*args, **kwargs)  # arithmetic on sizes
            except TypeError:
                raise UnsupportedLayerError(
                    f"{name}: the model computes with the number of images; a packed model takes any, write -1 instead"
                ) from None
        called = getattr(step.target, "__name__", step.target)
        raise UnsupportedLayerError(f"the model calls {called}, which has no packed form; supported are {SUPPORTED}")


def _usual_names(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as torch calls them in its documentation; it also takes numpy's names, and the first one by name."""
    renamed = {{"axis": "dim", "keepdims": "keepdim"}.get(key, key): value for key, value in kwargs.items()}
    before = (renamed.pop("input"),) if "input" in renamed else ()
    after = (renamed.pop("shape"),) if "shape" in renamed else ()
    return (*before, *args, *after), renamed


def _recorded_after(step: fx.Node) -> Iterator[fx.Node]:
    while (step := step.next).op != "root":
        yield step


def _holds_value(arguments: Any) -> bool:
    found: list[Any] = []
    map_aggregate(arguments, lambda item: found.append(item) if isinstance(item, Value) else None)
    return bool(found)


def _add(walk: _Walk, name: str, left: Any, right: Any, alpha: float = 1) -> Any:
    if not (isinstance(left, Value) and isinstance(right, Value)):
        if not isinstance(left, Value) and not isinstance(right, Value):
            return left + right
        raise UnsupportedLayerError(f"{name} adds a constant; only two tensors can be added: use a layer with a bias")
    if alpha != 1:
        raise UnsupportedLayerError(f"{name}: add with alpha={alpha} is not supported")
    return walk.add("add", name, [left, right])


def _size(_: _Walk, __: str, x: Any, dim: int | None = None) -> Any:
    sizes = (BATCH, *x.shape)
    return sizes if dim is None else sizes[dim]


def _getattr(_: _Walk, __: str, x: Any, attribute: str) -> Any:
    if isinstance(x, Value) and attribute != "shape":
        raise UnsupportedLayerError(f"the model reads tensor.{attribute}, which has no packed form")
    return (BATCH, *x.shape) if isinstance(x, Value) else getattr(x, attribute)


def _flatten(walk: _Walk, name: str, x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    rank = len(x.shape) + 1
    if start_dim % rank != 1 or end_dim % rank != rank - 1:
        raise UnsupportedLayerError(f"{name}: only flatten(1), which keeps the batch, is supported")
    return x if rank == 2 else walk.add("flatten", name, [x])


def _reshape(walk: _Walk, name: str, x: Any, *sizes: Any) -> Any:
    wanted = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes
    flat = prod(x.shape)
    if len(wanted) == 2 and wanted[0] in (BATCH, -1) and wanted[1] in (-1, flat) and wanted != (-1, -1):
        return _flatten(walk, name, x, 1)
    if wanted[1:] == x.shape:
        return x
    raise UnsupportedLayerError(f"{name}: reshape to {wanted} is not supported, only to (batch, features)")


def _mean(walk: _Walk, name: str, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    axes = {axis % 4 for axis in (dim if isinstance(dim, tuple | list) else (dim,)) if isinstance(axis, int)}
    if len(x.shape) == 3 and axes == {2, 3}:
        pooled = walk.add("mean", name, [x])
        return pooled if keepdim else walk.add("flatten", f"{name}_flat", [pooled])
    raise UnsupportedLayerError(f"{name}: only the mean over height and width, mean((2, 3)), is supported")


def _slice(walk: _Walk, name: str, x: Any, index: Any) -> Any:
    if not isinstance(x, Value):
        return x[index]
    index = index if isinstance(index, tuple) else (index,)
    if (
        len(x.shape) == 3
        and len(index) == 4
        and all(isinstance(part, slice) and part == slice(None) for part in index[:2])
        and all(isinstance(part, slice) and part.start in (None, 0) and part.stop is None for part in index[2:])
    ):
        return walk.add("subsample", name, [x], stride=tuple(part.step or 1 for part in index[2:]))
    raise UnsupportedLayerError(f"{name}: only strided slices of pixels, x[:, :, ::2, ::2], are supported")


def _pad(walk: _Walk, name: str, x: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Any:
    pads = [*pad, *[0] * (6 - len(pad))]
    if mode != "constant" or value not in (None, 0) or len(x.shape) != 3 or len(pads) != 6 or min(pads) < 0:
        raise UnsupportedLayerError(f"{name}: only padding of an image with zeros is supported")
    return walk.add("pad", name, [x], before=tuple(pads[4::-2]), after=tuple(pads[5::-2]))


def _concat(walk: _Walk, name: str, tensors: Any, dim: int = 0) -> Any:
    if dim != 1:
        raise UnsupportedLayerError(f"{name}: only concatenation along channels, torch.cat(..., 1), is supported")
    return walk.add("concat", name, list(tensors))


def _clamp(walk: _Walk, name: str, x: Any, min: float | None = None, max: float | None = None) -> Any:
    if min == 0 and max is None:
        return walk.add("relu", name, [x])
    if min is None or max is None:
        raise UnsupportedLayerError(f"{name}: clamp needs both bounds")
    return walk.add("clip", name, [x], low=float(min), high=float(max))


def _relu(walk: _Walk, name: str, x: Any, inplace: bool = False) -> Any:
    return walk.add("relu", name, [x])


def _hardtanh(walk: _Walk, name: str, x: Any, min_val: float = -1, max_val: float = 1, inplace: bool = False) -> Any:
    return walk.add("clip", name, [x], low=float(min_val), high=float(max_val))


def _relu6(walk: _Walk, name: str, x: Any, inplace: bool = False) -> Any:
    return walk.add("clip", name, [x], low=0.0, high=6.0)


def _same(_: _Walk, __: str, x: Any, *args: Any, **kwargs: Any) -> Any:
    return x


def _dropout(_: _Walk, name: str, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if training and p:
        raise UnsupportedLayerError(
            f"{name}: this dropout drops in evaluation too; write F.dropout(x, {p:g}, training=self.training), or use "
            "nn.Dropout"
        )
    return x


def _max_pool(
    walk: _Walk,
    name: str,
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    return add_pool(walk, "max_pool", name, x, kernel_size, stride, padding, dilation, ceil_mode)


def _avg_pool(
    walk: _Walk,
    name: str,
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    if divisor_override is not None:
        raise UnsupportedLayerError(f"{name}: divisor_override is not supported")
    return add_pool(walk, "avg_pool", name, x, kernel_size, stride, padding, None, ceil_mode, count_include_pad)


def _adaptive(walk: _Walk, name: str, x: Any, output_size: Any) -> Any:
    return add_pool_to(walk, name, x, output_size)


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys([operator.add, operator.iadd, torch.add, ("method", "add"), ("method", "add_")], _add),
    **dict.fromkeys([F.relu, torch.relu, ("method", "relu"), ("method", "relu_")], _relu),
    **dict.fromkeys([torch.clamp, ("method", "clamp"), ("method", "clamp_")], _clamp),
    **dict.fromkeys([torch.flatten, ("method", "flatten")], _flatten),
    **dict.fromkeys([torch.reshape, ("method", "view"), ("method", "reshape")], _reshape),
    **dict.fromkeys([torch.mean, ("method", "mean")], _mean),
    **dict.fromkeys([F.max_pool1d, F.max_pool2d], _max_pool),
    **dict.fromkeys([torch.max_pool1d, torch.max_pool2d], _max_pool),
    **dict.fromkeys([F.avg_pool1d, F.avg_pool2d], _avg_pool),
    **dict.fromkeys([F.adaptive_avg_pool1d, F.adaptive_avg_pool2d], _adaptive),
    **dict.fromkeys([torch.cat, torch.concat], _concat),
    **dict.fromkeys([F.dropout, F.dropout2d], _dropout),
    **dict.fromkeys([("method", "contiguous"), ("method", "detach")], _same),
    ("method", "size"): _size,
    getattr: _getattr,
    operator.getitem: _slice,
    F.pad: _pad,
    F.hardtanh: _hardtanh,
    F.relu6: _relu6,
}
