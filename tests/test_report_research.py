"""docs/research.md: ideas that were tried, and those whose code is gone."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fastslow.recipes import RECIPES
from fastslow.recipes.retired import RETIRED as RETIRED_IDEAS
from fastslow.report.figures import research_curves
from fastslow.report.markdown import render_table
from fastslow.report.page import IDEAS, RETIRED, write_report
from fastslow.report.research import idea_tables, validation_tables
from fastslow.report.results import Results
from fastslow.report.retired import retired_table
from fastslow.report.words import NOT_RUN
from fastslow.reproduce.record import write_record
from synthetic_results import squeeze, write_synthetic

ROOT = Path(__file__).parent.parent


@pytest.mark.skipif(not (ROOT / "results" / "retired").is_dir(), reason="not a clone of the repository")
def test_the_retired_runs_are_those_that_were_recorded() -> None:
    table = retired_table(Results(ROOT / "results"))
    assert table.note == ""
    page = (ROOT / "docs" / "research.md").read_text()
    assert f"{RETIRED[0]}\n\n{render_table(table)}\n\n{RETIRED[1]}" in page
    folder = ROOT / "results" / "retired"
    assert sorted(folder.rglob("*.json")) == sorted(folder / idea.file for idea in RETIRED_IDEAS)
    today = {"secant": True, "strength": 0.5}  # the fields of fsg-plus that are still there
    alone = {**today, "strength": 0.0}
    configs = {idea.name: json.loads((folder / idea.file).read_text())["config"] for idea in RETIRED_IDEAS}
    assert {name: config["method_fields"] for name, config in configs.items()} == {
        "fsg-plus": {},
        "fsg-plus-slow": {"fast": False},
        "fsg-plus-fast": {"slow": False},
        "fsg-plus-4-steps": {"horizon": 4},
        "fsg-plus-8-steps": {"horizon": 8},
        "fsg-plus-flip-price": {"flip_penalty": 0.1},
        "fsg-plus-0.2": {"rho": 0.2},
        "fsg-plus-1.0": {"rho": 1.0},
        "fsg-plus-ede": {**today, "backward": "ede"},
        "fsg-plus-ede-alone": {**alone, "backward": "ede"},
        "fsg-plus-reste": {**today, "backward": "reste"},
        "fsg-plus-reste-alone": {**alone, "backward": "reste"},
        "fsg-plus-twin": {**today, "eta": 0.1},
        "fsg-plus-twin-alone": {**alone, "eta": 0.1},
        "fsg-plus-rising": {**today, "gate": [-1.6, 3.2, 0.0, 0.0, 0.0, 0.0]},
        "fsg-plus-falling": {**today, "gate": [1.6, -3.2, 0.0, 0.0, 0.0, 0.0]},
        "fsg-plus-learned": {**today, "gate": [0.5826, 1.3356, -1.0795, 1.9204, 0.7449, 2.0595]},
        "fsg-plus-ramp": {**today, "ramp": 1.0},
        "fsg-plus-ramp-1": {**today, "strength": 1.0, "ramp": 1.0},
        "fsg-plus-ramp-1-float": {**today, "strength": 1.0, "ramp": 1.0},
    }
    kinds = {tuple(config[name] for name in ("method", "epochs", "seed", "holdout")) for config in configs.values()}
    assert kinds == {("fsg-plus", 30, 0, 5000)}


def test_research_says_what_the_runs_say(tmp_path: Path) -> None:
    results = tmp_path / "results"
    for label, seeds, end in (
        ("base", 1, 89.0),
        ("adam-cosine", 5, 90.0),
        ("ema-0.999", 5, 92.0),
        ("restarts", 2, 91.0),
    ):
        write_synthetic(results, "research", f"resnet20/{label}/ste", seeds, ste=end)
    found = Results(results)
    (table,) = idea_tables(found)
    verdicts = {row[0]: row[-1] for row in table.rows}
    assert verdicts["base/ste"] == "the reference"
    assert verdicts["ema-0.999/ste"] == "better than adam-cosine/ste"
    assert verdicts["restarts/ste"] == verdicts["adam-cosine/ste"] == "open: fewer than 5 pairs"
    assert verdicts["distill-0.5/ste"] == NOT_RUN
    results_of = {row[0]: row[3] for row in table.rows}
    assert re.fullmatch(r"9[12]\.\d\d ± 0\.\d\d \(5\); \+\d.*, p < 0\.001, .*n = 5", results_of["ema-0.999/ste"])
    # Runs with other many epochs are a table of their own.
    config = dataclasses.replace(RECIPES["research"].settings()[0].run(0), epochs=30, step_epochs=9)
    record = json.loads(next(results.rglob("*.json")).read_text())
    squeeze(record, 30, 9)
    write_record(results / "x" / f"ste-adam-seed0-{config.key}.json", {**record, "config": config.to_dict()})
    _, short, start = validation_tables(Results(results))
    assert short.title == "ResNet-20, CIFAR-10, screened with 30 epochs: validation, never the test set"
    assert [row[:3] for row in short.rows] == [("base", "STE", "30")]
    assert start.rows[0][1] == NOT_RUN
    page = tmp_path / "research.md"
    page.write_text(f"# x\n\n{IDEAS[0]}\nwords of before\n{IDEAS[1]}\n\nrest\n\n{RETIRED[0]}\n{RETIRED[1]}\n")
    assert write_report(results, tmp_path)[-1] == page
    once = page.read_text()
    assert "| better than adam-cosine/ste |" in once
    assert "words of before" not in once
    write_report(results, tmp_path)
    assert page.read_text() == once
    page.write_text("# x\n")  # somebody else's page
    assert page not in write_report(results, tmp_path)
    assert page.read_text() == "# x\n"
    page.write_text(f"# x\n{IDEAS[0]}\n")
    with pytest.raises(ValueError, match="between which what was tried goes"):
        write_report(results, tmp_path)
    page.write_text(f"# x\n\n{IDEAS[0]}\n{IDEAS[1]}\n")
    with pytest.raises(ValueError, match="between which what was retired goes"):
        write_report(results, tmp_path)


def test_research_curves_need_both_gradients(tmp_path: Path) -> None:
    write_synthetic(tmp_path, "research", "resnet20/distill-cutout/ste", 3, ste=91.0)
    assert research_curves(Results(tmp_path)) == []
    write_synthetic(tmp_path, "research", "resnet20/distill-cutout/fsg-plus-0.5", 2)
    accuracy, loss = research_curves(Results(tmp_path))
    assert (accuracy.name, loss.name) == ("research-curves", "research-curves-loss")
    for figure in (accuracy, loss):
        ElementTree.fromstring(figure.standalone())
        assert "STE (3)" in figure.body
        assert "FSG-plus 0.5 (2)" in figure.body
        assert figure.body.count('class="band') == 2
    for path in tmp_path.rglob("fsg-plus-*.json"):  # from other float weights they are no pair
        path.write_text(path.read_text().replace('"conditions": {', f'"conditions": {{"weights_sha256":"{"a" * 64}",'))
    assert research_curves(Results(tmp_path)) == []


def retire(results: Path, file: str) -> None:
    """One run of STE, and the same run as if a method of before had made it, recorded as retired."""
    write_synthetic(results, "research", "resnet20/adam-cosine/ste", 1, ste=90.0)
    record = json.loads(next(results.rglob("ste-*.json")).read_text())
    config = {**record["config"], "method": "fsg-plus", "method_fields": {"rho": 0.2}}
    retired = {"config": config, "test_accuracy": 88.5, "train_loss": 0.25, "conditions": {"commit": "abcdef" * 6}}
    write_record(results / "retired" / file, {**record, **retired})


def test_retired_runs_stand_beside_ste_and_nowhere_else(tmp_path: Path) -> None:
    first, *others = RETIRED_IDEAS
    retire(tmp_path, first.file)
    found = Results(tmp_path)
    (ste,) = found.records
    table = retired_table(found)
    expected = ("88.50 (1)", f"{ste['test_accuracy']:.2f}", f"0.250 / {ste['train_loss']:.3f}", "abcdefab")
    assert table.rows[0] == (f"{first.name} ({first.change})", first.hypothesis, *expected)
    # A record that isn't there is no reason to leave out its row, nor to stop.
    assert {row[2] for row in table.rows[1:]} == {"record missing"}
    assert table.note.startswith(f"Missing in the folder of results: retired/{others[0].file}, ")
    assert first.file not in table.note
    assert all(idea.file in table.note for idea in others)
    page = tmp_path / "research.md"
    page.write_text("\n".join((*IDEAS, *RETIRED)))
    write_report(tmp_path, tmp_path)
    assert page.read_text().endswith(f"\n\n{table.note}\n\n{RETIRED[1]}")
    # STE from other float weights, or not run at all, is no partner.
    path = tmp_path / ste.path
    path.write_text(path.read_text().replace('"conditions": {', f'"conditions": {{"weights_sha256":"{"a" * 64}",'))
    assert retired_table(Results(tmp_path)).rows[0][3:5] == (NOT_RUN, f"0.250 / {NOT_RUN}")
    (tmp_path / "retired" / first.file).write_text("{}")
    with pytest.raises(ValueError, match=f"{first.file} is no result of a run"):
        retired_table(Results(tmp_path))


def test_a_retired_run_that_diverged_is_said(tmp_path: Path) -> None:
    file = RETIRED_IDEAS[0].file
    retire(tmp_path, file)
    path = tmp_path / "retired" / file
    path.write_text(json.dumps({**json.loads(path.read_text()), "failed": "training diverged: the loss is nan"}))
    assert retired_table(Results(tmp_path)).rows[0][2] == "diverged (1)"
