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


def float_weights(folder: Path, classes: int) -> Path:
    """Nothing like those that a run without any would draw."""
    torch.manual_seed(99)
    save_weights(models.get_model("tiny", num_classes=classes), folder / "float.safetensors")
    return folder / "float.safetensors"


@pytest.mark.parametrize("method", [info.name for info in list_methods()])
def test_every_method_goes_on_bit_for_bit(method, tmp_path):
    """Nothing that a method makes of the first weights is lost, then."""
    start = float_weights(tmp_path, 10)
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
    start = float_weights(tmp_path, 2)
    options = [*QUICK, "--data", pictures, "--weights", start]
    assert call("train", *options, "--run", "run").code == 0
    (tmp_path / "run" / "result.json").unlink()  # as if it had been stopped at the very end
    start.unlink()
    assert call("resume", "run").code == 0
    assert RunFolder.open(tmp_path / "run").result() is not None


def test_but_not_where_there_is_no_checkpoint_yet(call, pictures, tmp_path):
    start = float_weights(tmp_path, 2)
    RunFolder.create(tmp_path / "run", tiny.config(data=pictures, weights=str(start), skip=()))
    start.unlink()
    answer = call("resume", "run")
    assert answer.code == 2
    assert "float.safetensors" in answer.err.splitlines()[-1]
