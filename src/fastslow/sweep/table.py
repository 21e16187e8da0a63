"""What a sweep has found: the best trials as a table, and the command that trains the best for the test set."""

from __future__ import annotations

import shlex
from typing import Any

import optuna
from optuna.trial import TrialState

from ..training.config import RunConfig
from .space import RUN_FIELDS
from .study import counted

_SHOWN = 10


def findings(study: optuna.Study) -> list[dict[str, Any]]:
    """All trials, the best first, then those that were stopped, failed, or still run."""
    order = {TrialState.COMPLETE: 0, TrialState.PRUNED: 1, TrialState.FAIL: 2}
    rows = [
        {
            "trial": trial.number,
            "state": trial.state.name.lower(),
            "accuracy": trial.value if trial.state is TrialState.COMPLETE else None,
            "epochs": len(trial.intermediate_values),
            "parameters": trial.params,
            "failed": trial.user_attrs.get("failed"),
            "rank": order.get(trial.state, 3),
        }
        for trial in counted(study)
    ]
    rows.sort(key=lambda row: (row["rank"], -(row["accuracy"] or 0.0), row["trial"]))
    return [{key: value for key, value in row.items() if key != "rank"} for row in rows]


def format_table(rows: list[dict[str, Any]]) -> str:
    """The best trials, one a line; the same for a terminal and a pipe."""
    shown = [row for row in rows if row["accuracy"] is not None][:_SHOWN]
    names = list(dict.fromkeys(name for row in shown for name in row["parameters"]))
    lines = [["trial", "accuracy", *names]]
    for row in shown:
        values = [_short(row["parameters"].get(name)) for name in names]
        lines.append([str(row["trial"]), f"{row['accuracy']:.2f}", *values])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in lines)


def _short(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def train_command(config: RunConfig) -> str:
    """The command that trains a config; fields that have their default are left out."""
    plain = RunConfig()
    words = ["fastslow", "train", "--model", config.model, "--data", config.data, "--weights", config.weights]
    for name in RUN_FIELDS:
        value = getattr(config, name)
        if name == "augment":
            words += [] if value else ["--no-augment"]
        elif name == "method" or value != getattr(plain, name):
            words += [f"--{name.replace('_', '-')}", "real" if name == "activations" and value is None else str(value)]
    for name, value in config.method_fields.items():
        words += ["--set", f"{name}={value}"]
    return shlex.join(words)
