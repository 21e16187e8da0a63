"""The sweeps of beta and l in the report."""

from __future__ import annotations

import json
from pathlib import Path

from fastslow.report.results import Results
from fastslow.report.sweeps import sweep_figures, sweep_table
from fastslow.report.words import NONE
from synthetic_results import squeeze, write_synthetic


def test_a_sweep_with_fewer_epochs_is_a_figure_of_its_own(tmp_path: Path) -> None:
    write_synthetic(tmp_path, "beta", "resnet20", 1)
    (whole,) = sweep_figures(Results(tmp_path))
    for path in sorted(tmp_path.rglob("*.json"))[:3]:
        record = json.loads(path.read_text())
        squeeze(record, 30, 9)
        path.write_text(json.dumps(record))
    rest, short = sweep_figures(Results(tmp_path))
    assert (whole.name, rest.name, short.name) == (*["sweep-beta-resnet20"] * 2, "sweep-beta-resnet20-30-epochs")
    assert (whole.alt.count(": "), rest.alt.count(": "), short.alt.count(": ")) == (5, 2, 3)
    assert ", 30 epochs" in short.title
    assert ", 30 epochs" not in rest.title


def test_values_stand_against_the_papers_best(tmp_path: Path) -> None:
    write_synthetic(tmp_path, "length", "resnet8", 3)
    (figure,) = sweep_figures(Results(tmp_path))
    assert figure.name == "sweep-length-resnet8"
    assert figure.title == "Sweep of l, ResNet-8, 4,000 images of CIFAR-10 (variant)"
    table = sweep_table(Results(tmp_path)).only_run()
    rows = {row[1]: row for row in table.rows if row[0].endswith(", l")}  # l = 6 is also the run of beta = 0.3
    assert list(rows) == ["3", "4", "5", "6", "7"]
    assert {row[0] for row in rows.values()} == {"ResNet-8, 4,000 images of CIFAR-10 (variant), l"}
    assert rows["6"][-1] == NONE
    assert all(row[-1].endswith("n = 3") for value, row in rows.items() if value != "6")
    assert "ResNet-56, CIFAR-100, beta (0.1 / 0.3 / 0.5 / 0.7 / 0.9)" in table.note


def test_a_squeezed_sweep_without_the_papers_best_is_compared_with_nothing(tmp_path: Path) -> None:
    write_synthetic(tmp_path, "beta", "resnet8/beta/0.9", 1)
    (path,) = tmp_path.rglob("*.json")
    record = json.loads(path.read_text())
    squeeze(record, 6, 2)
    path.write_text(json.dumps(record))
    (row,) = sweep_table(Results(tmp_path)).only_run().rows
    assert row[:2] == ("ResNet-8, 4,000 images of CIFAR-10 (variant), 6 epochs, beta", "0.9")
    assert row[-1] == NONE
    assert sweep_figures(Results(tmp_path)) == []
