"""What was tried on validation images: numbers for the report, hypotheses and verdicts for docs/research.md."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ..recipes import Setting, research
from ..recipes.research import Idea
from ..training.config import RunConfig
from .document import Table
from .results import Group, Results
from .statistics import Paired
from .tables import other_lengths, verdict
from .words import NONE, NOT_RUN, difference, gradient_name, group_value, pair_words

CLAIM = 5  # seeds below which nothing is called a difference


@dataclass(frozen=True)
class _Tried:
    idea: Idea
    group: Group
    against: Paired | None


def validation_tables(results: Results) -> list[Table]:
    """Accuracy and time of every row, and of shorter runs where there are any."""
    columns = ("Recipe", "Gradient", "Epochs", "Validation, last epoch", "n", "Compared with", "Difference [95 %]")
    columns = (*columns, "Paired t-test", "Minutes, shared device")
    tables = []
    for title, tried in _by_length(results):
        rows = [
            (
                one.idea.label,
                gradient_name(one.idea),
                str(one.group.setting.config.epochs),
                group_value(one.group),
                str(one.group.n) if one.group.n else NONE,
                one.idea.against or NONE,
                difference(one.against),
                pair_words(one.against),
                f"{one.group.mean('seconds') / 60:.1f}" if one.group.n else NONE,
            )
            for one in tried
        ]
        tables.append(Table(f"{title}: validation, never the test set", columns, tuple(rows), labels=2))
    start = [(s.name, group_value(results.group(s))) for s in research.start()]
    return [*tables, Table("The float network they start from", ("Run", "Validation, last epoch"), tuple(start))]


def idea_tables(results: Results) -> list[Table]:
    """Hypothesis, change, result and verdict of every row."""
    columns = ("Idea", "Hypothesis", "Change", "Result (n)", "Training loss", "Verdict")
    tables = []
    for title, tried in _by_length(results):
        rows = [
            (
                one.idea.name,
                one.idea.hypothesis,
                change(one.idea, one.group.setting.config.epochs),
                _result(one),
                _training_loss(one),
                _verdict(one),
            )
            for one in tried
        ]
        tables.append(Table(title, columns, tuple(rows), labels=len(columns)))
    return tables


def change(idea: Idea, epochs: int) -> str:
    """The fields in which an idea differs from the row it is compared with; where all were screened, not in epochs."""
    if idea.against is None:
        return NONE
    mine, other = idea.setting.config, _named(idea.against).setting.config
    if epochs != mine.epochs:
        mine, other = dataclasses.replace(mine, epochs=epochs), dataclasses.replace(other, epochs=epochs)
    names = [field.name for field in dataclasses.fields(RunConfig)]
    changed = [f"{name} {getattr(mine, name)}" for name in names if getattr(mine, name) != getattr(other, name)]
    return f"{', '.join(changed)} (against {idea.against})"


def _by_length(results: Results) -> list[tuple[str, list[_Tried]]]:
    """Rows as they are, less those that were only screened; then what was run with another number of epochs."""
    settings = [idea.setting for idea in research.IDEAS]
    shorter = other_lengths(results, settings)
    screened = {setting.name for _, there in shorter for setting in there}
    whole = [s for s in settings if s.name not in screened or results.group(s).n or results.group(s).diverged]
    found = [("ResNet-20, CIFAR-10, 100 epochs", whole)]
    found += [(f"ResNet-20, CIFAR-10, screened with {epochs} epochs", there) for epochs, there in shorter]
    return [(title, _tried(results, settings)) for title, settings in found]


def _tried(results: Results, settings: list[Setting]) -> list[_Tried]:
    groups = {setting.name: results.group(setting) for setting in settings}
    tried = []
    for idea in research.IDEAS:
        group = groups.get(idea.setting.name)
        if group is not None:
            other = None if idea.against is None else groups.get(_named(idea.against).setting.name)
            tried.append(_Tried(idea, group, None if other is None else group.against(other)))
    return tried


def _named(name: str) -> Idea:
    return next(idea for idea in research.IDEAS if idea.name == name)


def _result(one: _Tried) -> str:
    if not one.group.n:
        return group_value(one.group)
    compared = "" if one.against is None else f"; {difference(one.against)}, {pair_words(one.against)}"
    return f"{group_value(one.group)} ({one.group.n}){compared}"


def _training_loss(one: _Tried) -> str:
    return group_value(one.group, "train_loss", 4) if one.group.n else NONE


def _verdict(one: _Tried) -> str:
    if not one.group.n:
        return "diverges" if one.group.diverged else NOT_RUN
    if one.idea.against is None:
        return "the reference"
    if one.against is None or one.against.n < CLAIM:
        return f"open: fewer than {CLAIM} pairs"
    return verdict(one.against, one.idea.against)
