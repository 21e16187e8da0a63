"""Tables 1 and 2 of the paper, with its values, MetaQuant's and ours side by side, and what follows from them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ..recipes import Setting, floats, overhead, plus, table1, table2
from ..recipes.base import PAPER_EPOCHS, shorter
from .document import Table
from .results import LAST, Group, Results, reference
from .statistics import PAIRS_LEAST
from .words import (
    METHOD_ORDER,
    NONE,
    data_name,
    difference,
    group_value,
    method_name,
    model_name,
    pair_words,
    protocol_name,
    signed,
    spread,
)

STE = "ste"
TUNED = ("sgd-tuned", "momentum")  # protocols whose rate is STE's best, beside the paper's
_LAST = f"Ours, last {LAST}"
_COLUMNS = (
    "Training",
    "Method",
    "Paper",
    "MetaQuant, last 10 / best",
    "Ours, last epoch",
    "n",
    _LAST,
    "Ours, best",
    "Train acc. (paper)",
    "Loss (paper)",
    "Ours − paper",
    "Against STE [95 %]",
    "Paired t-test",
)
_PUBLISHED = ("Paper", "MetaQuant, last 10 / best", "Ours − paper")


def main_tables(results: Results, settings: list[Setting]) -> list[Table]:
    """Tables 1 and 2 and their variants: one table a network."""
    floats_found = {g.setting.name.split("/")[0]: g for g in (results.group(s) for s in floats.settings())}
    tables = []
    for model in dict.fromkeys(s.name.split("/")[0] for s in settings):
        mine = [s for s in settings if s.name.startswith(f"{model}/")]
        tables.append(_main_table(results, model, mine, floats_found[model]))
    return tables


def _main_table(results: Results, model: str, settings: list[Setting], own_float: Group) -> Table:
    rows = []
    for protocol in dict.fromkeys(s.name.split("/")[1] for s in settings):
        groups = [g for s in settings if s.name.split("/")[1] == protocol for g in results.groups(s)]
        for start in starts_of(groups):
            same = {group.setting.name: group for group in groups if group.start == start}
            ste = same.get(f"{model}/{protocol}/{STE}")
            rows += [_main_row(results, group, ste) for group in in_table_order(same.values())]
    data = settings[0].config.data
    note = "Beside a training stands the accuracy of the float weights its runs started from."
    table = Table(f"{model_name(model)}, {data_name(data)}", _COLUMNS, tuple(rows), labels=2, note=note)
    epochs = settings[0].config.epochs
    if epochs != PAPER_EPOCHS:  # of which nothing was published; and a mean over the last ten of ten says little
        return _without(table, (*_PUBLISHED, _LAST) if epochs <= LAST else _PUBLISHED)
    published_float = results.published_floats.get(f"{model}_{data}")
    floats_said = (
        f"Float network: {reference('paper')['float'][model]:.2f} in the paper; MetaQuant's published weights: "
        f"{NONE if published_float is None else f'{published_float:.2f}'}; pretrained by us: {group_value(own_float)}."
    )
    return dataclasses.replace(table, note=f"{floats_said} {note}")


def _without(table: Table, left_out: tuple[str, ...]) -> Table:
    """Without these columns; the others have no value of the paper in brackets."""
    kept = [i for i, column in enumerate(table.columns) if column not in left_out]
    columns = tuple(table.columns[i].removesuffix(" (paper)") for i in kept)
    return dataclasses.replace(table, columns=columns, rows=tuple(tuple(row[i] for i in kept) for row in table.rows))


def starts_of(groups: Iterable[Group]) -> list[str | None]:
    """The starts that occur, the one with most runs first, then what wasn't run."""
    runs = Counter[str | None]()
    for group in groups:
        runs[group.start] += group.n
    return sorted(runs, key=lambda start: (start is None, -runs[start], start or ""))


def from_one_start(results: Results, settings: list[Setting]) -> dict[str, Group]:
    """Of each network the runs from one start, the one with most of them: only those can be compared."""
    by_model: dict[str, list[Group]] = {}
    for setting in settings:
        by_model.setdefault(setting.name.split("/")[0], []).extend(results.groups(setting))
    found = {setting.name: Group(setting, (), 0) for setting in settings}
    for groups in by_model.values():
        start = starts_of(groups)[0]
        found |= {group.setting.name: group for group in groups if group.start == start}
    return found


