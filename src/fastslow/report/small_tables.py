"""The smaller tables: slow-nets, other methods, overhead, float networks, learning rates, and the list of all runs."""

from __future__ import annotations

import re
from typing import Any

from ..recipes import Setting, floats, overhead, sota, table1, table3, table4
from .document import Table
from .results import Group, Results, reference
from .statistics import mean
from .tables import STE, other_lengths, start_words, starts_of
from .words import (
    NONE,
    NOT_RUN,
    data_name,
    difference,
    group_value,
    method_name,
    model_name,
    pair_words,
    signed,
    spread,
)


def slow_net_table(results: Results) -> Table:
    paper = reference("paper")["table3"]
    rows = []
    for epochs, settings in [(None, table3.settings()), *other_lengths(results, table3.settings())]:
        groups = _from_one_start(results, settings)
        for setting in settings:
            model, _, slow = setting.name.split("/")
            group = groups[setting.name]
            value = paper.get(setting.name) if epochs is None else None
            where = f"{model_name(model)}, {data_name(setting.config.data)}"
            where += "" if model in ("resnet44", "resnet56") else " (variant)"
            where += "" if epochs is None else f", {epochs} epochs"
            rows.append(
                (
                    where + start_words(results, group),
                    method_name(slow),
                    NONE if value is None else spread(*value),
                    group_value(group),
                    str(group.n) if group.n else NONE,
                    f"{group.mean('best_test_accuracy'):.2f}" if group.n else NONE,
                    signed(group.mean() - value[0]) if group.n and value is not None else NONE,
                )
            )
    columns = ("Network", "Slow-net", "Paper", "Ours, last epoch", "n", "Ours, best", "Ours − paper")
    return Table("Slow-nets, Adam", columns, tuple(rows), labels=2)


def _from_one_start(results: Results, settings: list[Setting]) -> dict[str, Group]:
    """Of each network the runs from one start, the one with most of them: only those can be compared."""
    by_model: dict[str, list[Group]] = {}
    for setting in settings:
        by_model.setdefault(setting.name.split("/")[0], []).extend(results.groups(setting))
    found = {setting.name: Group(setting, (), 0) for setting in settings}
    for groups in by_model.values():
        start = starts_of(groups)[0]
        found |= {group.setting.name: group for group in groups if group.start == start}
    return found


def sota_table(results: Results) -> Table:
    paper = reference("paper")["table4"]
    groups = _from_one_start(results, table4.settings())
    rows = []
    for name in paper:  # in the paper's order
        group = groups[name]
        model, _, method = name.split("/")
        against = group.against(groups[f"{model}/adam/{STE}"]) if method != STE else None
        rows.append(
            (
                f"{model_name(model)}, {data_name(group.setting.config.data)}{start_words(results, group)}",
                method_name(method) if method != STE else "DoReFa with STE",
                spread(*paper[name]),
                group_value(group),
                str(group.n) if group.n else NONE,
                f"{group.mean('best_test_accuracy'):.2f}" if group.n else NONE,
                signed(group.mean() - paper[name][0]) if group.n else NONE,
                difference(against),
                pair_words(against),
            )
        )
    columns = ("Network", "Method", "Paper", "Ours, last epoch", "n", "Ours, best", "Ours − paper")
    columns = (*columns, "Against STE [95 %]", "Paired t-test")
    return Table("Methods under the same short protocol, Adam", columns, tuple(rows), labels=2)


def published_recipes_table(results: Results) -> Table:
    """The other methods trained as their authors do; what they published is in the recipe's own words."""
    rows = []
    for setting in sota.published():
        group = results.group(setting)
        said = re.search(r"Published[^:]*: ([0-9.]+[0-9])", sota.RUNS[setting.name].__doc__ or "")
        rows.append(
            (
                setting.name,
                str(setting.config.epochs),
                NONE if said is None else said[1],
                group_value(group),
                str(group.n) if group.n else NONE,
                f"{group.mean('best_test_accuracy'):.2f}" if group.n else NONE,
            )
        )
    columns = ("Recipe", "Epochs", "Published", "Ours, last epoch", "n", "Ours, best")
    return Table("Published recipes, CIFAR-10", columns, tuple(rows))


def common_recipe_table(results: Results) -> Table:
    rows = []
    for setting in sota.compared():
        _, kind, method = setting.name.split("/")
        group = results.group(setting)
        best = f"{group.mean('best_test_accuracy'):.2f}" if group.n else NONE
        inputs = {"w1a32": "real", "w1a1": "1 bit"}[kind]
        rows.append((inputs, method_name(method), group_value(group), str(group.n) if group.n else NONE, best))
    columns = ("Activations", "Method", "Ours, last epoch", "n", "Ours, best")
    return Table("One recipe for all: ResNet-20, CIFAR-10, 400 epochs from scratch", columns, tuple(rows), labels=2)


