"""The figures of the paper, and two that it lacks, from recorded runs. A figure without data isn't drawn."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from ..recipes import Setting, plus, research, table1, table2
from ..reproduce.record import HISTOGRAM_BINS
from .results import Group, Results
from .statistics import mean
from .svg import Axis, Figure, Series, chart, ridges
from .tables import in_table_order, starts_of
from .words import data_name, gradient_name, method_name, model_name, protocol_name, signed

_COLOUR_OF = {
    "ste": 0,
    "fsg": 1,
    "fsg-code": 2,
    "multifc": 3,
    "lstmfc": 4,
    "fcgrad": 5,
    "fsg-weight": 6,
    "fsg-lstm": 7,
}


def colour(method: str) -> int:
    return _COLOUR_OF.get(method, 7)


def curves(results: Results) -> list[Figure]:
    """Training loss and test accuracy over the epochs, mean over the seeds, the band from lowest to highest."""
    settings = sorted([*table1.settings(), *table2.settings()], key=lambda s: not s.name.startswith("resnet44/"))
    return _curves(panels(results, settings))


def plus_curves(results: Results) -> list[Figure]:
    """The same of FSG-plus and STE, where both were run on the strong recipe."""
    strong = [setting for setting in plus.settings() if setting.name.split("/")[1].endswith("-strong")]
    return _curves([panel for panel in panels(results, strong) if len(panel[2]) > 1])


def _curves(shown: Sequence[tuple[str, str, list[Group]]]) -> list[Figure]:
    found = []
    for model, protocol, groups in shown:
        where = f"{model_name(model)}, {data_name(groups[0].setting.config.data)}, {protocol_name(protocol)}"
        for name, label, log in (("train_loss", "training loss", True), ("test_accuracy", "test accuracy, %", False)):
            series = [band(group, name) for group in groups]
            alt = f"{label.capitalize()} of {where} over the epochs: " + _ends(groups, name)
            found.append(_by_epoch(f"{name.replace('_', '-')}-{model}-{protocol}", where, label, log, series, alt))
    return found


def _by_epoch(name: str, where: str, label: str, log: bool, series: list[Series], alt: str) -> Figure:
    limits = None if log else _late_limits(series)
    body = chart(series, Axis("epoch"), Axis(label, log=log, limits=limits), alt=alt)
    return Figure(name, f"{where}: {label}", alt, body)


RESEARCH = ("distill-cutout/ste", "distill-cutout/fsg-plus-0.5")  # names of research.IDEAS


def research_curves(results: Results) -> list[Figure]:
    """Validation accuracy and training loss of FSG-plus beside STE on the best recipe, over all of its epochs."""
    ideas = [idea for idea in research.IDEAS if idea.name in RESEARCH]
    shown = [(idea, group) for idea in ideas if (group := results.group(idea.setting)).n]
    shown = [(idea, group) for idea, group in shown if group.start == shown[0][1].start]
    if len(shown) < len(RESEARCH):
        return []
    config = shown[0][0].setting.config
    where = f"{model_name(config.model)}, {data_name(config.data)}, {shown[0][0].label}"
    found = []
    for name, curve, label, log in (
        ("research-curves", "test_accuracy", "validation accuracy, %", False),
        ("research-curves-loss", "train_loss", "training loss", True),
    ):
        series = [
            dataclasses.replace(band(group, curve), label=f"{gradient_name(idea)} ({group.n})") for idea, group in shown
        ]
        ends = ", ".join(f"{gradient_name(idea)} ends at {group.mean(curve):.4g}" for idea, group in shown)
        alt = f"{label.capitalize()} of {where} over the epochs, means over the seeds: {ends}."
        found.append(_by_epoch(name, where, label, log, series, alt))
    return found


INDICATORS = {
    "flip_ratio": "share of the bits flipped in an epoch",
    "gradient_cosine": "cosine to STE's gradient",
    "cosine_to_float": "cosine to the float network's gradient",
    "estimating_error": "estimating error",
    "gradient_stability": "variance of the gradient's size",
    "sign_entropy": "entropy of the signs, bits",
}


def indicator_figures(results: Results) -> list[Figure]:
    """What the bits and their gradients do over the epochs, where runs recorded it (``train --metrics`` does)."""
    found = []
    for model, protocol, groups in panels(results, [*table1.settings(), *table2.settings()]):
        where = f"{model_name(model)}, {data_name(groups[0].setting.config.data)}, {protocol_name(protocol)}"
        for name, label in INDICATORS.items():
            measured = [group for group in groups if all(_whole(record.curve, name) for record in group.records)]
            if not measured:
                continue
            series = [band(group, name) for group in measured]
            alt = f"{label[0].upper()}{label[1:]} over the epochs, {where}."
            body = chart(series, Axis("epoch"), Axis(label), alt=alt)
            found.append(Figure(f"{name.replace('_', '-')}-{model}-{protocol}", f"{where}: {label}", alt, body))
    return found


def _whole(curve: Mapping[str, Sequence[float | None]], name: str) -> bool:
    return name in curve and None not in curve[name]


def panels(results: Results, settings: Sequence[Setting]) -> list[tuple[str, str, list[Group]]]:
    """Network, training and what was run of it; one panel shows runs from one start, the one with most runs."""
    panels: dict[tuple[str, str], list[Group]] = {}
    for setting in settings:
        model, protocol, _ = setting.name.split("/")
        panels.setdefault((model, protocol), []).extend(group for group in results.groups(setting) if group.n)
    found = []
    for (model, protocol), groups in panels.items():
        if groups:
            start = starts_of(groups)[0]
            found.append((model, protocol, in_table_order([group for group in groups if group.start == start])))
    return found


def band(group: Group, name: str) -> Series:
    """A quantity over the epochs: its mean over the seeds, and from lowest to highest."""
    rows = [record.curve[name] for record in group.records]
    columns = list(zip(*rows, strict=True))
    label = f"{method_name(group.method)} ({group.n})"
    low, high = ([min(c) for c in columns], [max(c) for c in columns]) if group.n > 1 else (None, None)
    return Series(label, colour(group.method), range(1, len(columns) + 1), [mean(c) for c in columns], low, high)


def _late_limits(series: Sequence[Series]) -> tuple[float, float]:
    """Without the first tenth of the epochs, whose rise would flatten everything after it."""
    late = [y for s in series for part in (s.ys, s.low or (), s.high or ()) for y in part[len(part) // 10 :]]
    pad = 0.05 * (max(late) - min(late)) or 0.5
    return min(late) - pad, max(late) + pad


def _ends(groups: Sequence[Group], name: str) -> str:
    return ", ".join(f"{method_name(g.method)} ends at {g.mean(name):.4g}" for g in groups) + "."


def cost_figures(results: Results) -> list[Figure]:
    """Accuracy against seconds of training, a point a run."""
    found = []
    for model, protocol, groups in panels(results, [*table1.settings(), *table2.settings()]):
        if len(groups) < 2:
            continue
        where = f"{model_name(model)}, {data_name(groups[0].setting.config.data)}, {protocol_name(protocol)}"
        series = [
            Series(
                method_name(g.method),
                colour(g.method),
                g.values("seconds"),
                g.values("test_accuracy"),
                points=True,
                line=False,
            )
            for g in groups
        ]
        alt = f"Last-epoch accuracy against seconds of training, {where}: " + ", ".join(
            f"{method_name(g.method)} {g.mean('seconds'):.0f} s, {g.mean():.2f} %" for g in groups
        )
        body = chart(series, Axis("seconds of training", log=True), Axis("test accuracy, %"), alt=alt)
        found.append(Figure(f"seconds-{model}-{protocol}", f"{where}: accuracy against time", alt, body))
    return found


def ridge_figures(results: Results) -> list[Figure]:
    """Where the latent weights of each layer lie when training ends, STE against FSG, seed 0."""
    found = []
    for model, protocol, groups in panels(results, [*table1.settings(), *table2.settings()]):
        chosen = [g for g in groups if g.method in ("ste", "fsg") and _histograms(g)]
        if not chosen:
            continue
        layers = [name for name in _histograms(chosen[0]) if not _is_float(name, groups[0])]
        picked = layers[:: max(1, -(-len(layers) // 20))]
        rows = [(name, [_shares(_histograms(g)[name]) for g in chosen]) for name in picked]
        where = f"{model_name(model)}, {data_name(chosen[0].setting.config.data)}, {protocol_name(protocol)}"
        alt = f"Latent weights of the binary layers at the end of training, {where}, seed 0, in equal bins."
        body = ridges(rows, [method_name(g.method) for g in chosen], x="tanh(W) / max|tanh W|", alt=alt)
        found.append(Figure(f"ridges-{model}-{protocol}", f"{where}: latent weights", alt, body))
    return found


def _histograms(group: Group) -> dict[str, list[int]]:
    first = group.records[0]
    return first.content.get("latent_weights", {}) if first.config.seed == 0 else {}


def _is_float(layer: str, group: Group) -> bool:
    return bool(group.setting.config.skip) and layer in ("conv1", "fc")


def _shares(counts: Sequence[int]) -> list[float]:
    total = sum(counts) or 1
    return [HISTOGRAM_BINS * count / total for count in counts]


def theorem_figures(results: Results) -> list[Figure]:
    """The averaged iterate's error over the iterations, on logarithmic axes."""
    content = results.extra("theorem", "cases")
    if content is None:
        return []
    series = [
        Series(f"{case['label']}: slope {signed(case['slope'])}", 1 + i, case["t"], case["error"])
        for i, case in enumerate(content["cases"])
    ]
    first = content["cases"][0]
    guide = [first["error"][0] * (t / first["t"][0]) ** -0.5 for t in first["t"]]
    series.append(Series("slope −1/2, the theorem's rate", 0, first["t"], guide, dashed=True))
    alt = "Error of the averaged iterate: " + ", ".join(s.label for s in series) + "."
    axes = Axis("iterations t", log=True), Axis("f(mean of x) − f(x*)", log=True)
    return [Figure("theorem", "Theorem 1: error of the averaged iterate", alt, chart(series, *axes, alt=alt))]