def training(results: Results, group: Group) -> str:
    """``Adam, from 92.85``: the protocol and, where runs are recorded, the float network that they start from."""
    return protocol_name(group.setting.name.split("/")[1]) + start_words(results, group)


def start_words(results: Results, group: Group) -> str:
    """What runs start from: the float network's accuracy, or where that isn't known its SHA-256's beginning.

    And how they round, where that isn't as their recipe says.
    """
    words = "" if group.precision in (None, group.setting.config.precision) else f", {group.precision}"
    if not group.weights:
        return words
    accuracy = results.float_accuracies.get(group.weights)
    return f", from {group.weights[:8] if accuracy is None else f'{accuracy:.2f}'}{words}"


def _main_row(results: Results, group: Group, ste: Group | None) -> tuple[str, ...]:
    model, protocol, method = group.setting.name.split("/")
    squeezed = group.setting.config.epochs != PAPER_EPOCHS
    paper = None if squeezed else published(model, protocol, method)
    logged = logged_by_metaquant(model, group.setting.config.data, protocol, method)
    has = group.n > 0
    against = group.against(ste) if ste is not None and method != STE else None
    return (
        training(results, group),
        method_name(method),
        NONE if paper is None else spread(*paper["test"]),
        NONE if logged is None else f"{logged['last10']:.2f} / {logged['best']:.2f}",
        group_value(group),
        str(group.n) if has else NONE,
        f"{group.mean('last10'):.2f}" if has else NONE,
        f"{group.mean('best_test_accuracy'):.2f}" if has else NONE,
        (group_value(group, "train_accuracy") if has else NONE) + _bracketed(paper, "train", 2),
        (group_value(group, "train_loss", 3) if has else NONE) + _bracketed(paper, "loss", 3),
        signed(group.mean() - paper["test"][0]) if has and paper is not None else NONE,
        difference(against),
        pair_words(against),
    )


def _bracketed(paper: dict[str, Any] | None, name: str, digits: int) -> str:
    return "" if paper is None else f" ({paper[name][0]:.{digits}f})"


def in_table_order(groups: Iterable[Group]) -> list[Group]:
    return sorted(groups, key=lambda group: METHOD_ORDER.index(group.method))


def published(model: str, protocol: str, method: str) -> dict[str, Any] | None:
    """The paper's row. Its text leaves two layers float and its code none, so both variants stand beside it."""
    base, _, variant = protocol.partition("-")
    return reference("paper")["tables12"].get(f"{model}/{base}/{method}") if variant in ("", "all", "code") else None


def logged_by_metaquant(model: str, data: str, protocol: str, method: str) -> dict[str, Any] | None:
    base, _, variant = protocol.partition("-")
    if variant not in ("", "all", "code"):
        return None
    return reference("metaquant")["settings"].get(f"{model}/{data}/dorefa/{base}/{method}")


def other_lengths(results: Results, settings: list[Setting]) -> list[tuple[int, list[Setting]]]:
    """The same settings with other numbers of epochs, where such runs were recorded for more than their time."""
    found = []
    for epochs in results.epochs:
        if epochs == overhead.EPOCHS:
            continue
        squeezed = [
            dataclasses.replace(s, config=shorter(s.config, epochs)) for s in settings if s.config.epochs != epochs
        ]
        there = [s for s in squeezed if results.group(s).n or results.group(s).diverged]
        if there:
            found.append((epochs, there))
    return found


def headline(results: Results) -> Table:
    """FSG against STE wherever both were run: what the paper is about, in one table."""
    rows = []
    for model, protocol, groups in _by_protocol(results, _shown()):
        ste = groups.get(STE)
        learned = [g for name, g in groups.items() if name != STE and g.n]
        if ste is None or not ste.n or not learned:
            continue
        for group in in_table_order(learned):
            paper = published(model, protocol, group.method)
            paper_ste = published(model, protocol, STE)
            said = NONE if paper is None or paper_ste is None else signed(paper["test"][0] - paper_ste["test"][0])
            against = group.against(ste)
            rows.append(
                (
                    f"{model_name(model)}, {training(results, group)}",
                    method_name(group.method),
                    group_value(group),
                    NONE if against is None else f"{against.reference:.2f}",
                    difference(against),
                    pair_words(against),
                    difference(group.against(ste, "last10")),
                    said,
                    verdict(against),
                )
            )
    columns = ("Difference [95 %]", "Paired t-test", "Difference, last 10 [95 %]", "In the paper", "Shown")
    return Table(
        "Learned gradients against the straight-through estimator",
        ("Setting", "Method", "Ours, last epoch", "STE, same seeds", *columns),
        tuple(rows),
        labels=2,
        note="" if rows else "No setting has runs of both yet.",
    )


