"""What a network costs, layer by layer. Computing, formatting and printing are kept apart."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..convert import plain_name, unwrap
from ..layers import BinaryLayer

_COUNTED = (nn.Conv1d, nn.Conv2d, nn.Linear)


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
            "layers": [asdict(row) for row in self.layers],
            "parameters": self.parameters,
            "macs": {str(bits): self.macs(bits) for bits in precisions},
            "float_bytes": self.float_bytes,
            "packed_bytes": self.packed_bytes,
            "compression": self.compression,
        }


@torch.no_grad()
def summarize(model: nn.Module, input_shape: tuple[int, ...]) -> Summary:
    """Measure a model on one input of this shape (without the batch dimension).

    A packed layer stores its weights at ``bits`` bits each, every output row padded to whole bytes. Everything else,
    biases and normalisation included, is counted as float32, as it is stored.
    """
    model = unwrap(model)
    macs = _count_macs(model, input_shape)
    rows = []
    for name, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        buffers = [b for b in module.buffers(recurse=False) if b.is_floating_point()]
        if not own and not buffers:
            continue
        parameters = sum(value.numel() for value in own.values())
        numbers = parameters + sum(b.numel() for b in buffers)
        binary = isinstance(module, BinaryLayer)
        weight = own.get("weight")
        packed = 4 * numbers
        if binary and weight is not None:
            row_bits = weight[0].numel() * module.bits
            packed += len(weight) * math.ceil(row_bits / 8) - 4 * weight.numel()
        rows.append(
            LayerRow(
                name=plain_name(name),
                kind=type(module).__name__.removeprefix("Binary"),
                shape=tuple(weight.shape) if weight is not None else (),
                bits=module.bits if binary else 32,
                parameters=parameters,
                macs=macs.get(module, 0),
                float_bytes=4 * numbers,
                packed_bytes=packed,
            )
        )
    return Summary(tuple(rows))


def _count_macs(model: nn.Module, input_shape: tuple[int, ...]) -> dict[nn.Module, int]:
    counted: dict[nn.Module, int] = {}

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        weight = module.weight
        assert isinstance(weight, Tensor)
        positions = output.numel() // (weight.shape[0] if output.dim() > 2 or isinstance(module, nn.Linear) else 1)
        counted[module] = counted.get(module, 0) + weight.numel() * positions

    hooks = [m.register_forward_hook(count) for m in model.modules() if isinstance(m, _COUNTED)]
    modes = [(module, module.training) for module in model.modules()]
    first = next(model.parameters())
    model.eval()
    try:
        model(torch.zeros(1, *input_shape, device=first.device, dtype=first.dtype))
    finally:
        for module, mode in modes:
            module.training = mode
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
            f"{row.float_bytes / row.packed_bytes:.1f}",
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
    return "\n".join([text(header), *map(text, lines), f"MACs by precision: {by_bits}"])
