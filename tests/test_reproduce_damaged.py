"""Results that others write while a grid runs, folders that are damaged, and options that are none."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from fastslow.recipes import theorem
from fastslow.reproduce import Grid, PlannedRun
from fastslow.reproduce.grid import Snapshot
from fastslow.reproduce.watch import dry_run_lines
from fastslow.training.config import RunConfig
from fastslow.training.run import RunFolder
from stub_grid import grid_maker, run_cli, runs_of, weights_folder  # noqa: F401


def test_what_others_recorded_meanwhile_is_not_done_again(make_grid: Callable[..., Grid], tmp_path: Path) -> None:
    first, second = runs_of(2)
    other = make_grid([second])
    other.results, other.folders = (tmp_path / "elsewhere").resolve(), (tmp_path / "other-runs").resolve()
    other.run()
    (copied,) = other.results.rglob("*.json")
    grid = make_grid([first, second])
    target = grid.results / copied.relative_to(other.results)

    def arrive(snapshot: Snapshot) -> None:
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(copied.read_text().replace('"train_loss": 0.3', '"train_loss": 0.25'))

    grid.show = arrive
    outcome = grid.run()
    assert (outcome.finished, outcome.finished_before) == ([first.name], [second.name])
    assert '"train_loss": 0.25' in target.read_text()
    assert not grid.folder(second).exists()


def test_a_result_that_arrives_while_its_run_is_done_stays(make_grid: Callable[..., Grid], tmp_path: Path) -> None:
    (run,) = runs_of(1)
    make_grid([run]).run()
    (path,) = (tmp_path / "results").rglob("*.json")
    content = path.read_text()
    path.unlink()
    grid = make_grid([run])
    grid.survey()
    grid.pending = []
    path.write_text(content + "\n")
    grid._record(run, RunFolder.open(grid.folder(run)))
    assert "somebody recorded it meanwhile" in grid.outcome.failed[run.name]
    assert path.read_text() == content + "\n"


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "grid.json").write_text('{"start": 5}'),
        lambda folder: (folder / "result.json").write_text(
            (folder / "result.json").read_text().replace('"curve"', '"c"')
        ),
        lambda folder: (folder / "config.json").write_text(
            (folder / "config.json").read_text().replace('"seed": 1', '"seed": 7')
        ),
        lambda folder: (folder / "result.json").write_text(
            (folder / "result.json").read_text().replace('"seed": 1', '"seed": 7')
        ),
    ],
)
def test_one_damaged_folder_doesnt_end_the_grid(
    make_grid: Callable[..., Grid], tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    first, second = runs_of(2)
    grid = make_grid([first])
    grid.run()
    (path,) = (tmp_path / "results").rglob("*.json")
    path.unlink()  # as if the grid had been killed before it took note
    damage(grid.folder(first))
    outcome = make_grid([first, second]).run()
    assert outcome.finished == [second.name]
    assert "move" in outcome.failed[first.name]


def test_weights_cut_short_are_that_runs_trouble(make_grid: Callable[..., Grid], tmp_path: Path) -> None:
    runs = [PlannedRun(run.name, RunConfig(**{**run.config.to_dict(), "seed": 0})) for run in runs_of(1)]
    grid = make_grid(runs)
    outcome = grid.run()  # the stand-in writes no weights, and seed 0 shows them
    assert "damaged" in outcome.failed[runs[0].name]


def test_options_that_are_no_folders_or_numbers(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"--out .*file: it is a file"):
        Grid([], results=tmp_path / "file", folders=tmp_path / "runs")
    with pytest.raises(ValueError, match="--minutes nan"):
        Grid([], results=tmp_path / "r", folders=tmp_path / "runs", minutes=float("nan"))


def test_experiments_in_a_dry_run_and_beside_unknown_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(theorem, "run", lambda: pytest.fail("nothing is to be measured"))
    out = ("--out", str(tmp_path / "results"))
    assert "theorem: to be measured" in run_cli(capsys, "reproduce", "theorem", "--dry-run", *out)
    with pytest.raises(ValueError, match="unknown recipe 'tabel1'"):
        run_cli(capsys, "reproduce", "theorem", "tabel1", *out)


def test_a_dry_run_names_the_weights_that_it_found(make_grid: Callable[..., Grid], weights: Path) -> None:
    path = weights / "resnet8_mini.safetensors"
    path.write_bytes(b"some")
    config = RunConfig(model="resnet8", data="mini", method="ste", epochs=2, weights="name:resnet8_mini")
    lines = dry_run_lines(make_grid([PlannedRun("resnet8/adam/ste/seed0", config)]))
    assert lines[1:] == [f"from {path} ({hashlib.sha256(b'some').hexdigest()[:8]})"]
