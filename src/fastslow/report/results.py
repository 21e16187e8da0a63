"""Recorded runs back from ``results/``, grouped by what they are runs of."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from ..files import PRETRAINED
from ..recipes import Setting
from ..reproduce.record import REPEATED_FOLDER, read_records, told_by
from ..training.config import RunConfig
from ..training.named_weights import file_digest
from .checks import measured, whole
from .statistics import Paired, deviation, mean, paired

LAST = 10  # epochs of MetaQuant's mean


@dataclass(frozen=True, eq=False)
class Record:
    """One recorded run."""

    path: Path  # relative to the folder of results
    config: RunConfig
    content: dict[str, Any]

    @property
    def failed(self) -> bool:
        return "failed" in self.content

    @property
    def curve(self) -> dict[str, list[float]]:
        return self.content["curve"]

    @property
    def conditions(self) -> dict[str, Any]:
        return self.content["conditions"]

    def __getitem__(self, name: str) -> Any:
        return self.content[name]

    @property
    def start(self) -> str:
        """What tells runs of one config apart: the SHA-256 of its teacher and of the weights it started from."""
        return told_by(self.conditions)

    @property
    def last10(self) -> float:
        return mean(self.curve["test_accuracy"][-LAST:])


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one setting from one start with different seeds. Failed ones are counted and take no part in means."""

    setting: Setting
    records: tuple[Record, ...]
    diverged: int
    start: str | None = None  # Record.start; None where nothing was run

    @property
    def n(self) -> int:
        return len(self.records)

    @property
    def method(self) -> str:
        return self.setting.name.rsplit("/", 1)[-1]

    @property
    def weights(self) -> str:
        """SHA-256 of the float weights that the runs started from; empty: from scratch, or nothing was run."""
        return self.records[0].conditions.get("weights_sha256", "") if self.records else ""

    @property
    def precision(self) -> str | None:
        return self.records[0].config.precision if self.records else None

    def values(self, name: str) -> list[float]:
        return [record.last10 if name == "last10" else float(record[name]) for record in self.records]

    def mean(self, name: str = "test_accuracy") -> float:
        return mean(self.values(name))

    def deviation(self, name: str = "test_accuracy") -> float | None:
        return deviation(self.values(name))

    def against(self, other: Group, name: str = "test_accuracy") -> Paired | None:
        """Compared over the seeds that both have, if both started from the same float weights and rounded alike."""
        if (self.start, self.precision) != (other.start, other.precision):
            return None
        mine, theirs = (
            dict(zip((record.config.seed for record in group.records), group.values(name), strict=True))
            for group in (self, other)
        )
        seeds = sorted(mine.keys() & theirs.keys())
        if not seeds:
            return None
        return paired([mine[seed] for seed in seeds], [theirs[seed] for seed in seeds])


class Results:
    """What a folder of results holds. An empty or missing one holds nothing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.records = _once(
            Record(path.relative_to(root), RunConfig.from_dict(content["config"]), whole(path, content))
            for path, content in (read_records(root) if root.is_dir() else ())
        )
        self._by_kind: dict[str, list[Record]] = {}
        for record in self.records:
            self._by_kind.setdefault(_kind(record.config), []).append(record)

    def groups(self, setting: Setting) -> list[Group]:
        """The runs of a setting, one group for each start, the one with most runs first; an empty one if there is none.

        Of the recipe's precision, or else of the one that most runs have.
        """
        found = self._by_kind.get(_kind(setting.config), [])
        by_precision = _split(found, lambda record: record.config.precision)
        if setting.config.precision in by_precision:
            chosen = by_precision[setting.config.precision]
        else:
            chosen = max(by_precision.values(), key=len, default=[])
        by_start = _split(chosen, lambda record: record.start)
        ordered = sorted(by_start.items(), key=lambda item: (-len(item[1]), item[0]))
        return [_group(setting, records, start) for start, records in ordered] or [Group(setting, (), 0)]

    def group(self, setting: Setting) -> Group:
        """The largest of these groups."""
        return self.groups(setting)[0]

    @cached_property
    def float_accuracies(self) -> dict[str, float]:
        """Of the float weights that runs start from, by their SHA-256: those measured by themselves, and our own."""
        found = {}
        for starts in (self._measured("starts"), self._measured("own-starts")):
            found |= {digest: starts["accuracies"][name] for name, digest in starts["sha256"].items()}
        trained = [r for r in self.records if "written_sha256" in r.content and not r.config.holdout]
        return {r["written_sha256"]: r["test_accuracy"] for r in trained} | found | self._shipped_accuracies

    @cached_property
    def published_floats(self) -> dict[str, float]:
        """Accuracies measured for ``starts``, by the weights' names, of those that MetaQuant has published."""
        starts, theirs = self._measured("starts"), reference("metaquant")["weights_sha256"]
        return {n: starts["accuracies"][n] for n, digest in starts["sha256"].items() if theirs.get(n) == digest}

    @cached_property
    def _shipped_accuracies(self) -> dict[str, float]:
        """Of the float networks that come with the package, by SHA-256."""
        found = {}
        for path in sorted(PRETRAINED.glob("*.safetensors")):
            found[file_digest(path)] = json.loads(path.with_suffix(".result.json").read_text())["test_accuracy"]
        return found

    def _measured(self, name: str) -> dict[str, dict[str, Any]]:
        content = self.extra(name, "accuracies", "sha256")
        return {"accuracies": {}, "sha256": {}} if content is None else measured(self.root / f"{name}.json", content)

    def extra(self, name: str, *fields: str) -> dict[str, Any] | None:
        """Another recorded experiment, such as ``theorem``, which has these fields."""
        path = self.root / f"{name}.json"
        if not path.is_file():
            return None
        try:
            content = json.loads(path.read_text())
            missing = [field for field in fields if field not in content]
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} can't be read ({error}); move it away") from error
        if missing:
            raise ValueError(f"{path} has no {', '.join(missing)}; move it away")
        return content

    @cached_property
    def epochs(self) -> list[int]:
        """All lengths of runs that occur."""
        return sorted({record.config.epochs for record in self.records})


def _once(records: Iterable[Record]) -> list[Record]:
    """Without copies; two different results of one run are refused, since one of them would have to be chosen."""
    found: dict[tuple[str, str], Record] = {}
    for record in records:
        first = found.setdefault((record.config.key, record.start), record)
        if first.content != record.content:
            raise ValueError(
                f"{first.path} and {record.path} are two results of one run; the first one counts: move the other into "
                f"{REPEATED_FOLDER}/"
            )
    return list(found.values())


def _split(records: list[Record], by: Callable[[Record], str]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(by(record), []).append(record)
    return found


def _group(setting: Setting, records: list[Record], start: str) -> Group:
    ordered = sorted(records, key=lambda record: record.config.seed)
    kept = tuple(record for record in ordered if not record.failed)
    return Group(setting, kept, len(ordered) - len(kept), start)


def _kind(config: RunConfig) -> str:
    """What makes runs comparable: everything but the seed and how products are rounded."""
    return dataclasses.replace(config, seed=0, precision="float32").key


def reference(name: str) -> dict[str, Any]:
    """Published values: ``paper`` or ``metaquant``."""
    return json.loads((resources.files("fastslow.report") / "reference" / f"{name}.json").read_text())
