"""Trackers hold what metrics.jsonl holds, a resumed run is the same tracked run, and none of them can stop a run."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from fastslow.training.interrupt import Interrupted
from fastslow.training.run import RunFolder
from fastslow.training.sinks import Silent, Sinks
from fastslow.training.tracking import TRACKERS, TrackerSink, parse_trackers, tracked_before
from fastslow.training.tracking.sink import _histograms

pytestmark = pytest.mark.filterwarnings(
    "ignore:::sqlalchemy", "ignore:::mlflow", "ignore:::alembic", "ignore:::wandb", "ignore:::tensorboard"
)
SCALARS = ("train_loss", "test_accuracy", "flip_ratio", "lr", "flips/c2", "flips/c3")


@pytest.fixture(autouse=True)
def _nothing_leaves_this_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())  # quicker than to set up a data base
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    logging.getLogger("alembic").setLevel(logging.ERROR)


def start(folder: Path, names: list[str], *others: Silent, **fields: Any):
    trainer = tiny.trainer(tiny.config(**fields), folder)
    trainer.sink = Sinks(*others, TrackerSink(names, folder, trainer.config))
    return trainer


def resume(folder: Path, names: list[str] | None = None):
    trainer = tiny.resumed(folder)
    trainer.sink = TrackerSink(tracked_before(folder) if names is None else names, folder, trainer.config)
    return trainer


class StopAtEpoch(Silent):
    def __init__(self, last: int) -> None:
        self.last = last

    def epoch(self, row: dict[str, Any]) -> None:
        if row["epoch"] == self.last:
            os.kill(os.getpid(), signal.SIGTERM)


def tensorboard_events(folder: Path) -> tuple[dict[str, dict[int, float]], set[str]]:
    """Scalars by name and step, each found once, and the names of the histograms."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    scalars: dict[str, dict[int, float]] = {}
    histograms = set()
    for path in sorted((folder / "tensorboard").iterdir()):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                kind = value.metadata.plugin_data.plugin_name
                if kind == "histograms":
                    histograms.add(value.tag)
                elif kind == "scalars":
                    found = scalars.setdefault(value.tag, {})
                    assert event.step not in found, "told twice"
                    found[event.step] = value.tensor.float_val[0]
    return scalars, histograms


def wandb_records(path: Path) -> Iterator[bytes]:
    """W&B's offline file is a LevelDB log: 7 bytes of header, then blocks of 32 KiB with (crc, size, kind) chunks."""
    data, at, record = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def wandb_history(folder: Path) -> tuple[set[str], dict[int, dict[str, Any]]]:
    """The ids of the offline parts, and their rows by step."""
    from wandb.proto import wandb_internal_pb2

    ids: set[str] = set()
    rows: dict[int, dict[str, Any]] = {}
    for path in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        for data in wandb_records(path):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "run":
                ids.add(record.run.run_id)
            if record.WhichOneof("record_type") == "history":
                items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                step = record.history.step.num
                assert step not in rows, "told twice"
                rows[step] = {key: json.loads(value) for key, value in items.items()}
    return ids, rows


def mlflow_run(folder: Path) -> tuple[Any, dict[str, dict[int, float]]]:
    from mlflow import MlflowClient

    memory = json.loads((folder / "tracking.json").read_text())["mlflow"]["memory"]
    client = MlflowClient(tracking_uri=memory["tracking_uri"])
    run = client.get_run(memory["run_id"])
    found = {}
    for key in run.data.metrics:
        history = client.get_metric_history(run.info.run_id, key)
        found[key] = {metric.step: metric.value for metric in history}
        assert len(found[key]) == len(history), "told twice"
    return run, found


def assert_tracked(folder: Path, names: set[str], flips_from: int = 0) -> None:
    """Every epoch of metrics.jsonl is there; the flips of each layer from the epoch on that ``flips_from`` precedes."""
    rows = RunFolder.open(folder).metrics()
    steps = [row["step"] for row in rows]
    if "tensorboard" in names:
        scalars, histograms = tensorboard_events(folder)
        assert {f"{kind}/{layer}" for kind in ("weights", "gradients") for layer in ("c2", "c3", "fc")} <= histograms
    if "mlflow" in names:
        run, metrics = mlflow_run(folder)
        assert run.info.status == "FINISHED"
        assert run.data.params["method"] == "ste"
        assert float(run.data.tags["test_accuracy"]) == rows[-1]["test_accuracy"]
    if "wandb" in names:
        ids, history = wandb_history(folder)
        assert len(ids) == 1, "a resumed run is another run for W&B"
        assert list(history) == steps
        assert history[steps[-1]]["weights/c2/_type"] == "histogram"
    for name in SCALARS:
        for row in rows[flips_from if name.startswith("flips/") else 0 :]:
            value = row.get(name)
            for found in (
                *([scalars[name][row["step"]]] if "tensorboard" in names else []),
                *([metrics[name][row["step"]]] if "mlflow" in names else []),
                *([history[row["step"]][name]] if "wandb" in names else []),
            ):
                assert 0 <= found <= 1 if value is None else found == pytest.approx(value, rel=1e-6)


