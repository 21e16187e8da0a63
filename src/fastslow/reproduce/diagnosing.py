"""``fastslow diagnose``: a diagnosis as a file of ``results/diagnosis/``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from .. import data as datasets
from ..diagnosis import diagnose, steps_until
from ..recipes.base import paper_protocol
from ..training.conditions import conditions
from ..training.config import NONE
from ..training.loop import Trainer
from ..training.named_weights import find_weights
from ..training.precision import float32_products
from ..training.run import RunFolder
from .record import start_of, write_record
from .worker import noted


def record_diagnosis(
    results: Path,
    device: torch.device,
    *,
    run: Path | None,
    method: str,
    method_fields: Mapping[str, Any] = MappingProxyType({}),
    model: str,
    data: str,
    optimizer: str = "adam",
    steps: int,
    seed: int,
    data_root: Path | None,
    tell: Callable[[dict[str, Any]], None],
) -> tuple[Path, dict[str, Any]]:
    """Diagnose a run from its newest checkpoint, or the first steps of the paper's protocol."""
    if run is not None:
        folder = RunFolder.open(run)
        config = folder.config()
    else:
        folder = None
        changes = {"seed": seed, "method_fields": dict(method_fields)}
        config = paper_protocol(model, data, method, optimizer, **changes)
        try:
            find_weights(config.weights)
        except ValueError:
            if data in ("cifar10", "cifar100"):
                raise
            config = paper_protocol(model, data, method, optimizer, **changes, weights=NONE)
    if folder is not None and not folder.checkpoints.paths():
        raise ValueError(
            f"{run} has no checkpoint; the grid keeps one of FSG's runs with seed 0, or diagnose without it"
        )
    dataset = datasets.load(config.data, data_root, holdout=config.holdout)
    trainer = Trainer(config, dataset, device=device, begun=folder is not None)
    if folder is not None:
        _, state = folder.checkpoints.load_newest()
        trainer.load_state_dict(state)
    name = f"{config.method}-{config.model}-{config.data.replace(':', '-').replace('/', '-')}"
    moment = f"first-{steps}" if folder is None else f"at-{trainer.done}"
    path = results / "diagnosis" / f"{name}-{moment}-{config.key}.json"
    if path.exists():
        raise ValueError(f"{path} is recorded already; results are never written twice")
    with float32_products(device, config.precision == "tf32"):
        content = diagnose(trainer, steps_until(steps) if folder is None else [], tell)
    # Of a run of a grid the weights that it began from, which may not be those that their name means now.
    start = start_of(config) if folder is None else noted(folder.path).get("start", {})
    write_record(path, {**content, "conditions": {**conditions(device), **start}})
    return path, content
