"""The cost of a training step, method by method, against the straight-through estimator, in one run on one machine.

python benchmarks/step.py [--device cuda] [--models resnet20,resnet56] [--rounds 10] [--json FILE]

Methods are built first and then take turns, a step each, so that a busy machine disturbs all of them alike; the fastest
step of each counts, with the least it could cost beside it (floor.py). On a GPU a step is what `fs.Trainer` runs,
captured in a CUDA graph where the method allows it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from floor import ceilings, counts, floor_ms

from fastslow import data
from fastslow.methods.lookahead import LookaheadDriver
from fastslow.training.conditions import conditions
from fastslow.training.config import RunConfig
from fastslow.training.loop import Trainer
from fastslow.training.precision import float32_products

# name: method, its fields
METHODS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "float": (None, {}),
    "ste": ("ste", {}),
    "multifc": ("multifc", {}),
    "lstmfc": ("lstmfc", {}),
    "fsg": ("fsg", {}),
    "fsg, whole history": ("fsg", {"horizon_tol": 0.0}),
    "fsg-code": ("fsg-code", {}),
    "fsg-weight": ("fsg-weight", {}),
    "fsg-lstm": ("fsg-lstm", {}),
    "fsg-plus": ("fsg-plus", {}),
}
WARM_UP = 10  # steps: until histories are full, lazy states exist and a graph is captured


def steps(trainer: Trainer) -> Iterator[Any]:
    while True:
        yield from trainer._steps(0, 0)


def least(trainer: Trainer, name: str, batch: int) -> dict[str, float]:
    """What the step of a trainer must at least compute and move."""
    drivers = getattr(trainer.optimizer, "drivers", [])
    nets = [driver.nets for driver in drivers if isinstance(driver, LookaheadDriver)]
    slow = next((each["slow"] for each in nets if "slow" in each), None)
    whole = slow is not None and (trainer.optimizer.drivers[0].method.layout == "per_weight" or "whole" in name)
    images = next(trainer.train_batches.epoch(0))[0][:batch]
    return counts(trainer.model, images, slow, trainer.optimizer.drivers[0].method.length if whole else 1)


def measure(model: str, names: list[str], args: argparse.Namespace, ceiling: dict[str, float]) -> list[dict[str, Any]]:
    device = torch.device(args.device)
    images = data.load("mini")  # real ones: how far back the slow-net looks depends on the size of the gradients
    running, peak, floors = {}, {}, {}
    for name in names:
        method, fields = METHODS[name]
        config = RunConfig(
            model=model, method=method, method_fields=fields, batch_size=args.batch, precision=args.precision
        )
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
        trainer = Trainer(config, images, device=device)
        floors[name] = least(trainer, name, args.batch)
        running[name] = steps(trainer)
        for _ in range(WARM_UP):
            next(running[name])
        if device.type == "cuda":
            peak[name] = torch.cuda.max_memory_allocated(device) - before
    wall, cpu = dict.fromkeys(names, float("inf")), dict.fromkeys(names, float("inf"))
    for _ in range(args.rounds):
        for name in names:
            began, spent = time.perf_counter(), time.process_time()
            for _ in range(args.steps):
                next(running[name])
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            wall[name] = min(wall[name], (time.perf_counter() - began) / args.steps)
            cpu[name] = min(cpu[name], (time.process_time() - spent) / args.steps)
    rows = []
    for name in names:
        row = {"model": model, "method": name, "ms": 1000 * wall[name], "images_per_second": args.batch / wall[name]}
        row |= {"floor_ms": floor_ms(floors[name], ceiling), **floors[name]}
        if "ste" in wall:
            row["ratio"] = wall[name] / wall["ste"]
        if device.type == "cuda":
            row["peak_mib"] = peak[name] / 2**20
        else:
            row |= {"cpu_ms": 1000 * cpu[name], "cpu_ratio": cpu[name] / cpu["ste"] if "ste" in cpu else None}
        rows.append(row)
        shown = ", ".join(f"{key} {value:.4g}" for key, value in row.items() if isinstance(value, float))
        print(f"{model:>10} {name:<20} {shown}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", default="resnet20")
    parser.add_argument("--methods", default=",".join(name for name in METHODS if "," not in name))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=1, help="steps of a turn; more on a GPU, where one is short")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--precision", default="float32", choices=["float32", "tf32", "bf16"])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    names = [name.strip() for name in args.methods.split(",")]
    names += ["fsg, whole history"] if args.device == "cuda" and "fsg" in names else []
    load = list(os.getloadavg())
    with float32_products(torch.device(args.device), args.precision == "tf32"):
        ceiling = ceilings(torch.device(args.device))
        print(", ".join(f"{key} {value:.3g}" for key, value in ceiling.items()))
        rows = [row for model in args.models.split(",") for row in measure(model, names, args, ceiling)]
    if args.json is not None:
        settings = {key: getattr(args, key) for key in ("device", "batch", "steps", "rounds", "precision")}
        found = {
            "settings": settings,
            "threads": torch.get_num_threads(),
            "load_average_before": load,
            "ceilings": ceiling,
            "rows": rows,
        }
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(
            json.dumps({**found, "conditions": conditions(torch.device(args.device))}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
