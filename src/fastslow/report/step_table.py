"""What a training step costs, from the recorded benchmarks: the paper's overhead table in milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..recipes import overhead
from .document import NOT_RUN, Table
from .results import Results, reference
from .tables import STE
from .words import NONE, method_name, model_name

BENCHMARKS = ("step_h200_deeper_fused", "step_h200_resnet20_kept")  # the newest for each network
NETWORKS = ("resnet56", "resnet110", "resnet44", "resnet20")  # the paper's first


def step_table(results: Results) -> Table:
    """Rows of one network come from one run of `benchmarks/step.py`, in which the methods took turns."""
    paper = reference("paper")["overhead"]
    found = [row for name in BENCHMARKS for row in _measured(results, name)]
    rows = []
    for row in sorted(found, key=lambda row: NETWORKS.index(row["model"])):
        said, said_ste = (paper.get(f"{row['model']}/adam/{method}") for method in (row["method"], STE))
        rows.append(
            (
                model_name(row["model"]),
                method_name(row["method"]),
                f"{row['ms']:.2f}",
                f"{row['ratio']:.2f}×",
                f"{said['seconds'] / said_ste['seconds']:.1f}×" if said and said_ste else NONE,
                f"{row['peak_mib']:.0f}",
            )
        )
    columns = ("Network", "Method", "Ours, ms a step", "Times STE", "Times STE in the paper", "Memory, MiB")
    files = ", ".join(f"`benchmarks/{name}.json`" for name in BENCHMARKS)
    devices = ", ".join(sorted({row["device"] for row in found}))
    note = f"{devices}, batches of 128, TF32, by `benchmarks/step.py`: {files}." if rows else f"Steps: {NOT_RUN}."
    return Table("Milliseconds a training step", columns, tuple(rows), labels=2, note=note)


def _measured(results: Results, name: str) -> Iterator[dict[str, Any]]:
    content = results.extra(f"benchmarks/{name}", "rows", "conditions") or {"rows": ()}
    for row in content["rows"]:
        if row["method"] in overhead.METHODS:
            yield {**row, "device": content["conditions"]["device"]}
