"""Whether a recorded file has all that the report reads: what it hasn't is named, before anything is computed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

_PERCENT = ("test_accuracy", "best_test_accuracy", "train_accuracy")
_NUMBERS = (*_PERCENT, "best_epoch", "train_loss", "seconds")
_COLUMNS = ("test_accuracy", "train_loss", "seconds")


def whole(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """A record of a run, or the sentence that says what is missing."""
    problem = _conditions_problem(content["conditions"]) or _curve_problem(content)
    if problem is None and "failed" not in content:
        problem = _numbers_problem(content)
    if problem is not None:
        raise ValueError(f"{path} is no whole result of a run: it has no {problem}; move it away")
    return content


def measured(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Accuracies of float weights by their names, and the SHA-256 of each."""
    accuracies, digests = content["accuracies"], content["sha256"]
    if not (
        isinstance(accuracies, dict)
        and isinstance(digests, dict)
        and accuracies.keys() == digests.keys()
        and all(map(_is_number, accuracies.values()))
        and all(isinstance(digest, str) for digest in digests.values())
    ):
        raise ValueError(f"{path} has no accuracy and SHA-256 of every name; move it away")
    return content


def _conditions_problem(conditions: dict[str, Any]) -> str | None:
    for name in ("device", "torch"):
        if not isinstance(conditions.get(name), str):
            return name
    earlier = conditions.get("earlier", [])
    if not isinstance(earlier, list) or not all(
        isinstance(one, dict) and isinstance(one.get("until_step"), int) for one in earlier
    ):
        return "until_step of every earlier process"
    return None


def _curve_problem(content: dict[str, Any]) -> str | None:
    curve = content.get("curve")
    if not isinstance(curve, dict) or not all(isinstance(column, list) for column in curve.values()):
        return "curve"
    if len({len(column) for column in curve.values()}) > 1:
        return "curve of one length"
    if "failed" in content:
        return None
    for name in _COLUMNS:
        if not curve.get(name) or not all(map(_is_number, curve[name])):
            return f"{name} of every epoch"
    if len(curve["test_accuracy"]) != content["config"].get("epochs"):
        return "curve of all its epochs"
    counts = content.get("latent_weights", {})
    if not isinstance(counts, dict) or not all(
        isinstance(row, list) and all(map(_is_number, row)) for row in counts.values()
    ):
        return "latent_weights as counts of every layer"
    return None


def _numbers_problem(content: dict[str, Any]) -> str | None:
    for name in _NUMBERS:
        if not _is_number(content.get(name)):
            return f"finite {name}" if isinstance(content.get(name), float) else name
    return next((f"{name} between 0 and 100" for name in _PERCENT if not 0 <= content[name] <= 100), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
