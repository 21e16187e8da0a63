"""Results of several machines, starts, teachers and precisions side by side, and files that are broken."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastslow.report import plus_tables, small_tables, tables
from fastslow.report.results import Results
from fastslow.report.sweeps import sweep_figures
from fastslow.training.conditions import Sessions
from synthetic_results import write_synthetic

ONE, OTHER = "a" * 64, "b" * 64


def change(results: Path, pattern: str, how: Callable[[dict[str, Any]], object]) -> None:
    paths = sorted(results.rglob(pattern))
    assert paths
    for path in paths:
        record = json.loads(path.read_text())
        how(record)
        path.write_text(json.dumps(record))


def started(digest: str, name: str = "weights_sha256") -> Callable[[dict[str, Any]], object]:
    return lambda record: record["conditions"].update({name: digest})


# -- what is compared with what ----------------------------------------------------------------------------------------


def test_fsg_plus_stands_beside_ste_from_the_same_weights(tmp_path: Path) -> None:
    write_synthetic(tmp_path, "plus", "resnet20/adam-strong/", 3, ste=91.0, fsg_plus=92.0)
    for path in tmp_path.rglob("fsg-plus-*-seed0-*.json"):
        shutil.copy(path, path.with_name(path.name.replace("seed0-", "seed0-other-")))
    change(tmp_path, "*-seed*.json", started(ONE))
    change(tmp_path, "fsg-plus-*-seed0-other-*.json", started(OTHER))
    rows = [row for row in plus_tables.plus_table(Results(tmp_path)).rows if "not run" not in row[2]]
    same, alone = rows
    assert ", from aaaaaaaa" in same[0]
    assert same[3] == "3"
    assert same[4] != "–"
    assert ", from bbbbbbbb" in alone[0]
    assert (alone[1], alone[4]) == ("not run", "–")


def test_runs_with_other_teachers_are_no_pairs(tmp_path: Path) -> None:
    write_synthetic(tmp_path, "plus", "resnet20/adam-strong/", 3, ste=91.0, fsg_plus=92.0)
    change(tmp_path, "*-seed*.json", started(ONE))
    change(tmp_path, "ste-*.json", started(ONE, "teacher_sha256"))
    change(tmp_path, "fsg-plus-*.json", started(OTHER, "teacher_sha256"))
    (row,) = (row for row in plus_tables.plus_table(Results(tmp_path)).rows if row[3] == "3")
    assert (row[1], row[4]) == ("not run", "–")


def test_a_sweep_joins_values_from_one_start_only(tmp_path: Path) -> None:
    write_synthetic(tmp_path, "beta", "resnet20/", 1)
    change(tmp_path, "*-seed*.json", started(ONE))
    path = min(tmp_path.rglob("*-seed*.json"))
    change(tmp_path, path.name, started(OTHER))
    (figure,) = sweep_figures(Results(tmp_path))
    assert figure.alt.count(": ") == 4


def test_what_was_run_from_another_start_is_not_called_not_run(tmp_path: Path) -> None:
    write_synthetic(tmp_path, "table3", "resnet44/", 5)
    change(tmp_path, "*-seed*.json", started(ONE))
    change(tmp_path, "fsg-lstm-*-seed0-*.json", started(OTHER))
    for path in tmp_path.rglob("fsg-lstm-*-seed[1-4]-*.json"):
        path.unlink()
    values = {row[1]: row[3] for row in small_tables.slow_net_table(Results(tmp_path)).rows if "ResNet-44" in row[0]}
    assert values["LSTM"] == "run from another start"
    assert values["Mamba"] not in ("not run", "run from another start")


def test_another_precision_is_named(tmp_path: Path) -> None:
    write_synthetic(tmp_path, "table1", "resnet20/sgd/ste", 1)
    change(tmp_path, "*.json", lambda record: record["config"].update(precision="bf16"))
    (table, *_) = tables.main_tables(
        Results(tmp_path), [s for s in _settings("table1") if s.name.startswith("resnet20/")]
    )
    (row,) = (row for row in table.rows if row[5] == "1")
    assert row[0].endswith(", bf16")


def _settings(recipe: str) -> list[Any]:
    from fastslow.recipes import RECIPES

    return RECIPES[recipe].settings()


def test_seconds_are_compared_on_one_device(tmp_path: Path) -> None:
    write_synthetic(tmp_path, "overhead", "resnet56/", 1)
    change(tmp_path, "fsg-adam-*.json", lambda record: record["conditions"].update(device="another"))
    rows = {row[1]: row[3:] for row in small_tables.overhead_table(Results(tmp_path)).rows if "ResNet-56" in row[0]}
    assert rows["STE"][1:] == ("1.0×", "synthetic")
    assert rows["FSG"][1:] == ("–", "another")


def test_only_metaquants_own_weights_are_called_theirs(tmp_path: Path) -> None:
    content = {"accuracies": {"resnet44_cifar10": 77.77}, "sha256": {"resnet44_cifar10": ONE}}
    (tmp_path / "starts.json").write_text(json.dumps(content))
    assert Results(tmp_path).published_floats == {}
    assert Results(tmp_path).float_accuracies[ONE] == 77.77


def test_held_out_accuracy_is_not_that_of_a_start(tmp_path: Path) -> None:
    write_synthetic(tmp_path, "float", "resnet20/", 1)
    change(tmp_path, "*.json", lambda record: record.update(written_sha256=ONE))
    assert ONE in Results(tmp_path).float_accuracies
    change(tmp_path, "*.json", lambda record: record["config"].update(holdout=5000))
    assert ONE not in Results(tmp_path).float_accuracies


def test_a_device_that_comes_back_is_shown_twice() -> None:
    sessions = Sessions({"device": "x"})
    for device, step in (("y", 10), ("y", 10), ("x", 20)):  # the second y did no step
        saved = sessions.until(step)
        sessions = Sessions({"device": device})
        sessions.load(saved)
    assert sessions.conditions()["earlier"] == [{"until_step": 10}, {"until_step": 20, "device": "y"}]
    assert small_tables._devices(sessions.conditions()) == "x to step 10, then y to step 20, then x"


# -- several results of one run ----------------------------------------------------------------------------------------


def test_a_copy_counts_once_and_another_result_is_refused(tmp_path: Path) -> None:
    write_synthetic(tmp_path, "table1", "resnet20/adam/ste", 2)
    path = min(tmp_path.rglob("*-seed0-*.json"))
    copied = tmp_path / "zother" / path.name
    copied.parent.mkdir()
    shutil.copy(path, copied)
    assert len(Results(tmp_path).records) == 2
    change(tmp_path / "zother", "*.json", lambda record: record.update(test_accuracy=50.0))
    with pytest.raises(ValueError, match=r"are two results of one run; the first one counts: move the other into"):
        Results(tmp_path)


# -- broken files ------------------------------------------------------------------------------------------------------

BROKEN: dict[str, Callable[[dict[str, Any]], object]] = {
    "no curve": lambda r: r.pop("curve"),
    "empty curve": lambda r: r.update(curve={}),
    "curve of nothing": lambda r: r.update(curve=None),
    "a number as a column": lambda r: r["curve"].update(test_accuracy=3),
    "null in a column": lambda r: r["curve"]["test_accuracy"].__setitem__(3, None),
    "words in a column": lambda r: r["curve"]["train_loss"].__setitem__(3, "low"),
    "no losses": lambda r: r["curve"].pop("train_loss"),
    "short curve": lambda r: r.update(curve={name: column[:3] for name, column in r["curve"].items()}),
    "device of nothing": lambda r: r["conditions"].update(device=None),
    "earlier of nothing": lambda r: r["conditions"].update(earlier=None),
    "earlier without a step": lambda r: r["conditions"].update(earlier=[{"device": "x"}]),
    "latent weights": lambda r: r.update(latent_weights={"conv1": {"a": 1}}),
    "above 100": lambda r: r.update(test_accuracy=900.0),
    "below 0": lambda r: r.update(best_test_accuracy=-1.0),
    "true": lambda r: r.update(test_accuracy=True),
    "not a number": lambda r: r.update(train_loss=float("nan")),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_result_is_named(tmp_path: Path, how: str) -> None:
    write_synthetic(tmp_path, "table1", "resnet20/adam/ste", 1)
    change(tmp_path, "*.json", BROKEN[how])
    with pytest.raises(ValueError, match=r"ste-adam-seed0-\w+\.json is no whole result of a run: it has no "):
        Results(tmp_path)


def test_json_beyond_measure_is_named(tmp_path: Path) -> None:
    (tmp_path / "ste-adam-seed0-x.json").write_text("[" * 200_000)
    with pytest.raises(ValueError, match=r"seed0-x\.json is no result of a run"):
        Results(tmp_path)


@pytest.mark.parametrize("content", [{"accuracies": {"a": 1.0}, "sha256": {}}, {"accuracies": 3, "sha256": {}}])
def test_broken_starts_are_named(tmp_path: Path, content: dict[str, Any]) -> None:
    (tmp_path / "own-starts.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"own-starts\.json has no accuracy"):
        _ = Results(tmp_path).float_accuracies
