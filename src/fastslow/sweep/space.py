"""What a sweep searches: ``beta=0.1:0.9 length=3..7 lr=1e-4:1e-2:log method=ste,fsg``, and configs drawn from it."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..methods import METHODS, get_method
from ..training.build import method_fields
from ..training.config import RunConfig

# The fields of a run that can be searched; each is also an option of `fastslow train`.
RUN_FIELDS = (
    *("method", "binarizer", "bits", "activations", "optimizer", "lr", "momentum", "weight_decay", "schedule"),
    *("step_epochs", "warmup_epochs", "epochs", "batch_size", "augment", "seed", "precision"),
    *("distill", "distill_temperature", "ema", "damping", "reestimate", "cutout"),
)
_HELP = "write name=0.1:0.9, name=1e-4:1e-2:log, name=3..7 or name=a,b"
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_WHOLE_RANGE = re.compile(r"([+-]?\d+)\.\.([+-]?\d+)(:log)?")
_REAL_RANGE = re.compile(rf"({_NUMBER}):({_NUMBER})(:log)?")


class Suggests(Protocol):
    """The part of an Optuna trial that draws."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float: ...

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int: ...

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any: ...


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, both included."""

    name: str
    low: float
    high: float
    log: bool
    whole: bool

    def suggest(self, trial: Suggests) -> float:
        if self.whole:
            return trial.suggest_int(self.name, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(self.name, self.low, self.high, log=self.log)

    def extremes(self) -> tuple[Any, ...]:
        return (self.low, self.high)


@dataclass(frozen=True)
class Choice:
    """One of these values; a single one is simply set."""

    name: str
    values: tuple[Any, ...]

    def suggest(self, trial: Suggests) -> Any:
        return self.values[0] if len(self.values) == 1 else trial.suggest_categorical(self.name, self.values)

    def extremes(self) -> tuple[Any, ...]:
        return self.values


Dimension = Range | Choice


@dataclass(frozen=True)
class Space:
    """Dimensions around a config. A field that only some of the methods have is drawn for these alone."""

    base: RunConfig
    dimensions: tuple[Dimension, ...]

    def draw(self, trial: Suggests) -> RunConfig:
        return self._config(lambda dimension: dimension.suggest(trial))

    def check(self) -> None:
        """Refuse, with a sentence, values that no run could have: every extreme is tried, with the others' first."""
        for method, dimension, value in self._corners():
            picked = {"method": method, dimension.name: value}
            config = self._config(lambda d, picked=picked: picked.get(d.name, d.extremes()[0]))
            if config.method is not None:
                get_method(config.method, **method_fields(config))

    def _corners(self) -> Iterator[tuple[str | None, Dimension, Any]]:
        for method in methods_of(self.dimensions, self.base):
            for dimension in self.dimensions:
                for value in dimension.extremes():
                    yield value if dimension.name == "method" else method, dimension, value

    def _config(self, pick: Callable[[Dimension], Any]) -> RunConfig:
        by_name = {dimension.name: dimension for dimension in self.dimensions}
        method = pick(by_name["method"]) if "method" in by_name else self.base.method
        run_fields: dict[str, Any] = {"method": method}
        own_fields = {key: value for key, value in self.base.method_fields.items() if key in fields_of(method)}
        for name, dimension in by_name.items():
            if name in RUN_FIELDS and name != "method":
                run_fields[name] = pick(dimension)
            elif name in fields_of(method):
                own_fields[name] = pick(dimension)
        if run_fields.get("activations") == "real":
            run_fields["activations"] = None
        return dataclasses.replace(self.base, **run_fields, method_fields=own_fields)


def parse_space(texts: Sequence[str], base: RunConfig) -> Space:
    """The space that the words of a command name."""
    if not texts:
        raise ValueError(f"--space is empty: {_HELP}")
    dimensions = tuple(_parse(text) for text in texts)
    names = [dimension.name for dimension in dimensions]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"--space names {twice[0]!r} twice; give it once")
    for dimension in dimensions:
        _check_name(dimension, dimensions, base)
    space = Space(base, dimensions)
    space.check()
    return space


def _parse(text: str) -> Dimension:
    name, equals, values = (part.strip() for part in text.partition("="))
    if not (name and equals and values):
        raise ValueError(f"--space {text}: {_HELP}")
    if match := _WHOLE_RANGE.fullmatch(values):
        low, high = int(match[1]), int(match[2])
    elif match := _REAL_RANGE.fullmatch(values):
        low, high = float(match[1]), float(match[2])
    elif ":" in values or ".." in values:
        raise ValueError(f"--space {text}: {values!r} is no range; {_HELP}")
    else:
        return Choice(name, _parse_choices(text, values))
    log = match[3] is not None
    if not low < high or not math.isfinite(high - low):
        raise ValueError(f"--space {text}: the range must go from a lower to a higher number")
    if log and low <= 0:
        raise ValueError(f"--space {text}: a logarithmic range must start above 0")
    return Range(name, low, high, log, isinstance(low, int))


def _parse_choices(text: str, values: str) -> tuple[Any, ...]:
    words = [word.strip() for word in values.split(",")]
    if "" in words or len(set(words)) != len(words):
        raise ValueError(f"--space {text}: give different values with commas between them, for example method=ste,fsg")
    return tuple(_literal(word) for word in words)


def _literal(word: str) -> Any:
    try:
        value = ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return word
    return value if value is None or isinstance(value, bool | int | float | str) else word


def methods_of(dimensions: Sequence[Dimension], base: RunConfig) -> tuple[str | None, ...]:
    """The methods that a sweep may draw."""
    return next((d.extremes() for d in dimensions if d.name == "method" and isinstance(d, Choice)), (base.method,))


def fields_of(method: str | None) -> dict[str, str]:
    """A method's fields and their types as they are written."""
    return {} if method is None else {f.name: str(f.type) for f in dataclasses.fields(METHODS[method].cls)}


def _check_name(dimension: Dimension, dimensions: Sequence[Dimension], base: RunConfig) -> None:
    own = {name: kind for method in methods_of(dimensions, base) for name, kind in fields_of(method).items()}
    run = {f.name: str(f.type) for f in dataclasses.fields(RunConfig) if f.name in RUN_FIELDS}
    types = {**own, **run}
    name = dimension.name
    if name not in types:
        near = difflib.get_close_matches(name, types, n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"of a run: {', '.join(RUN_FIELDS)}"
        raise ValueError(
            f"--space {name}: neither a field of the method nor one of the run that can be searched; {hint}"
        )
    if isinstance(dimension, Range):
        if types[name] not in ("int", "float"):
            raise ValueError(f"--space {name}: takes no range of numbers; give values with commas between them")
        if types[name] == "int" and not dimension.whole:
            raise ValueError(f"--space {name}: takes whole numbers; write {name}=LOW..HIGH")
    elif name not in RUN_FIELDS:  # a run's own fields are checked by its config
        kinds: dict[str, Any] = {"int": int, "float": int | float, "bool": bool}
        for value in dimension.values:
            kind = kinds.get(types[name], object)
            if not isinstance(value, kind) or (isinstance(value, bool) and types[name] != "bool"):
                raise ValueError(f"--space {name}: {value!r} is no {types[name]}, which the field takes")
