"""The sweeps of beta and l: a figure for each network, and the numbers behind them."""

from __future__ import annotations

from collections.abc import Iterator

from ..recipes import Setting, sweeps
from .document import Table
from .results import Group, Results
from .svg import Axis, Figure, Series, chart
from .tables import from_one_start, other_lengths, start_words
from .words import NONE, data_name, difference, group_value, model_name, pair_words

# What the paper finds best.
BEST = {"beta": 0.3, "length": 6}
_SYMBOLS = {"beta": "beta", "length": "l"}
_AXES = {"beta": "beta, weight of the slow gradient", "length": "l, length of the history"}
_PAPERS = "resnet56"


def sweep_figures(results: Results) -> list[Figure]:
    """Accuracy against beta and against l, with the paper's best value marked; squeezed schedules are figures apart."""
    found = []
    for field, epochs, settings in _networks(results):
        points = [(float(g.method), g) for g in from_one_start(results, settings).values() if g.n]
        if len(points) >= 2:
            found.append(_figure(field, points, epochs))
    return found


def sweep_table(results: Results) -> Table:
    """What the figures show, and every value against the paper's best, on the same seeds."""
    rows = []
    for field, epochs, settings in _networks(results):
        groups = list(from_one_start(results, settings).values())
        best = next((group for group in groups if float(group.method) == BEST[field]), None)
        for group in groups:
            against = None if best is None or group is best else group.against(best)
            rows.append(
                (
                    f"{_where(group.setting, epochs)}{start_words(results, group)}, {_SYMBOLS[field]}",
                    group.method,
                    group_value(group),
                    str(group.n) if group.n else NONE,
                    group_value(group, "last10") if group.n else NONE,
                    group_value(group, "train_loss", 3) if group.n else NONE,
                    NONE if against is None else f"{difference(against)}, {pair_words(against)}",
                )
            )
    columns = ("Network", "Value", "Last epoch", "n", "Last 10", "Training loss", "Against the paper's best [95 %]")
    return Table("FSG with other weights of the slow gradient and histories of other length", columns, tuple(rows), 2)


def _networks(results: Results) -> Iterator[tuple[str, int | None, list[Setting]]]:
    """Field, number of epochs where it isn't the recipe's, and the settings of one network."""
    for field, settings in (("beta", sweeps.beta()), ("length", sweeps.length())):
        for epochs, lasting in [(None, settings), *other_lengths(results, settings)]:
            for model in dict.fromkeys(s.name.split("/")[0] for s in lasting):
                yield field, epochs, [s for s in lasting if s.name.startswith(f"{model}/")]


def _where(setting: Setting, epochs: int | None) -> str:
    model = setting.name.split("/")[0]
    variant = "" if model == _PAPERS else " (variant)"
    return f"{model_name(model)}, {data_name(setting.config.data)}{variant}" + (f", {epochs} epochs" if epochs else "")


def _figure(field: str, points: list[tuple[float, Group]], epochs: int | None) -> Figure:
    setting = points[0][1].setting
    model, where = setting.name.split("/")[0], _where(setting, epochs)
    values = [g.values("test_accuracy") for _, g in points]
    xs, ys = [x for x, _ in points], [g.mean() for _, g in points]
    counts = ", ".join(str(g.n) for _, g in points)
    ends = ([min(v) for v in values], [max(v) for v in values])
    series = [Series(f"FSG, last epoch (n = {counts})", 1, xs, ys, *ends, points=True)]
    alt = f"Accuracy of FSG on {where} for {_SYMBOLS[field]} of " + ", ".join(
        f"{x:g}: {y:.2f}" for x, y in zip(xs, ys, strict=True)
    )
    marks = [(BEST[field], "paper's best")]
    body = chart(series, Axis(_AXES[field]), Axis("test accuracy, %"), alt=alt, marks=marks)
    name = f"sweep-{field}-{model}" if epochs is None else f"sweep-{field}-{model}-{epochs}-epochs"
    return Figure(name, f"Sweep of {_SYMBOLS[field]}, {where}", alt, body)
