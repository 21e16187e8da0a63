"""Runs that the report keeps apart: of another length, rounding or start."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from fastslow.recipes import RECIPES
from fastslow.report import plus_tables
from fastslow.report.document import Table
from fastslow.report.page import build
from fastslow.report.results import Results
from fastslow.report.small_tables import sota_table
from fastslow.report.tables import main_tables
from synthetic_results import squeeze, write_synthetic


def test_runs_that_round_differently_are_no_pairs(tmp_path: Path) -> None:
    write_synthetic(tmp_path, "plus", "resnet20/adam-strong/ste", 2)
    write_synthetic(tmp_path, "plus", "resnet20/adam-strong/fsg-plus", 2)
    (row,) = plus_tables.readme_table(Results(tmp_path)).rows
    assert row[-1] == "2"
    for path in tmp_path.rglob("fsg-plus-*.json"):
        record = json.loads(path.read_text())
        record["config"]["precision"] = "tf32"
        path.write_text(json.dumps(record))
    assert plus_tables.readme_table(Results(tmp_path)).rows == ()


def test_other_methods_are_shown_from_one_start(tmp_path: Path) -> None:
    write_synthetic(tmp_path, "table4", "resnet20/adam/ste", 3)
    write_synthetic(tmp_path, "table4", "resnet20/adam/fsg", 3)
    for number, path in enumerate(sorted(tmp_path.rglob("fsg-*.json")) * 2):
        record = json.loads(path.read_text())
        record["config"]["seed"] = number
        record["conditions"]["weights_sha256"] = "of another file"
        (path.parent / f"other-{number}-seed{number}-x.json").write_text(json.dumps(record))
    rows = [row for row in sota_table(Results(tmp_path)).rows if row[0] == "ResNet-20, CIFAR-10" and row[4] != "–"]
    assert [(row[1], row[4]) for row in rows] == [("DoReFa with STE", "3"), ("FSG", "3")]
    assert rows[1][-1].endswith("n = 3")  # compared, although more runs of FSG began elsewhere


def _squeeze_all(folder: Path) -> None:
    """Into 20 epochs, as `reproduce --epochs 20` does with the paper's schedule."""
    for path in sorted(folder.rglob("*.json")):
        record = json.loads(path.read_text())
        squeeze(record, 20, 6)
        path.write_text(json.dumps(record))


def test_other_methods_in_fewer_epochs_stand_beside_ste_in_as_many(tmp_path: Path) -> None:
    write_synthetic(tmp_path, "table4", "resnet20/adam/ste", 2)
    write_synthetic(tmp_path, "table4", "resnet20/adam/reste", 2)
    _squeeze_all(tmp_path)
    rows = [row for row in sota_table(Results(tmp_path)).rows if ", 20 epochs" in row[0]]
    assert [(row[1], row[2], row[4], row[6]) for row in rows] == [
        ("DoReFa with STE", "–", "2", "–"),
        ("ReSTE", "–", "2", "–"),
    ]
    assert rows[1][-1] == "n = 2"


def test_runs_of_another_length_have_no_published_values_beside_them(tmp_path: Path) -> None:
    write_synthetic(tmp_path, "table1", "resnet20/adam/ste", 1)
    _squeeze_all(tmp_path)
    section = next(s for s in build(Results(tmp_path)) if s.title == "Table 1 with 20 epochs")
    (table,) = section.items
    assert isinstance(table, Table)
    assert not [column for column in table.columns if "paper" in column.lower() or "MetaQuant" in column]
    assert len(table.rows[0]) == len(table.columns)
    assert "(" not in table.rows[0][table.columns.index("Loss")]


def test_other_precision_and_length_are_not_mixed_in(tmp_path: Path) -> None:
    write_synthetic(tmp_path, "table1", "resnet20/adam/ste", 2)
    path = sorted(tmp_path.rglob("*.json"))[0]
    other = json.loads(path.read_text())
    other["config"] |= {"precision": "bf16", "seed": 7}
    (path.parent / "ste-adam-seed7-bf16.json").write_text(json.dumps(other))
    short = json.loads(path.read_text())
    squeeze(short, 50, 15)
    (path.parent / "ste-adam-seed0-short.json").write_text(json.dumps(short))
    shutil.copy(path, path.parent / "copy-of-seed0-twice.json")
    results = Results(tmp_path)
    setting = next(s for s in RECIPES["table1"].settings() if s.name == "resnet20/adam/ste")
    assert [r.config.seed for r in results.group(setting).records] == [0, 1]
    titles = [section.title for section in build(results)]
    assert "Table 1 with 50 epochs" in titles


def test_runs_from_different_float_weights_are_never_compared(tmp_path: Path) -> None:
    write_synthetic(tmp_path, "table1", "resnet20/adam/ste", 3, ste=90.0)
    write_synthetic(tmp_path, "table1", "resnet20/adam/multifc", 2, multifc=91.0)
    for number, path in enumerate(sorted(tmp_path.rglob("*.json"))):
        record = json.loads(path.read_text())
        ours = number % 2 == 0 or record["config"]["method"] == "ste"
        record["conditions"]["weights_sha256"] = ("a" if ours else "b") * 64
        path.write_text(json.dumps(record))
    found = Results(tmp_path)
    settings = {setting.name: setting for setting in RECIPES["table1"].settings()}
    ste = found.group(settings["resnet20/adam/ste"])
    groups = found.groups(settings["resnet20/adam/multifc"])
    assert (ste.n, ste.start, [(group.n, group.start[0]) for group in groups]) == (3, "a" * 64, [(1, "a"), (1, "b")])
    assert [group.against(ste) is None for group in groups] == [False, True]
    table = next(t for t in main_tables(found, list(settings.values())) if t.title.startswith("ResNet-20"))
    shown = [row[:2] for row in table.rows if row[5] != "–"]
    assert shown == [
        ("Adam, from aaaaaaaa", "STE"),
        ("Adam, from aaaaaaaa", "MultiFC"),
        ("Adam, from bbbbbbbb", "MultiFC"),
    ]
