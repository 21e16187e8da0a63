"""Where a run started from is said by the accuracy of the float weights, whoever trained them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import tiny
from fastslow import data
from fastslow.report.results import Results
from fastslow.reproduce.experiments import run_experiment
from fastslow.reproduce.record import finished_record, write_record
from fastslow.training.named_weights import VARIABLE, file_digest

CPU = torch.device("cpu")


def test_a_float_run_says_which_weights_it_wrote(tmp_path: Path) -> None:
    trainer = tiny.trainer(tiny.config(None, epochs=1), tmp_path / "run")
    result = trainer.fit()
    assert trainer.run is not None
    record = finished_record(trainer.run, {})
    written = file_digest(tmp_path / "run" / "weights.safetensors")
    assert record["written_sha256"] == written
    assert "latent_weights" not in record
    write_record(tmp_path / "results" / "tiny-tiny" / f"float-adam-seed0-{record['key']}.json", record)
    found = Results(tmp_path / "results")
    assert found.float_accuracies[written] == result["test_accuracy"]
    assert found.published_floats == {}


def test_a_binary_run_writes_none_to_start_from(tmp_path: Path) -> None:
    trainer = tiny.trainer(tiny.config("ste", epochs=1), tmp_path / "run")
    trainer.fit()
    assert trainer.run is not None
    assert "written_sha256" not in finished_record(trainer.run, {})


def test_own_weights_are_measured_apart_from_published_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a network that comes with the package, and images that do."""
    shipped = Path(data.__file__).parent.parent / "pretrained" / "resnet20_cifar10.safetensors"
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / shipped.name).write_bytes(shipped.read_bytes())
    monkeypatch.setenv(VARIABLE, str(folder))
    images = data.load("mini", None)
    monkeypatch.setattr(data, "load", lambda *_: images)  # CIFAR-10 itself isn't there
    path = run_experiment("own-starts", tmp_path, CPU, None)
    assert path == tmp_path / "own-starts.json"
    content = json.loads(path.read_text())
    assert content["experiment"] == "own-starts"
    assert content["sha256"] == {"resnet20_cifar10": file_digest(shipped)}
    assert 80 < content["accuracies"]["resnet20_cifar10"] < 100
    assert file_digest(shipped) in Results(tmp_path).float_accuracies
    assert Results(tmp_path).published_floats == {}
    assert run_experiment("own-starts", tmp_path, CPU, None) is None
