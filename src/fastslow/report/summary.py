"""What a network costs, layer by layer. Computing, formatting and printing are kept apart."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..convert import plain_name, unwrap
from ..layers import BinaryLayer
from ..modes import pass_zeros

_GATHERING = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
_SCATTERING = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class LayerRow:
    """One layer with parameters. ``macs`` are multiply-accumulates for one input."""

    name: str
    kind: str
    shape: tuple[int, ...]
    bits: int
    parameters: int
    macs: int
    float_bytes: int
    packed_bytes: int


@dataclass(frozen=True)
class Summary:
    """All layers, and what they sum up to."""

    layers: tuple[LayerRow, ...]
    input_shape: tuple[int, ...]
    note: str | None = None  # why the model can't be packed as a whole, if it can't

    @property
    def parameters(self) -> int:
        return sum(row.parameters for row in self.layers)

    @property
    def float_bytes(self) -> int:
        return sum(row.float_bytes for row in self.layers)

    @property
    def packed_bytes(self) -> int:
        return sum(row.packed_bytes for row in self.layers)

    @property
    def compression(self) -> float:
        return self.float_bytes / self.packed_bytes if self.packed_bytes else math.nan

    def macs(self, bits: int | None = None) -> int:
        """Multiply-accumulates of one input, of all layers or of those with weights of so many bits."""
        return sum(row.macs for row in self.layers if bits is None or row.bits == bits)

    def to_dict(self) -> dict[str, Any]:
        precisions = sorted({row.bits for row in self.layers if row.macs})
        return {
            "input_shape": list(self.input_shape),
            "layers": [asdict(row) for row in self.layers],
            "parameters": self.parameters,
            "macs": {str(bits): self.macs(bits) for bits in precisions},
            "float_bytes": self.float_bytes,
            "packed_bytes": self.packed_bytes,
            "compression": self.compression,
            "note": self.note,
        }


@torch.no_grad()
def summarize(model: nn.Module, input_shape: tuple[int, ...]) -> Summary:
    """Measure a model on one input of this shape (without the batch dimension).

    Packed bytes are those that :func:`fastslow.pack` writes, to the byte: bits, and in float32 a scale and an offset
    for each output, into which normalisation is folded. A model that can't be packed is counted layer by layer, without
    folding, and ``note`` says why. A layer that is used several times has its numbers once and its operations at every
    use; operations are those of convolutions and linear layers.
    """
    model = unwrap(model)
    macs = _count_macs(model, input_shape)
    stored, note = _stored_bytes(model, input_shape)
    rows = []
    seen: set[int] = set()  # tensors that two layers share belong to the first of them
    for name, module in model.named_modules():
        own = {key: value for key, value in module.named_parameters(recurse=False) if id(value) not in seen}
        kept = [b for key, b in module.named_buffers(recurse=False) if key not in module._non_persistent_buffers_set]
        buffers = [b for b in kept if b.is_floating_point() and id(b) not in seen]
        if not own and not buffers and module not in macs:
            continue
        seen.update(id(value) for value in [*own.values(), *buffers])
        parameters = sum(value.numel() for value in own.values())
        numbers = parameters + sum(b.numel() for b in buffers)
        binary = isinstance(module, BinaryLayer)
        weight = own.get("weight")
        if stored is not None:
            packed = stored.get(name, 0)
        else:
            packed = 4 * numbers
            if binary and weight is not None:
                row_bits = weight[0].numel() * module.bits
                packed += len(weight) * math.ceil(row_bits / 8) - 4 * weight.numel()
        rows.append(
            LayerRow(
                name=plain_name(model, name) or "(the model)",
                kind=type(module).__name__.removeprefix("Binary"),
                shape=tuple(weight.shape) if weight is not None else (),
                bits=module.bits if binary else 32,
                parameters=parameters,
                macs=macs.get(module, 0),
                float_bytes=4 * numbers,
                packed_bytes=packed,
            )
        )
    return Summary(tuple(rows), tuple(input_shape), note)


def _stored_bytes(model: nn.Module, input_shape: tuple[int, ...]) -> tuple[dict[str, int] | None, str | None]:
    """Bytes of each layer in a packed file, or why there can be none."""
    from ..deploy.sizes import sizes

    if not any(isinstance(module, BinaryLayer) for module in model.modules()):
        return None, None
    try:
        found = sizes(model, input_shape)
    except ValueError as error:
        return None, str(error)
    return {layer.name: layer.packed_bytes for layer in found}, None


def _count_macs(model: nn.Module, input_shape: tuple[int, ...]) -> dict[nn.Module, int]:
    counted: dict[nn.Module, int] = {}

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        # One number of the output gathers weight[0] (in_channels / groups x kernel, or in_features) products; in a
        # transposed convolution it is one number of the input that takes part in weight[0] of them.
        weight = module.weight
        assert isinstance(weight, Tensor)
        ends = inputs[0] if isinstance(module, _SCATTERING) else output
        counted[module] = counted.get(module, 0) + ends.numel() * weight[0].numel()

    hooks = [m.register_forward_hook(count) for m in model.modules() if isinstance(m, (*_GATHERING, *_SCATTERING))]
    try:
        pass_zeros(model, input_shape)
    finally:
        for hook in hooks:
            hook.remove()
    return counted


def format_summary(summary: Summary) -> str:
    """The table as text."""
    header = ("layer", "type", "weight", "bits", "parameters", "MACs", "float bytes", "packed bytes", "x smaller")
    lines = [
        (
            row.name,
            row.kind,
            "x".join(map(str, row.shape)),
            str(row.bits),
            f"{row.parameters:,}",
            f"{row.macs:,}" if row.macs else "",
            f"{row.float_bytes:,}",
            f"{row.packed_bytes:,}",
            f"{row.float_bytes / row.packed_bytes:.1f}" if row.packed_bytes else "",
        )
        for row in summary.layers
    ]
    total = ("total", "", "", "", f"{summary.parameters:,}", f"{summary.macs():,}", f"{summary.float_bytes:,}")
    lines.append((*total, f"{summary.packed_bytes:,}", f"{summary.compression:.1f}"))
    widths = [max(len(line[i]) for line in [header, *lines]) for i in range(len(header))]
    left = 3  # columns of text; numbers stand to the right

    def text(line: tuple[str, ...]) -> str:
        cells = (
            cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        return "  ".join(cells).rstrip()

    by_bits = ", ".join(
        f"{bits}-bit weights {summary.macs(bits):,}"
        for bits in sorted({row.bits for row in summary.layers if row.macs})
    )
    rule = "-" * max(len(text(line)) for line in [header, *lines])
    body = [text(header), rule, *map(text, lines[:-1]), rule, text(lines[-1])]
    notes = (
        [] if summary.note is None else [f"packed bytes without folding, this model can't be packed: {summary.note}"]
    )
    size = "x".join(map(str, summary.input_shape))
    macs = f"MACs (multiply-accumulates of one input of {size}): {by_bits or 'none'}"
    return "\n".join([*body, macs, *notes])
