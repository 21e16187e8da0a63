"""The smaller tables: slow-nets, other methods, overhead, float networks, learning rates, and the list of all runs."""

from __future__ import annotations

import re
from typing import Any

from ..recipes import floats, overhead, sota, table1, table3, table4
from .document import Table
from .results import Group, Results, reference
from .statistics import mean
from .tables import STE, from_one_start, other_lengths, start_words
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

_BESIDE = ("Paper", "Ours, last epoch", "n", "Ours, best", "Ours − paper")


def slow_net_table(results: Results) -> Table:
    paper = reference("paper")["table3"]
    rows = []
    for epochs, settings in [(None, table3.settings()), *other_lengths(results, table3.settings())]:
        groups = from_one_start(results, settings)
        for setting in settings:
            model, _, slow = setting.name.split("/")
            group = groups[setting.name]
            value = paper.get(setting.name) if epochs is None else None
            where = f"{model_name(model)}, {data_name(setting.config.data)}"
            where += "" if model in ("resnet44", "resnet56") else " (variant)"
            where += "" if epochs is None else f", {epochs} epochs"
            rows.append((where + start_words(results, group), method_name(slow), *_beside(value, results, group)))
    return Table("Slow-nets, Adam", ("Network", "Slow-net", *_BESIDE), tuple(rows), labels=2)


def _beside(paper: tuple[float, float] | None, results: Results, group: Group) -> tuple[str, ...]:
    """The paper's value and deviation, if it has one, and ours."""
    return (
        NONE if paper is None else spread(*paper),
        _value(results, group),
        str(group.n) if group.n else NONE,
        f"{group.mean('best_test_accuracy'):.2f}" if group.n else NONE,
        signed(group.mean() - paper[0]) if group.n and paper is not None else NONE,
    )


def _value(results: Results, group: Group) -> str:
    """The group's value; of what was run from another start than the others, that."""
    elsewhere = not group.n and any(other.n for other in results.groups(group.setting))
    return "run from another start" if elsewhere else group_value(group)


def sota_table(results: Results) -> Table:
    paper = reference("paper")["table4"]
    rows = []
    for epochs, settings in [(None, table4.settings()), *other_lengths(results, table4.settings())]:
        groups = from_one_start(results, settings)
        for name in (name for name in paper if name in groups):  # in the paper's order
            group = groups[name]
            model, _, method = name.split("/")
            value = paper[name] if epochs is None else None
            ste = groups.get(f"{model}/adam/{STE}")
            against = group.against(ste) if ste is not None and method != STE else None
            where = f"{model_name(model)}, {data_name(group.setting.config.data)}"
            where += "" if epochs is None else f", {epochs} epochs"
            rows.append(
                (
                    where + start_words(results, group),
                    method_name(method) if method != STE else "DoReFa with STE",
                    *_beside(value, results, group),
                    difference(against),
                    pair_words(against),
                )
            )
    columns = ("Network", "Method", *_BESIDE, "Against STE [95 %]", "Paired t-test")
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
        ste, mine = seconds[f"{model}/adam/{STE}"], seconds[name]
        device = next((device for device in (*ste, *mine) if device in mine), None)
        said = paper.get(name)
        said_ste = paper[f"{model}/adam/{STE}"]["seconds"] if said else 1.0
        rows.append(
            (
                f"{model_name(model)}, {data_name(group.setting.config.data)}",
                method_name(method) if method != "multifc" else "fast-net alone (MultiFC)",
                f"{said['seconds']:.1f} ({said['seconds'] / said_ste:.1f}×)" if said else NONE,
                NOT_RUN if device is None else f"{mine[device]:.2f}",
                f"{mine[device] / ste[device]:.1f}×" if device is not None and device in ste else NONE,
                device or NONE,
            )
        )
    columns = ("Network", "Method", "Paper, s an epoch", "Ours, s an epoch", "Times STE", "Device")
    return Table("Seconds of training an epoch", columns, tuple(rows), labels=2)


def _seconds_alone(group: Group) -> dict[str, float]:
    """Seconds an epoch on each device that a run had to itself, all the time."""
    by_device: dict[str, list[float]] = {}
    for record in group.records:
        if (
            record.conditions.get("jobs") == 1
            and "earlier" not in record.conditions
            and len(record.curve["seconds"]) > 1
        ):
            by_device.setdefault(record.conditions["device"], []).extend(record.curve["seconds"][1:])
    return {device: mean(found) for device, found in by_device.items()}


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
                group.precision or NONE,
            )
        )
    columns = ("Network", "Paper", "Published weights", "Pretrained by us, last epoch", "Best", "Precision")
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
    last = conditions["device"]
    moves = [(one.get("device", last), one["until_step"]) for one in conditions.get("earlier", [])]
    places = [(device, step) for i, (device, step) in enumerate(moves) if device != (*moves, (last, 0))[i + 1][0]]
    return ", then ".join([*(f"{device} to step {step}" for device, step in places), last])


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
