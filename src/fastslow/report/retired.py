"""What was tried and taken out again, for docs/research.md: recorded runs whose code is gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..recipes.retired import RETIRED
from ..reproduce.record import RETIRED_FOLDER, told_by
from ..training.config import RunConfig
from .document import Table
from .results import Record, Results
from .words import NONE, NOT_RUN

_COLUMNS = (
    "Idea",
    "Hypothesis",
    "Result (validation, last epoch; n)",
    "STE on the same recipe and seed",
    "Training loss / STE's",
    "Commit that still has the code",
)
_NO_RECORD = ("record missing", NONE, NONE, NONE)


def retired_table(results: Results) -> Table:
    """Every retired idea beside STE. A record that isn't there is named below the table."""
    rows, missing = [], []
    for idea in RETIRED:
        path = results.root / RETIRED_FOLDER / idea.file
        outcome = _outcome(results, path) if path.is_file() else _NO_RECORD
        rows.append((f"{idea.name} ({idea.change})", idea.hypothesis, *outcome))
        if outcome is _NO_RECORD:
            missing.append(f"{RETIRED_FOLDER}/{idea.file}")
    note = f"Missing in the folder of results: {', '.join(missing)}." if missing else ""
    return Table("", _COLUMNS, tuple(rows), labels=2, note=note)


def _outcome(results: Results, path: Path) -> tuple[str, ...]:
    try:
        run = json.loads(path.read_text())
        partner = _partner(results, run)
        ste = None if partner is None else partner.content
        losses = f"{_number(run, 'train_loss', 3)} / {_number(ste, 'train_loss', 3)}"
        commit = (run["conditions"].get("commit") or NONE)[:8]
        return f"{_number(run, 'test_accuracy', 2)} (1)", _number(ste, "test_accuracy", 2), losses, commit
    except (ValueError, LookupError, TypeError, OSError) as error:
        raise ValueError(f"{path} is no result of a run ({error})") from error


def _partner(results: Results, run: dict[str, Any]) -> Record | None:
    """STE's run from the same float weights, that differs in the method alone."""
    # The run's own config is never made: its method, or that method's fields, may be unknown today.
    config = RunConfig.from_dict({**run["config"], "method": "ste", "method_fields": {}})
    start = told_by(run["conditions"])
    same = (record for record in results.records if (record.config.key, record.start) == (config.key, start))
    return next(same, None)


def _number(run: dict[str, Any] | None, name: str, digits: int) -> str:
    if run is None:
        return NOT_RUN
    return "diverged" if "failed" in run else f"{run[name]:.{digits}f}"