def overhead_table(results: Results) -> Table:
    """Only runs that had the device to themselves; the first epoch, which warms up, is left out."""
    paper = reference("paper")["overhead"]
    groups = {s.name: results.group(s) for s in overhead.settings()}
    seconds = {name: _seconds_alone(group) for name, group in groups.items()}
    rows = []
    for name, group in groups.items():
        model, _, method = name.split("/")
        mine, ste = seconds[name], seconds[f"{model}/adam/{STE}"]
        said = paper.get(name)
        said_ste = paper[f"{model}/adam/{STE}"]["seconds"] if said else 1.0
        device = group.records[0].conditions["device"] if mine is not None else NONE
        rows.append(
            (
                f"{model_name(model)}, {data_name(group.setting.config.data)}",
                method_name(method) if method != "multifc" else "fast-net alone (MultiFC)",
                f"{said['seconds']:.1f} ({said['seconds'] / said_ste:.1f}×)" if said else NONE,
                NOT_RUN if mine is None else f"{mine:.2f}",
                f"{mine / ste:.1f}×" if mine is not None and ste else NONE,
                device,
            )
        )
    columns = ("Network", "Method", "Paper, s an epoch", "Ours, s an epoch", "Times STE", "Device")
    return Table("Seconds of training an epoch", columns, tuple(rows), labels=2)


def _seconds_alone(group: Group) -> float | None:
    alone = [r for r in group.records if r.conditions.get("jobs") == 1 and len(r.curve["seconds"]) > 1]
    return mean([value for record in alone for value in record.curve["seconds"][1:]]) if alone else None


def float_table(results: Results) -> Table:
    paper, starts = reference("paper")["float"], results.published_floats
    rows = []
    for setting in floats.settings():
        model, data, _ = setting.name.split("/")
        group, start = results.group(setting), starts.get(f"{model}_{data}")
        rows.append(
            (
                f"{model_name(model)}, {data_name(data)}",
                f"{paper[model]:.2f}",
                NONE if start is None else f"{start:.2f}",
                group_value(group),
                f"{group.mean('best_test_accuracy'):.2f}" if group.n else NONE,
            )
        )
    columns = ("Network", "Paper", "Published weights", "Pretrained by us, last epoch", "Best")
    return Table("Float networks", columns, tuple(rows))


def lr_table(results: Results) -> Table:
    rows = []
    for setting in table1.lr_sweep():
        _, optimizer, rate = setting.name.split("/")
        group = results.group(setting)
        label = {"sgd": "SGD", "momentum": "SGD, momentum 0.9"}[optimizer]
        rows.append((label, rate.removeprefix("lr"), group_value(group)))
    columns = ("Optimizer", "lr", "Held-out accuracy, last epoch")
    return Table("STE on ResNet-20, 30 epochs, last 5,000 training images held out", columns, tuple(rows), labels=2)


def _devices(conditions: dict[str, Any]) -> str:
    """Where a run was done, and where before, if it moved."""
    before = [
        f"{one['device']} to step {one['until_step']}" for one in conditions.get("earlier", []) if "device" in one
    ]
    return ", then ".join([*before, conditions["device"]])


def run_table(results: Results) -> Table:
    """Every recorded run: the files behind all numbers above."""
    rows = []
    for record in results.records:
        config, conditions = record.config, record.conditions
        shown = "diverged" if record.failed else f"{record['test_accuracy']:.2f}"
        best = NONE if record.failed else f"{record['best_test_accuracy']:.2f} ({record['best_epoch']})"
        rows.append(
            (
                str(record.path),
                shown,
                best,
                "test" if config.holdout == 0 else f"{config.holdout} held out",
                str(config.epochs),
                NONE if record.failed else f"{record['seconds']:.0f}",
                config.precision,
                f"{_devices(conditions)}, {conditions.get('jobs', 1)} of its grid at once",
                f"{conditions['torch']}",
                conditions.get("commit") or NONE,
            )
        )
    columns = (
        "File",
        "Last",
        "Best (epoch)",
        "Measured on",
        "Epochs",
        "Seconds",
        "Precision",
        "Device",
        "torch",
        "Commit",
    )
    note = "Other grids may have shared the device too." if rows else "None yet."
    return Table("Recorded runs", columns, tuple(rows), note=note)
