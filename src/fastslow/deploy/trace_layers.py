"""How each torch layer is written in the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .. import layers
from ..layers import BinaryLayer, Sign
from .bits import pack_signs
from .errors import UnsupportedLayerError


class Builder(Protocol):
    """What `trace.py` offers here: append a node, get its value."""

    def add(
        self, op: str, name: str, inputs: list[Any], tensors: dict[str, Any] | None = None, **attributes: Any
    ) -> Any: ...


def pair(value: Any, sequence: bool, fill: int) -> tuple[int, int]:
    """An argument of a 1-d or 2-d layer for (height, width); a sequence has height 1."""
    numbers = tuple(value) if isinstance(value, tuple | list) else (value,)
    if sequence:
        return (fill, numbers[0])
    return (numbers[0], numbers[-1])


def array(tensor: Tensor) -> NDArray[np.float32]:
    return tensor.detach().to("cpu", torch.float32).numpy().copy()


def weight_tensors(layer: nn.Module) -> dict[str, NDArray[Any]]:
    """Bits and scale where every filter holds one magnitude (binary or frozen layers), else the float weight."""
    weight = array(layer.binary_weight if isinstance(layer, BinaryLayer) else layer.weight)  # pyright: ignore[reportArgumentType]
    size = np.abs(weight).reshape(len(weight), -1)
    tensors: dict[str, NDArray[Any]]
    binary = isinstance(layer, BinaryLayer) or size.shape[1] > 1  # any number is one magnitude: not worth its scale
    if binary and (size == size[:, :1]).all():
        tensors = {"bits": pack_signs(weight)}
        if (size[:, 0] != 1).any():
            tensors["scale"] = size[:, 0].copy()
    else:
        tensors = {"weight": weight}
    if isinstance(layer.bias, Tensor):
        tensors["bias"] = array(layer.bias)
    return tensors


def _takes_signs(hook: Any) -> bool:
    return hook is layers.__dict__.get("_sign_of_input")  # left by `freeze`


def refuse_hooks(name: str, module: nn.Module) -> None:
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    if not all(map(_takes_signs, hooks)):
        raise UnsupportedLayerError(f"{name} has a forward hook, which tracing can't see; remove it before packing")


def _input(build: Builder, name: str, layer: nn.Module, x: Any) -> Any:
    """What the layer multiplies with: its input, or the signs of it."""
    note = getattr(layer, "deploy_note", None)
    if note is not None:
        raise UnsupportedLayerError(f"{name} can't be packed: {note}")
    frozen_signs = any(map(_takes_signs, layer._forward_pre_hooks.values()))
    bits = getattr(layer, "input_bits", 32)
    if bits not in (1, 32):
        raise UnsupportedLayerError(f"{name} has {bits}-bit inputs; supported are 1 and 32")
    return build.add("sign", f"{name}.sign", [x]) if bits == 1 or frozen_signs else x


def _conv(build: Builder, name: str, layer: Any, x: Any) -> Any:
    sequence = len(layer.kernel_size) == 1
    padding = layer.padding
    if padding == "valid":
        padding = 0
    if padding == "same":
        reach = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        if any(size % 2 for size in reach):
            raise UnsupportedLayerError(f"{name}: padding='same' with an even kernel is not symmetric; use F.pad")
        padding = tuple(size // 2 for size in reach)
    if layer.padding_mode != "zeros":
        raise UnsupportedLayerError(f"{name}: padding_mode={layer.padding_mode!r} is not supported, only 'zeros'")
    tensors = weight_tensors(layer)
    if sequence and "weight" in tensors:
        tensors["weight"] = tensors["weight"][:, :, None, :]
    return build.add(
        "conv",
        name,
        [_input(build, name, layer, x)],
        tensors,
        kernel=pair(layer.kernel_size, sequence, 1),
        stride=pair(layer.stride, sequence, 1),
        padding=pair(padding, sequence, 0),
        dilation=pair(layer.dilation, sequence, 1),
        groups=layer.groups,
        outputs=layer.out_channels,
        sign_input=False,
    )


def _linear(build: Builder, name: str, layer: Any, x: Any) -> Any:
    if len(x.shape) != 1:
        raise UnsupportedLayerError(
            f"{name}: a Linear layer needs (batch, features), got (batch, {x.shape}); flatten it"
        )
    x = _input(build, name, layer, x)
    return build.add("linear", name, [x], weight_tensors(layer), outputs=layer.out_features, sign_input=False)


def _batch_norm(build: Builder, name: str, layer: Any, x: Any) -> Any:
    if layer.running_mean is None:
        raise UnsupportedLayerError(f"{name} has no running statistics: its result depends on the batch")
    # In float64: folded into a scale it is the last rounding before the file.
    mean, variance = layer.running_mean.double(), layer.running_var.double()
    scale = 1 / torch.sqrt(variance + layer.eps)
    shift = torch.zeros_like(mean)
    if layer.affine:
        scale, shift = scale * layer.weight.double(), layer.bias.double()
    constants = {"scale": scale, "bias": shift - mean * scale}
    return build.add("affine", name, [x], {role: tensor.detach().cpu().numpy() for role, tensor in constants.items()})


def add_pool(
    build: Builder,
    op: str,
    name: str,
    x: Any,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    count_include_pad: bool | None = None,
) -> Any:
    sequence = len(x.shape) == 2
    kernel = pair(kernel, sequence, 1)
    stride = pair(stride, sequence, 1) if stride not in (None, (), []) else kernel
    padding = pair(padding, sequence, 0)
    attributes: dict[str, Any] = {"kernel": kernel, "stride": stride, "padding": padding}
    reach = kernel
    if dilation is not None:
        attributes["dilation"] = pair(dilation, sequence, 1)
        reach = tuple(d * (k - 1) + 1 for d, k in zip(attributes["dilation"], kernel, strict=True))
    if count_include_pad is not None:
        attributes["count_include_pad"] = count_include_pad
    if ceil_mode:
        sizes = (1, x.shape[1]) if sequence else x.shape[1:]
        rest = [(n + 2 * p - k) % s for n, p, k, s in zip(sizes, padding, reach, stride, strict=True)]
        if any(rest):
            raise UnsupportedLayerError(f"{name}: ceil_mode=True matters for inputs of {sizes}; pad the input instead")
    return build.add(op, name, [x], **attributes)


def add_pool_to(build: Builder, name: str, x: Any, size: Any) -> Any:
    """Adaptive average pooling, where its windows are all alike."""
    sequence = len(x.shape) == 2
    height, width = (1, x.shape[1]) if sequence else x.shape[1:]
    rows, columns = pair(size, sequence, 1)
    rows, columns = rows or height, columns or width
    if (rows, columns) == (1, 1):
        return build.add("mean", name, [x])
    if height % rows or width % columns:
        raise UnsupportedLayerError(f"{name}: {height} x {width} pixels can't be pooled evenly to {rows} x {columns}")
    kernel = (height // rows, width // columns)
    return build.add("avg_pool", name, [x], kernel=kernel, stride=kernel, padding=(0, 0), count_include_pad=True)


def _max_pool(build: Builder, name: str, layer: Any, x: Any) -> Any:
    arguments = layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode
    return add_pool(build, "max_pool", name, x, *arguments)


def _avg_pool(build: Builder, name: str, layer: Any, x: Any) -> Any:
    if getattr(layer, "divisor_override", None) is not None:
        raise UnsupportedLayerError(f"{name}: divisor_override is not supported")
    arguments = layer.kernel_size, layer.stride, layer.padding, None, layer.ceil_mode, layer.count_include_pad
    return add_pool(build, "avg_pool", name, x, *arguments)


def _adaptive(build: Builder, name: str, layer: Any, x: Any) -> Any:
    return add_pool_to(build, name, x, layer.output_size)


def _flatten(build: Builder, name: str, layer: Any, x: Any) -> Any:
    rank = len(x.shape) + 1
    if layer.start_dim != 1 or layer.end_dim % rank != rank - 1:
        raise UnsupportedLayerError(f"{name}: only Flatten(1), which keeps the batch, is supported")
    return x if rank == 2 else build.add("flatten", name, [x])


def _clip(build: Builder, name: str, layer: Any, x: Any) -> Any:
    return build.add("clip", name, [x], low=float(layer.min_val), high=float(layer.max_val))


def _leaky(build: Builder, name: str, layer: Any, x: Any) -> Any:
    return build.add("prelu", name, [x], {"slope": np.array([layer.negative_slope], np.float32)})


def _zero_pad(build: Builder, name: str, layer: Any, x: Any) -> Any:
    left, right, top, bottom = layer.padding
    return build.add("pad", name, [x], before=(0, top, left), after=(0, bottom, right))


LAYERS: dict[type[nn.Module], Callable[..., Any]] = {
    nn.Conv1d: _conv,
    nn.Conv2d: _conv,
    nn.Linear: _linear,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.ReLU: lambda build, name, layer, x: build.add("relu", name, [x]),
    nn.Hardtanh: _clip,
    nn.ReLU6: _clip,
    nn.LeakyReLU: _leaky,
    nn.PReLU: lambda build, name, layer, x: build.add("prelu", name, [x], {"slope": array(layer.weight)}),
    Sign: lambda build, name, layer, x: build.add("sign", name, [x]),
    nn.MaxPool1d: _max_pool,
    nn.MaxPool2d: _max_pool,
    nn.AvgPool1d: _avg_pool,
    nn.AvgPool2d: _avg_pool,
    nn.AdaptiveAvgPool1d: _adaptive,
    nn.AdaptiveAvgPool2d: _adaptive,
    nn.Flatten: _flatten,
    nn.ZeroPad2d: _zero_pad,
    nn.Identity: lambda build, name, layer, x: x,
    nn.Dropout: lambda build, name, layer, x: x,
    nn.Dropout1d: lambda build, name, layer, x: x,
    nn.Dropout2d: lambda build, name, layer, x: x,
}
