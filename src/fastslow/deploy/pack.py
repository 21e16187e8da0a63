"""``pack``: a trained model as one small file that runs without torch."""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import __version__
from ..convert import binary_layers, unwrap
from ..files import write_atomically
from ..modes import evaluating, pass_zeros
from .errors import UnsupportedLayerError
from .fold import fold
from .format import from_bytes, to_bytes
from .graph import Graph, GraphError
from .header import Info
from .sizes import LayerSize, layer_sizes
from .trace import trace

log = logging.getLogger("fastslow")

DTYPES = ("float32", "float16")


@dataclass(frozen=True)
class Packed:
    """What was written: the sizes in bytes, in all and of each layer."""

    path: Path
    header_bytes: int
    payload_bytes: int
    layers: tuple[LayerSize, ...]

    @property
    def file_bytes(self) -> int:
        return self.header_bytes + self.payload_bytes

    @property
    def float_bytes(self) -> int:
        """The same layers in float32, before folding."""
        return sum(layer.float_bytes for layer in self.layers)

    def __str__(self) -> str:
        ratio = self.float_bytes / max(1, self.payload_bytes)
        return (
            f"{self.path}: {self.file_bytes} bytes = {self.payload_bytes} of weights + {self.header_bytes} of header; "
            f"the weights take {ratio:.1f}x less than {self.float_bytes} bytes in float32"
        )


def pack(
    model: nn.Module,
    path: str | Path,
    *,
    input_shape: Sequence[int] | None = None,
    example_input: Tensor | None = None,
    dtype: str = "float32",
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    classes: Sequence[str] = (),
    result: Mapping[str, Any] | None = None,
) -> Packed:
    """Write a model as a packed file, and report its size.

    Args:
        model: binary layers are packed to one bit a weight; the rest stays float, also layers of more bits and those
            of ``adabin``, which a warning names. The model is not changed.
        path: the file to write, by custom ``*.safetensors``.
        input_shape: the shape of one sample, without the batch; None takes that of `example_input`, else (3, 32, 32).
        example_input: a batch, for its shape only.
        dtype: of everything that is not a bit: ``"float32"`` or ``"float16"``.
        mean, std: how the training data was normalised, for each channel (of pixels scaled to 0..1).
        classes: names of the outputs.
        result: anything about the training that JSON can hold: accuracy, seed, commit.

    Examples:
        >>> import numpy as np
        >>> import fastslow as fs
        >>> model = fs.models.resnet8(num_classes=10)
        >>> conversion = fs.binarize_(model, "ste", skip=["conv1", "fc"])
        >>> packed = fs.pack(model, "model.safetensors")
        >>> packed.float_bytes > 10 * packed.payload_bytes
        True
        >>> engine = fs.load_packed("model.safetensors")
        >>> engine(np.zeros((2, 3, 32, 32), np.float32)).shape
        (2, 10)
    """
    shape = _shape(input_shape, example_input)
    try:
        graph = packed_graph(model, shape)
    except (UnsupportedLayerError, GraphError) as error:
        if refused := _refusal(model, shape):
            none_given = input_shape is None and example_input is None
            taken = f"{shape}, which was taken as none was given" if none_given else f"{shape}"
            raise type(error)(
                f"{error}; the model itself can't compute an input of shape {taken} ({refused}): give its input_shape"
            ) from None
        raise
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r} must be one of {', '.join(DTYPES)}")
    mean, std, classes = tuple(map(float, mean)), tuple(map(float, std)), tuple(map(str, classes))
    if len(mean) != len(std) or (mean and len(mean) != graph.input_shape[0]):
        raise ValueError(f"mean and std must both have {graph.input_shape[0]} values, one a channel, or none")
    outputs = graph.output_shape()
    if classes and len(classes) != outputs[0]:
        raise ValueError(f"{len(classes)} class names for {outputs[0]} outputs")
    info = Info(
        producer=f"fastslow {__version__}",
        dtype=dtype,
        mean=mean,
        std=std,
        classes=classes,
        binarizer=", ".join(sorted({layer.binarizer.name for layer in binary_layers(unwrap(model)).values()})),
        result=dict(result or {}),
    )
    data = to_bytes(graph, info)
    content = from_bytes(data)  # what we write, we can read
    write_atomically(Path(path), data)
    sizes = layer_sizes(graph, dtype)
    float_layers = {layer.name for layer in sizes if not layer.binary} & binary_layers(unwrap(model)).keys()
    if float_layers:
        log.warning(
            "%d binary layers are packed as float numbers: their weights aren't one scale and its negative (more than "
            "one bit, or adabin); the first is %s",
            *(len(float_layers), min(float_layers)),
        )
    return Packed(Path(path), content.header_bytes, content.payload_bytes, sizes)


def packed_graph(model: nn.Module, input_shape: Sequence[int]) -> Graph:
    """The graph that `pack` writes: the model in evaluation mode, traced and folded."""
    inner = unwrap(model)
    with evaluating(inner), torch.no_grad():
        return fold(trace(inner, tuple(input_shape)))


def _refusal(model: nn.Module, shape: tuple[int, ...]) -> str | None:
    """What torch says of an input of this shape; None: the model takes it."""
    try:
        pass_zeros(unwrap(model), shape)
    except (RuntimeError, ValueError, TypeError, LookupError) as error:
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    return None


def _shape(input_shape: Sequence[int] | None, example_input: Tensor | None) -> tuple[int, ...]:
    if input_shape is not None:
        try:
            return tuple(operator.index(size) for size in input_shape)
        except TypeError:
            raise TypeError(f"input_shape={input_shape!r}: give whole numbers, for example (3, 32, 32)") from None
    return tuple(example_input.shape[1:]) if example_input is not None else (3, 32, 32)
