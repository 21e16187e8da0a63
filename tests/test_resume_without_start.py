"""A run goes on without the float weights that it started from: its checkpoint has the network."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tiny
from calling import QUICK
from fastslow import models
from fastslow.methods import list_methods
from fastslow.training.loop import Trainer
from fastslow.training.run import RunFolder
from fastslow.weights import save_weights


@pytest.fixture
def start(tmp_path) -> Path:
    """Float weights; nothing like those that a run without any would draw."""
    torch.manual_seed(99)
    save_weights(models.get_model("tiny"), tmp_path / "float.safetensors")
    return tmp_path / "float.safetensors"


@pytest.mark.parametrize("method", [info.name for info in list_methods()])
def test_every_method_goes_on_bit_for_bit(method, start, tmp_path):
    """Nothing that a method makes of the first weights is lost, then."""
    config = tiny.config(method, weights=str(start))
    whole = tiny.trainer(config)
    whole.fit()
    stopped = tiny.trainer(config, tmp_path / "run")
    tiny.step(stopped, 7)
    stopped.save()
    start.unlink()
    run = RunFolder.open(tmp_path / "run")
    with pytest.raises(FileNotFoundError, match=r"float\.safetensors"):
        Trainer(run.config(), tiny.dataset(), run=run)
    continued = Trainer(run.config(), tiny.dataset(), run=run, begun=True)
    continued.resume()
    continued.fit()
    tiny.assert_same_state(whole.state_dict(), continued.state_dict())


def test_a_begun_run_does_not_train_before_its_checkpoint_is_loaded(tmp_path):
    run = RunFolder.create(tmp_path / "run", tiny.config())
    trainer = Trainer(run.config(), tiny.dataset(), run=run, begun=True)
    trainer.resume()  # finds none
    with pytest.raises(RuntimeError, match="has no network yet"):
        trainer.fit()


def test_the_command_line_resumes_without_them(call, pictures, tmp_path):
    torch.manual_seed(99)
    save_weights(models.get_model("tiny", num_classes=2), tmp_path / "float.safetensors")
    options = [*QUICK, "--data", pictures, "--weights", tmp_path / "float.safetensors"]
    assert call("train", *options, "--run", "run").code == 0
    (tmp_path / "run" / "result.json").unlink()  # as if it had been stopped at the very end
    (tmp_path / "float.safetensors").unlink()
    assert call("resume", "run").code == 0
    assert RunFolder.open(tmp_path / "run").result() is not None


def test_but_not_where_there_is_no_checkpoint_yet(call, pictures, tmp_path):
    torch.manual_seed(99)
    save_weights(models.get_model("tiny", num_classes=2), tmp_path / "float.safetensors")
    RunFolder.create(tmp_path / "run", tiny.config(data=pictures, weights=str(tmp_path / "float.safetensors"), skip=()))
    (tmp_path / "float.safetensors").unlink()
    answer = call("resume", "run")
    assert answer.code == 2
    assert "float.safetensors" in answer.err.splitlines()[-1]
