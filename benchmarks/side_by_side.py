"""What a training step costs when several runs share a device, as `reproduce --jobs` starts them.

python benchmarks/side_by_side.py --device cuda [--processes 1,4,8] [--precisions tf32,bf16] [--methods ste,fsg-plus]

For each combination all processes train for some seconds at the same time. `ms` is the mean time of a step of one of
them, `ms_of_device` that over their number: what one step takes of the device. On a GPU start the MPS daemon before
(`nvidia-cuda-mps-control -d`), or the processes take turns.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from step import WARM_UP, steps
from torch import multiprocessing

from fastslow import data
from fastslow.training.conditions import conditions
from fastslow.training.config import RunConfig
from fastslow.training.loop import Trainer
from fastslow.training.precision import float32_products

TURN = 10  # steps between two looks at the clock
PATIENCE = 300  # seconds in which all must be ready; kernels may have to be compiled


def train(index: int, config: RunConfig, device: torch.device, seconds: float, ready: Any, found: Any) -> None:
    """One of the processes: milliseconds a step while all of them train."""
    trainer = Trainer(config, data.load("mini"), device=device)
    with float32_products(device, config.precision == "tf32"):
        running = steps(trainer)
        for _ in range(WARM_UP):
            next(running)
        _wait(device)
        ready.wait()
        began, count = time.perf_counter(), 0
        while (spent := time.perf_counter() - began) < seconds:
            for _ in range(TURN):
                next(running)
            _wait(device)
            count += TURN
        found[index] = 1000 * spent / count
        ready.wait()  # nobody leaves before all have measured


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def together(count: int, config: RunConfig, device: torch.device, seconds: float) -> list[float]:
    context = multiprocessing.get_context("spawn")
    # With a timeout: where one of them dies before it is ready, the others don't wait for it for ever.
    ready, found = context.Barrier(count, timeout=PATIENCE), context.Array("d", count)
    arguments = (config, device, seconds, ready, found)
    running = [context.Process(target=train, args=(index, *arguments)) for index in range(count)]
    for process in running:
        process.start()
    for process in running:
        process.join()
        if process.exitcode:
            raise SystemExit(f"a process ended with {process.exitcode}")
    return list(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--methods", default="ste,fsg-plus")
    parser.add_argument("--precisions", default="float32")
    parser.add_argument("--processes", default="1,2")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--distill", type=float, default=0.0, help="with a teacher, the float network in the package")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    rows = []
    for method in args.methods.split(","):
        for precision in args.precisions.split(","):
            for count in map(int, args.processes.split(",")):
                config = RunConfig(
                    model=args.model, data="mini", weights="shipped" if args.distill else "none", method=method,
                    batch_size=args.batch, precision=precision, distill=args.distill,
                )  # fmt: skip
                each = together(count, config, device, args.seconds)
                mean = sum(each) / count
                row = {"method": method, "precision": precision, "processes": count, "each": each, "ms": mean}
                rows.append({**row, "ms_of_device": mean / count})
                print(
                    f"{method:<12} {precision:<8} {count:>2} processes: {mean:.3f} ms, {mean / count:.3f} of the device"
                )
    if args.json is not None:
        settings = {key: getattr(args, key) for key in ("device", "model", "batch", "distill", "seconds")}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        found = {"settings": settings, "rows": rows, "conditions": conditions(device)}
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
