"""``docs/methods.md`` from the registry: ``python -m fastslow.report.methods_page [PATH]`` writes it anew."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from pathlib import Path

from ..methods import MethodInfo, list_methods
from ..recipes.sota import RUNS

_FAMILIES = {
    "surrogate": "Surrogate gradients: a chosen derivative stands for that of the sign.",
    "learned": "Learned: a network decides the gradient, or makes the bits.",
    "own update": "Own updates: the binary weights are moved by another rule than the optimizer's gradient step.",
}
_HEAD = """\
# Methods

Any name below works in `fs.binarize_(model, name)` and `fastslow train --method name`; `fastslow methods NAME` prints
the fields. This page is made from the registry by `python -m fastslow.report.methods_page`.

Notation: `W` latent weight, `Wb` the value the network computes with, `g = dL/dWb`, `e/E` share of the training done,
`eta` learning rate. As a bit zero becomes -1. Schedules follow `fs.optimizer(model, base, total_steps=...,
epochs=...)`; those published per epoch stand still within an epoch if `epochs` is given, and are smooth otherwise.
Inputs are the activations that `binarize_(..., activations=...)` takes; real is `None`, the first is the default.
"""


def anchor(name: str) -> str:
    return f"[`{name}`](#{name})"


def table(rows: list[MethodInfo]) -> list[str]:
    """One line a method."""
    lines = ["| method | family | inputs | schedule | paper | in a sentence |", "|---|---|---|---|---|---|"]
    for row in rows:
        schedule = ("epoch" if row.cls.per_epoch else "step") if row.cls.scheduled else "-"
        cells = (anchor(row.name), row.family, _inputs(row), schedule, row.paper, row.summary.replace("|", "\\|"))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _inputs(row: MethodInfo) -> str:
    """Which activations a method takes; its default first."""
    default = row.cls.default_activations
    names = ["real", *row.cls.activations] if default is None else [default, "real"]
    return ", ".join(names)


def entry(row: MethodInfo) -> list[str]:
    """A method's own section."""
    module = inspect.getdoc(inspect.getmodule(row.cls)) or ""
    links = [word.strip(".,;:()`") for word in module.split() if word.startswith("https://")]
    fields = ", ".join(f"`{f.name}={f.default!r}`" for f in dataclasses.fields(row.cls))
    recipes = [name for name, run in RUNS.items() if run().method == row.name]
    source = f"{row.paper} ({links[0]})" if links else row.paper
    words = " ".join((inspect.getdoc(row.cls) or "").split("\n\n")[0].split())
    lines = [f"### {row.name}", "", f"{_sentence(row.summary)} {words} {source}.", ""]
    lines += ["```", *row.formula.split(";  "), "```", ""]
    lines.append(f"- cost: {row.cost}")
    lines.append(f"- choose it {row.choose}")
    lines.append(f"- binarizer: `{row.cls.default_binarizer}`; inputs: {_inputs(row)}")
    if fields:
        lines.append(f"- fields: {fields}")
    if recipes:
        lines.append(f"- recipe: {', '.join(f'`fastslow train --recipe {name}`' for name in recipes)}")
    return [*lines, ""]


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def page() -> str:
    """The whole page."""
    rows = list_methods()
    lines = [_HEAD, *table(rows), ""]
    for family, title in _FAMILIES.items():
        lines += [f"## {title}", ""]
        for row in rows:
            if row.family == family:
                lines += entry(row)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/methods.md")
    target.write_text(page(), encoding="utf-8")
    print(f"wrote {target}")
