"""The grid: nothing twice, nothing lost."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from fastslow.recipes import RECIPES, theorem
from fastslow.reproduce import Grid, PlannedRun, plan
from fastslow.reproduce import grid as grid_module
from fastslow.reproduce.experiments import run_experiment
from fastslow.reproduce.grid import Snapshot
from fastslow.reproduce.record import (
    columns,
    finished_starts,
    latent_histograms,
    read_records,
    record_path,
    start_of,
    write_record,
)
from fastslow.reproduce.watch import describe, dry_run_lines, duration, summary_lines
from fastslow.reproduce.worker import noted, resume_command
from fastslow.training.config import RunConfig
from fastslow.training.named_weights import find_weights
from fastslow.training.run import _RESULT_KEYS
from stub_grid import grid_maker, run_cli, runs_of, weights_folder  # noqa: F401

# -- the grid ---------------------------------------------------------------------------------------------------------


def starts(grid: Grid, run: PlannedRun) -> int:
    path = grid.folder(run) / "starts"
    return len(path.read_text()) if path.exists() else 0


def test_runs_once_and_never_again(make_grid: Callable[..., Grid], tmp_path: Path) -> None:
    runs = runs_of(3)
    seen: list[Snapshot] = []
    grid = make_grid(runs, jobs=2, show=seen.append)
    outcome = grid.run()
    assert sorted(outcome.finished) == [run.name for run in runs]
    assert max(len(snapshot.active) for snapshot in seen) == 2
    assert seen[-1].finished == 3
    assert seen[-1].epochs_done == seen[-1].epochs == 6
    assert finished_starts(tmp_path / "results").keys() == {run.config.key for run in runs}
    records = dict(read_records(tmp_path / "results"))
    assert len(records) == 3
    for path, record in records.items():
        assert record["curve"]["test_accuracy"] == [50.0, 51.0]
        assert record["curve"]["train_loss"] == [0.333333, 0.333333]
        assert record["conditions"]["jobs"] == 2
        assert path.parent.name == "resnet8-mini"
    assert not (grid.folder(runs[0]) / "checkpoints").exists()

    again = make_grid(runs_of(4), jobs=2)
    assert make_grid(runs_of(4)).survey().finished_before == [run.name for run in runs]
    outcome = again.run()
    assert outcome.finished == ["resnet8/adam/ste/seed4"]
    assert [starts(again, run) for run in runs_of(4)] == [1, 1, 1, 1]


def test_merging_results_of_another_machine_counts(make_grid: Callable[..., Grid], tmp_path: Path) -> None:
    make_grid(runs_of(2)).run()
    (tmp_path / "results" / "resnet8-mini").rename(tmp_path / "results" / "from-elsewhere")
    assert len(make_grid(runs_of(2)).survey().finished_before) == 2


def test_a_limit_in_minutes_stops_and_the_next_call_goes_on(
    make_grid: Callable[..., Grid], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        ahead = 0.0
        sleep = staticmethod(time.sleep)

        @classmethod
        def monotonic(cls) -> float:
            return time.monotonic() + cls.ahead

    def jump(snapshot: Snapshot) -> None:
        Clock.ahead = 1e6 if snapshot.epochs_done else 0.0

    runs = runs_of(2, epochs=3)
    first = make_grid(runs, "hang", jobs=1, minutes=1000, show=jump)
    with monkeypatch.context() as patch:
        patch.setattr(grid_module, "time", Clock)
        outcome = first.run()
    assert outcome.finished == []
    assert sorted(outcome.left) == [run.name for run in runs]
    assert outcome.stopped_by == "the limit of 1000 minutes"
    assert first.epochs_done(runs[0]) == 2  # it ended its epoch when it was asked to stop
    assert starts(first, runs[1]) == 0
    assert "at 2/3 epochs" in dry_run_lines(make_grid(runs))[0]

    second = make_grid(runs)
    assert sorted(second.run().finished) == [run.name for run in runs]
    assert starts(second, runs[0]) == 2


def test_a_signal_stops_without_loss(make_grid: Callable[..., Grid], monkeypatch: pytest.MonkeyPatch) -> None:
    class Stop:
        received: int | None = None

        def __enter__(self) -> Stop:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(grid_module, "StopRequests", Stop)

    def ctrl_c(snapshot: Snapshot) -> None:
        if snapshot.epochs_done:
            Stop.received = 2

    runs = runs_of(2, epochs=3)
    outcome = make_grid(runs, "hang", show=ctrl_c).run()
    assert outcome.signal == 2
    assert outcome.stopped_by == "SIGINT"
    assert sorted(outcome.left) == [run.name for run in runs]


def test_other_float_weights_are_another_run(make_grid: Callable[..., Grid], tmp_path: Path, weights: Path) -> None:
    config = RunConfig(model="resnet8", data="mini", method="ste", epochs=1, weights="name:some")
    run = PlannedRun("resnet8/adam/ste/seed0", config)
    results = tmp_path / "results"
    for content in (b"one", b"two"):
        (weights / "some.safetensors").write_bytes(content)
        assert make_grid([run]).survey().finished_before == []
        record = {"config": config.to_dict(), "conditions": start_of(config), "curve": {}}
        grid = make_grid([run])
        grid.survey()
        write_record(record_path(results, grid.place(run)), record)
        assert make_grid([run]).survey().finished_before == [run.name]
    names = [path.stem for path, _ in read_records(results)]
    digests = [hashlib.sha256(content).hexdigest() for content in (b"one", b"two")]
    assert sorted(names) == sorted(f"{run.stem}-from-{digest[:8]}" for digest in digests)
    # With a teacher of its own a run has two files; eight digits stand for both.
    taught = PlannedRun(
        "taught", dataclasses.replace(config, distill=0.5, teacher="name:other", teacher_model="resnet8")
    )
    (weights / "other.safetensors").write_bytes(b"teacher")
    places = set()
    for content in (b"one", b"two"):
        (weights / "some.safetensors").write_bytes(content)
        grid = make_grid([taught])
        grid.survey()
        places.add(grid.place(taught))
    assert len(places) == 2


def test_a_run_goes_on_from_the_weights_it_began_with(
    make_grid: Callable[..., Grid], tmp_path: Path, weights: Path
) -> None:
    config = RunConfig(model="resnet8", data="mini", method="ste", epochs=2, seed=1, weights="name:some")
    run = PlannedRun("resnet8/adam/ste/seed1", config)

    def put(content: bytes) -> str:
        (weights / "some.safetensors").write_bytes(content)
        return hashlib.sha256(content).hexdigest()

    def recorded() -> list[str]:
        return [record["conditions"]["weights_sha256"] for _, record in read_records(tmp_path / "results")]

    one = put(b"one")
    begun = make_grid([run], "hang", minutes=0.005)
    assert begun.run().left == [run.name]
    two = put(b"two")  # another run, in a folder of its own
    assert make_grid([run]).run().finished == [run.name]
    assert recorded() == [two]
    put(b"one")
    assert make_grid([run]).run().finished == [run.name]
    assert starts(begun, run) == 2
    assert sorted(recorded()) == sorted([one, two])
    # Finished, but not yet recorded when the weights changed, in a folder whose name doesn't say from which.
    shutil.rmtree(tmp_path / "results")
    begun.folder(run).rename(tmp_path / "runs" / run.place)
    put(b"three")
    assert make_grid([run]).run().finished == [run.name]
    assert recorded() == [one]
    # And begun there, but not finished.
    shutil.rmtree(tmp_path / "results")
    (tmp_path / "runs" / run.place / "result.json").unlink()
    (why,) = make_grid([run]).run().failed.values()
    assert "was begun from other float weights" in why


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "{}"),
        ("result.json", "{"),
        ("result.json", json.dumps(dict.fromkeys(_RESULT_KEYS))),
        ("grid.json", "no"),
        ("grid.json", '{"jobs": null}'),
    ],
)
def test_a_damaged_folder_costs_its_own_run_only(make_grid: Callable[..., Grid], name: str, content: str) -> None:
    runs = runs_of(3)
    grid = make_grid(runs, jobs=2)
    assert make_grid(runs[1:2], "fail").run().failed
    (grid.folder(runs[1]) / name).write_text(content)
    outcome = grid.run()
    assert sorted(outcome.finished) == [runs[0].name, runs[2].name]
    assert str(grid.folder(runs[1])) in outcome.failed[runs[1].name]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, "killed by SIGKILL (out of memory?); the same command goes on from its checkpoint"),
        (signal.SIGTERM, "somebody else stopped it; the same command goes on"),
    ],
)
def test_a_worker_that_somebody_else_ends(make_grid: Callable[..., Grid], number: int, words: str) -> None:
    (run,) = runs_of(1, epochs=3)

    def end(snapshot: Snapshot) -> None:
        if snapshot.epochs_done:
            for worker in grid.active:
                worker.stop(signal.Signals(number))

    grid = make_grid([run], "hang", show=end)
    assert grid.run().failed == {run.name: words}


def test_retired_and_repeated_runs_are_not_runs_of_today(make_grid: Callable[..., Grid], tmp_path: Path) -> None:
    (run,) = runs_of(1)
    retired = tmp_path / "results" / "retired" / "some-idea"
    record = {"config": run.config.to_dict(), "conditions": {}, "curve": {}}
    write_record(retired / f"{run.stem}.json", record)
    write_record(retired / "gone-adam-seed0-0123456789ab.json", {**record, "config": {"of": "another time"}})
    write_record(tmp_path / "results" / "repeated" / f"{run.stem}.json", record)
    assert list(read_records(tmp_path / "results")) == []
    assert make_grid([run]).survey().finished_before == []
    # The folder counts, not what a path above it is called.
    write_record(record_path(tmp_path / "retired", run.place), record)
    assert len(list(read_records(tmp_path / "retired"))) == 1


def test_failures_are_told_and_tried_again(make_grid: Callable[..., Grid], tmp_path: Path) -> None:
    runs = runs_of(2)
    outcome = make_grid(runs, "fail").run()
    assert outcome.failed == {run.name: "out of luck" for run in runs}
    assert "failed: resnet8/adam/ste/seed1: out of luck" in summary_lines(outcome)
    assert not finished_starts(tmp_path / "results")
    assert len(make_grid(runs).run().finished) == 2


def test_divergence_is_a_result(make_grid: Callable[..., Grid], tmp_path: Path) -> None:
    (run,) = runs_of(1)
    outcome = make_grid([run], "diverge").run()
    assert outcome.diverged == {run.name: "training diverged: the loss is nan"}
    ((_, record),) = read_records(tmp_path / "results")
    assert record["failed"] == "training diverged: the loss is nan"
    assert record["conditions"]["torch"]
    assert make_grid([run]).survey().finished_before == [run.name]


def test_a_run_in_other_hands_is_left_alone(make_grid: Callable[..., Grid]) -> None:
    (run,) = runs_of(1)
    grid = make_grid([run])
    grid.folder(run).mkdir(parents=True)
    with open(grid.folder(run) / ".lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        outcome = grid.run()
    (why,) = outcome.blocked.values()
    assert why.startswith(f"{grid.folder(run)} is in use by another process; wait for it to end")
    assert starts(grid, run) == 0


def test_a_finished_folder_is_only_recorded(make_grid: Callable[..., Grid], tmp_path: Path) -> None:
    (run,) = runs_of(1)
    make_grid([run]).run()
    for path in (tmp_path / "results").rglob("*.json"):
        path.unlink()
    grid = make_grid([run])
    assert grid.run().finished == [run.name]
    assert starts(grid, run) == 1


def test_a_foreign_file_in_results_is_named(make_grid: Callable[..., Grid], tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "mine-seed1-x.json").write_text("{}")
    with pytest.raises(ValueError, match=r"mine-seed1-x\.json is no result of a run"):
        make_grid(runs_of(1)).survey()


@pytest.mark.parametrize(("options", "words"), [({"jobs": 0}, "--jobs 0"), ({"minutes": -1.0}, "--minutes -1")])
def test_grid_options(make_grid: Callable[..., Grid], options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_grid(runs_of(1), **options)


# -- weights by name --------------------------------------------------------------------------------------------------


def test_weights_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTSLOW_WEIGHTS", str(tmp_path))
    path = tmp_path / "resnet110_cifar100.safetensors"
    with pytest.raises(ValueError, match=r"resnet110_cifar100\.safetensors in"):
        find_weights("name:resnet110_cifar100")
    path.write_bytes(b"x")
    assert find_weights("name:resnet110_cifar100") == path


def test_runs_without_weights_wait(make_grid: Callable[..., Grid], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FASTSLOW_WEIGHTS", raising=False)
    runs = [*plan(["table2"], only=["resnet110/adam/ste"]), *runs_of(1)]
    outcome = make_grid(runs).run()
    assert outcome.finished == [runs[-1].name]
    assert "resnet110_cifar100" in outcome.blocked[runs[0].name]
    assert any(line.startswith("not started: 1 runs") for line in summary_lines(outcome))


# -- records and words ------------------------------------------------------------------------------------------------


def test_columns_and_histograms(tmp_path: Path) -> None:
    assert columns([{"a": 1, "b": 0.123456789}, {"a": 2}]) == {"a": [1, 2], "b": [0.123457, None]}
    weight = np.array([[-2.0, -0.01, 0.01, 2.0]], dtype=np.float32)
    save_file({"fc.weight": weight, "bn.weight": np.ones(3, dtype=np.float32)}, tmp_path / "w.safetensors")
    found = latent_histograms(tmp_path / "w.safetensors")
    assert list(found) == ["fc"]
    assert [i for i, n in enumerate(found["fc"]) if n] == [0, 19, 20, 39]


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "5 s"), (89, "89 s"), (600, "10 min"), (5340, "89 min"), (5400, "1 h 30 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_describe() -> None:
    snapshot = Snapshot(35, 3, [("resnet20/adam/fsg/seed0", 12, 100)], 412, 3500, 4800.0)
    assert describe(snapshot) == "3/35 runs, 412/3500 epochs; resnet20/adam/fsg/seed0 12/100; about 80 min left"


def test_the_commands(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FASTSLOW_WEIGHTS", raising=False)
    listed = run_cli(capsys, "reproduce")
    assert all(name in listed for name in [*RECIPES, "theorem", "starts"])
    out = ("--out", str(tmp_path / "results"), "--runs", str(tmp_path / "runs"))
    dry = run_cli(capsys, "reproduce", "table1", "--only", "resnet44/adam/ste", "--dry-run", *out)
    assert "3 runs: 0 finished, 0 to run, 3 without weights" in dry
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "resnet44_cifar10.safetensors").write_bytes(b"")
    monkeypatch.setenv("FASTSLOW_WEIGHTS", "")  # so that what the command adds is taken back
    dry = run_cli(
        capsys, "reproduce", "table1", "--only", "resnet44/adam/ste", "--dry-run", "--weights-dir", str(weights), *out
    )
    assert "3 runs: 0 finished, 3 to run, 0 without weights" in dry
    assert not (tmp_path / "results").exists()
    chosen = ("table1", "--only", "resnet44/adam/ste", "--dry-run", "--json")
    told = json.loads(run_cli(capsys, "reproduce", *chosen, *out))
    assert (told["finished"], len(told["to_run"]), told["without_weights"]) == ([], 3, [])
    listed = json.loads(run_cli(capsys, "reproduce", "--json"))
    assert listed["recipes"].keys() == RECIPES.keys()
    assert "theorem" in listed["experiments"]
    (tmp_path / "results").mkdir()
    written = run_cli(capsys, "report", "--results", str(tmp_path / "results"), "--out", str(tmp_path / "docs"))
    assert "results.html" in written
    with pytest.raises(ValueError, match="--weights-dir"):
        run_cli(capsys, "reproduce", "table1", "--weights-dir", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="--device"):
        run_cli(capsys, "reproduce", "smoke", "--device", "tpu", *out)
    assert not (tmp_path / "runs").exists()


def test_experiments_are_recorded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = {"experiment": "theorem", "cases": []}
    monkeypatch.setattr(theorem, "run", lambda: quick)
    path = run_experiment("theorem", tmp_path, torch.device("cpu"), None)
    assert path is not None
    content = json.loads(path.read_text())
    assert content["cases"] == []
    assert content["conditions"]["torch"]
    assert run_experiment("theorem", tmp_path, torch.device("cpu"), None) is None


def test_the_real_worker(tmp_path: Path) -> None:
    """One run of the smoke recipe, cut short, through the ordinary command line. Its numbers are no evidence."""
    setting = RECIPES["smoke"].settings()[0]
    config = RunConfig(**{**setting.config.to_dict(), "holdout": 3800, "epochs": 1})
    run = PlannedRun("resnet8/adam/ste/seed0", config)
    grid = Grid([run], results=tmp_path / "results", folders=tmp_path / "runs", device="cpu")
    assert grid.command(grid.folder(run)) == resume_command(grid.folder(run), "cpu", None)
    outcome = grid.run()
    assert outcome.finished == [run.name], outcome
    ((_, record),) = read_records(tmp_path / "results")
    assert record["key"] == config.key
    assert len(record["curve"]["test_accuracy"]) == 1
    assert record["conditions"]["jobs"] == noted(grid.folder(run))["jobs"] == 1
    assert sum(record["latent_weights"]["layer1.0.conv1"]) == 16 * 16 * 9
    assert json.dumps(record["config"]["skip"]) == '["first-and-last"]'
