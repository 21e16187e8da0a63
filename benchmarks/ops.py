"""Each fused operation against torch's own on the shapes of a ResNet, in CUDA graphs, in one run on one card.

python benchmarks/ops.py [--batch 128] [--precision tf32] [--rounds 20] [--json FILE]

Both sides of a row are captured first and then take turns; the fastest turn of each counts. A graph holds an operation
many times over, so that its own launch doesn't count.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastslow.binarize import DoReFa, calibration, straight_through
from fastslow.ops import ahead, conv, norm, quantize
from fastslow.training.conditions import conditions
from fastslow.training.precision import float32_products

# input channels, output channels, side of the image, kernel, stride; the layers of each kind in a ResNet-20
CONVOLUTIONS = {
    (16, 16, 32, 3, 1): 6,
    (16, 32, 32, 3, 2): 1,
    (32, 32, 16, 3, 1): 5,
    (32, 64, 16, 3, 2): 1,
    (64, 64, 8, 3, 1): 5,
    (16, 32, 32, 1, 2): 1,
    (32, 64, 16, 1, 2): 1,
}
NORMS = {(16, 32): (4, 3), (32, 16): (4, 3), (64, 8): (4, 3)}  # channels, side: without and with a residual
WEIGHTS = {(16, 16, 3): 6, (32, 32, 3): 5, (64, 64, 3): 5}
REPEATS = 20  # of an operation in a graph
Row = tuple[str, int, Callable[[], Any], Callable[[], Any]]  # name, layers of the kind, ours, torch's


def image(batch: int, channels: int, side: int, dtype: torch.dtype) -> Tensor:
    x = torch.randn(batch, channels, side, side, device="cuda", dtype=dtype)
    return x.to(memory_format=torch.channels_last)


def convolutions(batch: int, dtype: torch.dtype) -> list[Row]:
    rows: list[Row] = []
    for (CI, CO, side, kernel, stride), layers in CONVOLUTIONS.items():
        pad = kernel // 2
        x, weight = image(batch, CI, side, dtype), image(CO, CI, kernel, dtype)
        dy = torch.randn_like(F.conv2d(x, weight, None, stride, pad))
        out = torch.empty_like(weight, dtype=torch.float32)
        geometry = ((stride, stride), (pad, pad), (1, 1))
        kind = f"{CI}->{CO} @{side} {kernel}x{kernel}/{stride}"

        def gradient(
            mask: list[bool], x: Tensor = x, dy: Tensor = dy, weight: Tensor = weight, at: Any = geometry
        ) -> Any:
            return torch.ops.aten.convolution_backward(dy, x, weight, None, *at, False, (0, 0), 1, mask)

        weight_gradient = partial(conv.weight_gradient, x, dy, out, *geometry)
        rows.append((f"weight gradient {kind}", layers, weight_gradient, partial(gradient, [False, True, False])))
        if (kernel, stride) == (3, 1):
            forward = partial(conv.convolve, x, weight, geometry[1], False)
            rows.append((f"convolution {kind}", layers, forward, partial(F.conv2d, x, weight, None, *geometry)))
            backward = partial(conv.convolve, dy, weight, geometry[1], True)
            rows.append((f"input gradient {kind}", layers, backward, partial(gradient, [True, False, False])))
    return rows


def norms(batch: int, dtype: torch.dtype) -> list[Row]:
    rows: list[Row] = []
    for (channels, side), counts in NORMS.items():
        for added, layers in zip((False, True), counts, strict=True):
            bn = nn.BatchNorm2d(channels).cuda()
            x, dy, residual = (image(batch, channels, side, dtype) for _ in range(3))
            y = torch.empty_like(x)
            with_residual = residual if added else None

            def forward(x: Tensor = x, y: Tensor = y, bn: nn.BatchNorm2d = bn, r: Tensor | None = with_residual) -> Any:
                return norm.normalise(x, bn.weight, bn.bias, r, bn, True, y)

            def torch_forward(x: Tensor = x, bn: nn.BatchNorm2d = bn, r: Tensor | None = with_residual) -> Tensor:
                return norm.norm_act(bn, x, r)

            with torch.no_grad():
                saved = forward()
            inputs = [x.clone().requires_grad_(), *([residual.clone().requires_grad_()] if added else [])]
            graph = norm.norm_act(bn, inputs[0], inputs[1] if added else None)
            variables = [*inputs, bn.weight, bn.bias]

            def backward(
                x: Tensor = x, dy: Tensor = dy, y: Tensor = y, bn: nn.BatchNorm2d = bn, saved: Tensor = saved,
                added: bool = added,
            ) -> Any:  # fmt: skip
                return norm.differentiate(x, bn.weight, bn.bias, saved, y, dy, added, True)

            def torch_backward(graph: Tensor = graph, variables: Any = variables, dy: Tensor = dy) -> Any:
                return torch.autograd.grad(graph, variables, dy, retain_graph=True)

            kind = f"BatchNorm{' + residual' if added else ''} + ReLU {channels} @{side}"
            rows.append((f"{kind}, forward", layers, forward, torch_forward))
            rows.append((f"{kind}, backward", layers, backward, torch_backward))
    return rows


def weights() -> list[Row]:
    rows: list[Row] = []
    for (CO, CI, kernel), layers in WEIGHTS.items():
        weight = 0.1 * image(CO, CI, kernel, torch.float32)
        g, (_, largest) = torch.randn_like(weight), quantize.bits(weight)

        def forward(weight: Tensor = weight) -> Any:
            return quantize.bits(weight)

        def torch_forward(weight: Tensor = weight) -> Any:
            return straight_through(DoReFa().values(weight), weight, calibration(weight))

        def backward(weight: Tensor = weight, g: Tensor = g, largest: Tensor = largest) -> Any:
            return quantize.calibrated(g, weight, largest)

        def torch_backward(factor: Tensor = calibration(weight), g: Tensor = g) -> Any:  # noqa: B008
            return g * factor

        rows.append((f"bits {CI}->{CO} {kernel}x{kernel}, forward", layers, forward, torch_forward))
        rows.append((f"bits {CI}->{CO} {kernel}x{kernel}, backward", layers, backward, torch_backward))
    return rows


def all_weights() -> list[Row]:
    """One launch for all layers against one a layer; with 0 layers, since the sum has them already."""
    shapes = [key for key, layers in CONVOLUTIONS.items() for _ in range(layers)]
    weights = [0.1 * image(CO, CI, kernel, torch.float32) for CI, CO, _, kernel, _ in shapes]
    table = ahead.Table([ahead.places(weight, None) for weight in weights])
    name = "bits of all layers of a ResNet-20 / one by one"
    return [(name, 0, lambda: ahead.bits_of_many(table), lambda: [quantize.bits(weight) for weight in weights])]


def captured(run: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for _ in range(REPEATS):
            run()
    return graph


def microseconds(graphs: list[torch.cuda.CUDAGraph], rounds: int) -> list[float]:
    best = [float("inf")] * len(graphs)
    for _ in range(rounds):
        for i, graph in enumerate(graphs):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            best[i] = min(best[i], 1000 * start.elapsed_time(end) / REPEATS)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--precision", default="tf32", choices=["tf32", "bf16"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device = torch.device("cuda", torch.cuda.current_device())
    dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32
    found, totals = [], [0.0, 0.0]
    print(f"{'operation':<50} layers     us  torch  ratio")
    # One side stream for everything: a backward pass runs on the stream of its forward pass.
    with float32_products(device, tf32=True), torch.cuda.stream(torch.cuda.Stream()):
        rows = [*convolutions(args.batch, dtype), *norms(args.batch, dtype), *weights(), *all_weights()]
        for name, layers, ours, torchs in rows:
            own, other = microseconds([captured(run) for run in (ours, torchs)], args.rounds)
            totals = [totals[0] + layers * own, totals[1] + layers * other]
            found.append({"operation": name, "layers": layers, "us": own, "torch_us": other, "ratio": other / own})
            print(f"{name:<50} {layers:6} {own:6.1f} {other:6.1f} {other / own:6.2f}", flush=True)
    print(f"{'all of a ResNet-20':<57} {totals[0]:6.0f} {totals[1]:6.0f} {totals[1] / totals[0]:6.2f}")
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        settings = {"batch": args.batch, "precision": args.precision, "rounds": args.rounds}
        args.json.write_text(
            json.dumps({"settings": settings, "rows": found, "conditions": conditions(device)}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