def test_a_stopped_and_resumed_run_is_one_tracked_run(tmp_path):
    names = ["tensorboard", "wandb", "mlflow"]
    with pytest.raises(Interrupted):
        start(tmp_path / "run", names, StopAtEpoch(2)).fit()
    assert mlflow_run(tmp_path / "run")[0].info.status == "KILLED"
    assert tracked_before(tmp_path / "run") == names
    resume(tmp_path / "run").fit()
    assert_tracked(tmp_path / "run", set(names))


def test_a_tracker_that_joins_later_is_told_what_it_missed(tmp_path, monkeypatch):
    """Here into SQLite, MLflow's own choice."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    with pytest.raises(Interrupted):
        start(tmp_path / "run", ["tensorboard"], StopAtEpoch(1)).fit()
    resume(tmp_path / "run", ["tensorboard", "mlflow"]).fit()
    assert_tracked(tmp_path / "run", {"tensorboard", "mlflow"}, flips_from=1)
    assert (tmp_path / "mlflow.db").is_file()


def test_an_epoch_that_comes_again_after_a_crash_is_told_once(tmp_path):
    trainer = start(tmp_path / "run", ["tensorboard", "mlflow"])
    trainer.sink.start("", 0, 15, [])
    tiny.step(trainer, 5)
    trainer.save()
    tiny.step(trainer, 6)  # the second epoch ends, is told, and no checkpoint follows
    trainer.sink.close()
    resume(tmp_path / "run").fit()
    assert_tracked(tmp_path / "run", {"tensorboard", "mlflow"})


def test_a_step_that_was_left_out_is_left_out_of_the_histograms():
    net = tiny.trainer(tiny.config("ste")).model
    for number, parameter in enumerate(net.parameters()):
        parameter.grad = torch.full_like(parameter, torch.nan)
        if number == 0:
            parameter.grad.view(-1)[0] = 1.0
    found = _histograms(net)
    gradients = {name: values.tolist() for name, values in found.items() if name.startswith("gradients/")}
    assert list(gradients.values()) == [[1.0]]
    assert len(found) > 2


def test_tracking_changes_no_number(tmp_path):
    tracked, plain = start(tmp_path / "run", ["tensorboard"]), tiny.trainer(tiny.config())
    tracked.fit()
    plain.fit()
    tiny.assert_same_state(plain.state_dict(), tracked.state_dict())


class Removes(Silent):
    """Takes MLflow's store away in the second epoch."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def epoch(self, row: dict[str, Any]) -> None:
        if row["epoch"] == 2:
            shutil.rmtree(self.path)
            self.path.write_text("a file where the store was")


def test_a_tracker_that_fails_costs_one_warning(tmp_path, caplog):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tensorboard").write_text("a file where TensorBoard wants a folder")
    names = ["tensorboard", "mlflow"]
    with caplog.at_level(logging.WARNING, "fastslow"):
        result = start(tmp_path / "run", names, Removes(tmp_path / "mlruns")).fit()
    assert len(result["curve"]) == 3
    first, second = (record.getMessage() for record in caplog.records if record.name == "fastslow")
    assert first.startswith("tracking with tensorboard has stopped: ")
    assert second.startswith("tracking with mlflow has stopped: ")
    assert second.endswith("training goes on without it")


def test_no_network_costs_one_warning(tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with caplog.at_level(logging.WARNING, "fastslow"):
        start(tmp_path / "run", ["mlflow"], epochs=1).fit()
    (record,) = (record for record in caplog.records if record.name == "fastslow")
    assert record.getMessage().startswith("tracking with mlflow has stopped: ")


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_is_named_with_the_command_that_installs_it(name, monkeypatch):
    module, package = TRACKERS[name]
    monkeypatch.delitem(sys.modules, f"fastslow.training.tracking.{module}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=rf"needs the package {package} .*: pip install 'fastslow\[{name}\]'"):
        parse_trackers(name)


def test_names_of_trackers():
    assert parse_trackers("none") == []
    assert parse_trackers("tensorboard, mlflow,tensorboard") == ["tensorboard", "mlflow"]
    for wrong in ("", "tensorbord", "mlflow,none", "wandb,"):
        with pytest.raises(ValueError, match="is no tracker; choose from tensorboard, wandb, mlflow"):
            parse_trackers(wrong)


@pytest.mark.parametrize("content", ["", "[]", '{"mlflow": 3}', "\xff"])
def test_a_damaged_memory_is_one_sentence(content, tmp_path):
    (tmp_path / "tracking.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match="delete it, then the run is tracked anew"):
        tracked_before(tmp_path)
