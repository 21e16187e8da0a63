"""The curvature of the loss along the bits, beside batch size times mean squared gradient: the premise of FSG-plus."""

from __future__ import annotations

from itertools import chain
from typing import Any

from .document import Section, Table
from .results import Results
from .svg import Axis, Figure, Series, chart
from .words import data_name, method_name, model_name

FILE = "diagnosis/curvature"
_COLUMNS = (
    "Layer",
    "Weights",
    "RMS of the gradient",
    "RMS of its mean",
    "Curvature h",
    "Batch size × v",
    "h / (batch size × v)",
    "k of FSG-plus",
    "k, the layer's own",
)
_QUARTERS = ("smallest quarter of v", "second", "third", "largest")
_COLOURS = (2, 6, 3, 1)


def curvature_section(results: Results) -> Section:
    """Table and figure of the recorded measurement; without one it says so."""
    content = results.extra(FILE)
    items = () if content is None else (_table(content), _figure(content))
    return Section("curvature", "Curvature along the bits", _LEAD, items)


_LEAD = (
    "FSG-plus takes the curvature of the loss along a weight for h = k v, where v is the mean square of the gradient "
    "and k is the batch size in theory. Here h is measured: the diagonal of the Hessian at the bits, by Hutchinson's "
    "estimate. Beside it stand the gradient of a batch, its mean over batches with the noise taken off, and the k that "
    "FSG-plus finds on the same batches, together with what the layer alone would give."
)


def _table(content: dict[str, Any]) -> Table:
    settings = content["settings"]
    rows = tuple(
        (
            row["layer"],
            str(row["weights"]),
            f"{row['gradient_rms']:.2e}",
            f"{row['mean_gradient_rms']:.2e}",
            _with_error(row["curvature"], row["curvature_error"], ".2e"),
            f"{row['batch_size_times_v']:.2e}",
            f"{_ratio(row):.2f}",
            f"{row['k']:.0f}",
            _with_error(row["k_alone"], row["k_error"], ".0f"),
        )
        for row in content["rows"]
    )
    note = (
        f"{settings['batches']} batches of {settings['batch_size']} augmented training images, {settings['probes']} "
        f"probes; ± is a standard error. File `{FILE}.json`, made by `python tools/curvature.py RUN`."
    )
    rows = tuple((layer, *(cell.replace("-", "−") for cell in cells)) for layer, *cells in rows)
    return Table(_where(content), _COLUMNS, rows, note=note)


def _figure(content: dict[str, Any]) -> Figure:
    """A point a layer and quarter of its weights. An estimate below zero has no place on a logarithmic axis."""
    points = [
        list(zip(row["batch_size_times_v_by_quarter"], row["curvature_by_quarter"], strict=True))
        for row in content["rows"]
    ]
    quarters = [[(x, y) for x, y in quarter if x > 0 and y > 0] for quarter in zip(*points, strict=True)]
    series = [
        Series(label, colour, [x for x, _ in quarter], [y for _, y in quarter], points=True, line=False)
        for label, colour, quarter in zip(_QUARTERS, _COLOURS, quarters, strict=True)
        if quarter
    ]
    values = list(chain.from_iterable(chain.from_iterable(quarters)))
    ends = (min(values), max(values)) if values else (1.0, 10.0)
    series.append(Series("equal", 0, ends, ends, dashed=True))
    left_out = sum(len(row) for row in points) - sum(len(quarter) for quarter in quarters)
    title = (
        f"{_where(content)}: measured curvature against batch size times v, a point a layer and quarter of its "
        "weights, by v" + (f"; estimates below zero, left out: {left_out}" if left_out else "")
    )
    ratios = [_ratio(row) for row in content["rows"]]
    alt = f"{title}. Over whole layers the ratio of the two lies between {min(ratios):.2f} and {max(ratios):.2f}."
    axes = Axis("batch size × v", log=True), Axis("measured curvature", log=True)
    return Figure("curvature", title, alt, chart(series, *axes, alt=alt))


def _where(content: dict[str, Any]) -> str:
    config, epochs = content["config"], content["epochs"]
    trained = f"{epochs} epoch{'' if epochs == 1 else 's'} of {method_name(config['method'])}"
    return f"{model_name(config['model'])}, {data_name(config['data'])}, after {trained}"


def _ratio(row: dict[str, Any]) -> float:
    return row["curvature"] / row["batch_size_times_v"] if row["batch_size_times_v"] else float("nan")


def _with_error(value: float, error: float | None, form: str) -> str:
    return f"{value:{form}}" if error is None else f"{value:{form}} ± {error:{form}}"
