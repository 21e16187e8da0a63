"""What a recipe is, and the protocol that most of them share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..training.config import RunConfig
from ..training.named_weights import PREFIX

# Order of running: what decides the claim comes first. Tables have an order of their own.
LEARNED = ("fsg", "multifc", "fcgrad", "lstmfc")
TABLE_METHODS = ("ste", *LEARNED)
FSG_VARIANTS = ("fsg-code", "fsg-weight")

PAPER_EPOCHS = 100


@dataclass(frozen=True)
class Setting:
    """One cell of a table: a name such as ``resnet20/adam/fsg``, its config with seed 0, and how many seeds it has."""

    name: str
    config: RunConfig
    seeds: int = 3

    def run(self, seed: int) -> RunConfig:
        return dataclasses.replace(self.config, seed=seed)


@dataclass(frozen=True)
class Recipe:
    """A table or a figure as the settings it is made of."""

    name: str
    title: str
    summary: str
    settings: Callable[[], list[Setting]]


def paper_protocol(model: str, data: str, method: str | None, optimizer: str = "adam", **changes: Any) -> RunConfig:
    """The paper's: pretrained float weights, 100 epochs of batches of 128, lr 1e-3 and a tenth every 30 epochs.

    First and last layer stay float; plain SGD has no momentum, nothing has weight decay.
    """
    values: dict[str, Any] = {
        "model": model,
        "data": data,
        "weights": f"{PREFIX}{model}_{data}",
        "method": method,
        "optimizer": optimizer,
        "epochs": PAPER_EPOCHS,
        # The paper's GPUs multiply float32 in convolutions as TF32 by default; here it is said.
        "precision": "tf32",
    }
    return RunConfig(**(values | changes))


def all_layers(config: RunConfig, *, bn_before_fc: bool = False) -> RunConfig:
    """MetaQuant's networks: first and last layer binary too; with the authors' BatchNorm before fc, FSG's code."""
    fields = {**config.model_fields, "bn_before_fc": True} if bn_before_fc else config.model_fields
    return dataclasses.replace(config, skip=(), model_fields=fields)


def shorter(config: RunConfig, epochs: int) -> RunConfig:
    """The same schedule squeezed into other many epochs: its drops come at the same share of the run."""
    step = max(1, round(config.step_epochs * epochs / config.epochs))
    warmup = min(config.warmup_epochs, epochs - 1)
    return dataclasses.replace(config, epochs=epochs, step_epochs=step, warmup_epochs=warmup)
