"""Made-up records in the form of real ones, to test the report with. They never go near ``results/``."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

from fastslow.recipes import RECIPES
from fastslow.reproduce.plan import PlannedRun
from fastslow.reproduce.record import HISTOGRAM_BINS, record_path, write_record

LAYERS = ["conv1", *(f"layer{s}.{b}.conv{c}" for s in (1, 2, 3) for b in (0, 1, 2) for c in (1, 2)), "fc"]


def write_synthetic(results: Path, recipe: str, only: str, seeds: int, **ends: float) -> list[PlannedRun]:
    """Runs of a recipe's settings below ``only``; ``ends`` says where a method's accuracy ends (default 90)."""
    written = []
    for setting in RECIPES[recipe].settings():
        if not setting.name.startswith(only):
            continue
        for seed in range(seeds):
            config = setting.run(seed)
            end = ends.get(setting.name.rsplit("/", 1)[-1].replace("-", "_"), 90.0)
            rng = random.Random(f"{setting.name} {seed}")
            end = round(end + rng.gauss(0, 0.15), 2)
            epochs = range(1, config.epochs + 1)
            accuracy = [
                round(end - 30 * math.exp(-e / 9) + (0 if e == config.epochs else rng.gauss(0, 0.2)), 2) for e in epochs
            ]
            loss = [round(0.05 + 1.2 * math.exp(-e / 12) * rng.uniform(0.95, 1.05), 4) for e in epochs]
            seconds = 4.0 if "ste" in setting.name else 20.0
            best = max(accuracy)
            record = {
                "test_accuracy": accuracy[-1],
                "best_test_accuracy": best,
                "best_epoch": accuracy.index(best) + 1,
                "test_loss": 0.4,
                "train_accuracy": 96.0 + rng.gauss(0, 0.1),
                "train_loss": loss[-1],
                "seconds": seconds * config.epochs * rng.uniform(0.95, 1.05),
                "config": config.to_dict(),
                "key": config.key,
                "conditions": {"device": "synthetic", "torch": "2.13.0", "commit": "synthetic", "jobs": 1},
                "curve": {"test_accuracy": accuracy, "train_loss": loss, "seconds": [seconds] * config.epochs},
            }
            if seed == 0:
                record["latent_weights"] = {name: _histogram(rng) for name in LAYERS}
            run = PlannedRun(f"{setting.name}/seed{seed}", config)
            write_record(record_path(results, run.place), record)
            written.append(run)
    return written


def squeeze(record: dict[str, Any], epochs: int, step_epochs: int) -> None:
    """Make a record one of a run with so many epochs."""
    record["config"] |= {"epochs": epochs, "step_epochs": step_epochs}
    record["curve"] = {name: column[:epochs] for name, column in record["curve"].items()}


def _histogram(rng: random.Random) -> list[int]:
    centre, width = rng.uniform(0.1, 0.3), rng.uniform(0.08, 0.2)
    places = [2 * (i + 0.5) / HISTOGRAM_BINS - 1 for i in range(HISTOGRAM_BINS)]
    return [round(1000 * sum(math.exp(-(((x - s * centre) / width) ** 2)) for s in (-1, 1))) for x in places]
