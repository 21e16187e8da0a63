"""From recipes to an ordered list of runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..recipes import RECIPES, Setting
from ..recipes.base import shorter
from ..training.config import RunConfig

EVERYTHING, SMOKE = "all", "smoke"


@dataclass(frozen=True)
class PlannedRun:
    """A run and its name in the recipe, for example ``resnet20/adam/fsg/seed0``."""

    name: str
    config: RunConfig

    @property
    def stem(self) -> str:
        """File name of its result and of its folder: readable, and unique through the key."""
        config = self.config
        method = config.method or "float"
        return f"{method}-{config.optimizer}-seed{config.seed}-{config.key}"

    @property
    def place(self) -> Path:
        """Where it lies below ``results/`` and below the folder of runs."""
        return Path(f"{self.config.model}-{self.config.data.replace(':', '-').replace('/', '-')}") / self.stem


def plan(
    names: Sequence[str],
    *,
    seeds: int | None = None,
    only: Sequence[str] = (),
    shard: str | None = None,
    epochs: int | None = None,
    changes: dict[str, Any] | None = None,
) -> list[PlannedRun]:
    """The runs of some recipes, each config once, seed 0 of every setting before seed 1 of any.

    Seeds are the outer order so that a grid that stops early still holds pairs to compare. ``shard`` "i/n" (i from 1)
    takes every n-th run of the order by settings: each machine gets its share of cheap and of costly methods.
    """
    if seeds is not None and seeds < 1:
        raise ValueError(f"--seeds {seeds}: give a whole number of at least 1")
    by_setting = [
        PlannedRun(f"{setting.name}/seed{seed}", _changed(setting.run(seed), epochs, changes))
        for setting in _settings(names)
        for seed in range(setting.seeds if seeds is None else seeds)
    ]
    for pattern in only:
        if not any(_chosen(run.name, [pattern]) for run in by_setting):
            raise ValueError(f"no run is chosen by --only {pattern}; see --dry-run without it for the names")
    by_setting = _once([run for run in by_setting if _chosen(run.name, only)])
    if shard is not None:
        number, count = _parse_shard(shard)
        by_setting = by_setting[number - 1 :: count]
    return sorted(by_setting, key=lambda run: run.config.seed)  # stable: settings stay in their order


def _settings(names: Sequence[str]) -> Iterable[Setting]:
    wanted = [name for name in RECIPES if name != SMOKE] if EVERYTHING in names else names
    for name in wanted:
        yield from RECIPES[name].settings()


def _changed(config: RunConfig, epochs: int | None, changes: dict[str, Any] | None) -> RunConfig:
    if epochs is not None:
        config = shorter(config, epochs)
    return dataclasses.replace(config, **changes) if changes else config


def _once(runs: list[PlannedRun]) -> list[PlannedRun]:
    """Equal configs are one run: the loss curves are runs of Table 1."""
    first: dict[str, PlannedRun] = {}
    for run in runs:
        first.setdefault(run.config.key, run)
    taken: set[str] = set()
    for key, run in first.items():
        # Two recipes may call different runs alike: those of the overhead table are those of another one, but short.
        if run.name in taken:
            first[key] = dataclasses.replace(run, name=f"{run.name} ({key})")
        taken.add(run.name)
    return list(first.values())


def _chosen(name: str, only: Sequence[str]) -> bool:
    """Whether some pattern matches whole neighbouring parts: "resnet20/adam" not "resnet20/adam-all"."""
    parts = name.split("/")
    for pattern in only:
        wanted = pattern.strip("/").split("/")
        for start in range(len(parts) - len(wanted) + 1):
            if all(fnmatchcase(part, want) for part, want in zip(parts[start:], wanted, strict=False)):
                return True
    return not only


def _parse_shard(shard: str) -> tuple[int, int]:
    number, slash, count = shard.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ValueError(f"--shard {shard}: write i/n with i from 1 to n, for example 2/5")
    return int(number), int(count)