def harness_table(results: Results) -> Table:
    """Where MetaQuant published results and we ran the same protocol: both, and the difference."""
    rows = []
    for setting in [*table1.variants(), *table2.variants()]:
        model, protocol, method = setting.name.split("/")
        logged = logged_by_metaquant(model, setting.config.data, protocol, method)
        group = results.group(setting)
        always = protocol == "adam-all" and method == STE  # the row that must be there, run or not
        if not protocol.endswith("-all") or logged is None or not (group.n or always):
            continue
        has = group.n > 0
        rows.append(
            (
                f"{model_name(model)}, {training(results, group)}",
                method_name(method),
                f"{logged['last10']:.2f} / {logged['best']:.2f}",
                f"{group.mean('last10'):.2f} / {group.mean('best_test_accuracy'):.2f}" if has else group_value(group),
                str(group.n) if has else NONE,
                signed(group.mean("last10") - logged["last10"]) if has else NONE,
                signed(group.mean("best_test_accuracy") - logged["best"]) if has else NONE,
            )
        )
    columns = ("Setting", "Method", "MetaQuant, last 10 / best", "Ours, last 10 / best", "n", "Last 10", "Best")
    return Table("Our runs of MetaQuant's protocol and what it published", columns, tuple(rows), labels=2)


def readme_table(results: Results) -> Table:
    """The paper's protocol: STE and every learned method beside it, and STE where SGD's rate suits it."""
    rows = []
    for model, protocol, groups in _by_protocol(results, _of_the_readme()):
        ste = groups.get(STE)
        learned = [g for name, g in groups.items() if ste is not None and name != STE and g.against(ste) is not None]
        if ste is None or not ste.n or not (learned or protocol in TUNED):
            continue
        for group in [ste, *in_table_order(learned)]:
            paper = published(model, protocol, group.method)
            against = group.against(ste)
            rows.append(
                (
                    f"{model_name(model)}, {data_name(group.setting.config.data)}, {training(results, group)}",
                    method_name(group.method),
                    str(group.n),
                    group_value(group),
                    group_value(group, "last10"),
                    NONE if group is ste or against is None else f"{against.reference:.2f}",
                    NONE if group is ste else f"{difference(against)}, {pair_words(against)}",
                    NONE if paper is None else f"{paper['test'][0]:.2f}",
                )
            )
    accuracies = ("Test accuracy, last epoch", "Last 10", "STE, same seeds", "Difference [95 %], last epoch", "Paper")
    columns = ("1-bit weights", "Gradient", "n", *accuracies)
    note = "" if rows else "No setting has runs of both yet."
    return Table("The paper's protocol, from a trained float network", columns, tuple(rows), labels=2, note=note)


def _of_the_readme() -> list[Setting]:
    """Tables 1 and 2 with their rows of a tuned rate, network by network."""
    tuned = [s for s in (*table1.variants(), *table2.variants()) if s.name.split("/")[1] in TUNED]
    models = (*table1.MODELS, *table2.MODELS)
    return sorted(
        [*table1.settings(), *table2.settings(), *tuned], key=lambda setting: models.index(setting.name.split("/")[0])
    )


def verdict(found: Any, than: str = "STE") -> str:
    """In words, at the usual 5 %."""
    if found is None or found.n < PAIRS_LEAST:
        return "too few runs"
    if found.p is None:
        return "every pair differs alike"
    if found.p >= 0.05:
        return "nothing"
    return f"{'better' if found.difference > 0 else 'worse'} than {than}"


def _shown() -> list[Setting]:
    """What the summaries are made of."""
    return [*table1.settings(), *table2.settings(), *plus.settings()]


def _by_protocol(results: Results, settings: list[Setting]) -> list[tuple[str, str, dict[str, Group]]]:
    """Groups by method that can be compared: of one network, one protocol and one start."""
    found: dict[tuple[str, str, str | None], dict[str, Group]] = {}
    for setting in settings:
        model, protocol, method = setting.name.split("/")
        for group in results.groups(setting):
            found.setdefault((model, protocol, group.start), {})[method] = group
    return [(model, protocol, groups) for (model, protocol, _), groups in found.items()]
