"""Sweeps: what a space means, several workers on one storage, killed ones, pruned and failed trials."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from optuna.trial import FixedTrial, TrialState, create_trial

import tiny
from calling import write_pictures
from fastslow import cli, data
from fastslow.sweep.space import Choice, Range, Space, parse_space
from fastslow.sweep.study import Sweep, Worker, open_study
from fastslow.training.checkpoint import CheckpointError
from fastslow.training.config import RunConfig
from fastslow.training.loop import Trainer
from fastslow.training.run import WEIGHTS, RunFolder
from fastslow.weights import load_weights

FSG = RunConfig(model="tiny", method="fsg-weight", epochs=2)

# -- spaces ------------------------------------------------------------------------------------------------------------

PARSED = {
    "beta=0.1:0.9": Range("beta", 0.1, 0.9, log=False, whole=False),
    "lr=1e-4:1e-2:log": Range("lr", 1e-4, 1e-2, log=True, whole=False),
    "length=3..7": Range("length", 3, 7, log=False, whole=True),
    "batch_size=16..256:log": Range("batch_size", 16, 256, log=True, whole=True),
    "weight_decay=0..1": Range("weight_decay", 0, 1, log=False, whole=True),
    "method=ste,fsg": Choice("method", ("ste", "fsg")),
    "seed=0,1,2": Choice("seed", (0, 1, 2)),
    "augment=True,False": Choice("augment", (True, False)),
    "d_state=4": Choice("d_state", (4,)),
}


@pytest.mark.parametrize("text", PARSED)
def test_words_and_what_they_mean(text):
    base = RunConfig(model="tiny", method="fsg", epochs=2)
    (found,) = parse_space([text], base).dimensions
    assert found == PARSED[text]


def test_a_config_is_drawn_and_fields_of_other_methods_are_not():
    words = ["method=ste,fsg-weight", "beta=0.1:0.9", "lr=1e-4:1e-2:log", "length=3..7", "d_state=4", "seed=3"]
    space = parse_space(words, FSG)
    config = space.draw(FixedTrial({"method": "fsg-weight", "beta": 0.25, "lr": 1e-3, "length": 5}))
    assert (config.method, config.lr, config.seed) == ("fsg-weight", 1e-3, 3)
    assert config.method_fields == {"beta": 0.25, "length": 5, "d_state": 4}
    plain = space.draw(FixedTrial({"method": "ste", "lr": 1e-3}))  # would raise if it asked for beta
    assert (plain.method, plain.method_fields) == ("ste", {})
    assert parse_space(["activations=real,sign"], FSG).draw(FixedTrial({"activations": "real"})).activations is None


BAD = {
    "beta": "--space beta: write name=0.1:0.9",
    "=1:2": "--space =1:2: write name=",
    "beta=": "--space beta=: write name=",
    "beta=0.9:0.1": "the range must go from a lower to a higher number",
    "beta=0.5:0.5": "the range must go from a lower to a higher number",
    "lr=0:1:log": "a logarithmic range must start above 0",
    "lr=1e-4:1e-2:exp": "'1e-4:1e-2:exp' is no range",
    "lr=a:b": "'a:b' is no range",
    "lr=1:1e999": "the range must go from a lower to a higher number",
    "length=3...7": "'3...7' is no range",
    "length=0.5:2": "length: takes whole numbers; write length=LOW..HIGH",
    "length=a,b": "length: 'a' is no int, which the field takes",
    "method=1..2": "method: takes no range of numbers; give values with commas",
    "method=ste,": "give different values with commas between them",
    "method=ste,ste": "give different values with commas between them",
    "method=ste,sfg": "unknown method 'sfg'; did you mean",
    "optimizer=adam,adagrad": "optimizer='adagrad': choose one of",
    "betta=0:1": "neither a field of the method nor one of the run that can be searched; did you mean 'beta'",
    "colour=1,2": "neither a field of the method nor one of the run that can be searched; of a run: method",
    "data=mini,cifar10": "neither a field of the method nor one of the run",
    "beta=0.1:2": "beta=2.0: the weight of the slow gradient lies between 0 and 1",
    "lr=-1:1": "lr=-1.0: give a positive learning rate",
    "warmup_epochs=0..5": "warmup_epochs=5: must be fewer than epochs=2",
    "length=0..3": "length=0: give a whole number of at least 1",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_spaces_are_one_sentence(text):
    with pytest.raises(ValueError) as caught:
        parse_space([text], FSG)
    assert BAD[text] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_once_and_at_least_one():
    with pytest.raises(ValueError, match="names 'lr' twice"):
        parse_space(["lr=1:2", "lr=3:4"], FSG)
    with pytest.raises(ValueError, match="--space is empty"):
        parse_space([], FSG)


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> str:
    """Two classes, 63 training and 7 test images of 32 x 32 pixels."""
    return write_pictures(tmp_path_factory.mktemp("pictures"), 70)


@pytest.fixture
def words(pictures) -> Callable[..., list[str]]:
    """The words of a sweep over learning rates."""

    def made(*more: object, trials: int, epochs: int = 2) -> list[str]:
        fixed = ["--model", "tiny", "--method", "ste", "--data", pictures, "--holdout", "13", "--batch-size", "10"]
        numbers = ["--trials", trials, "--epochs", epochs, "--storage", "sqlite:///study.db", "--device", "cpu"]
        return list(map(str, ["sweep", "--space", "lr=1e-3:1e-1:log", *fixed, *numbers, *more]))

    return made


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(arguments: list[str]) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["fastslow", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return stop.value.code, out, err

    return run


def trials_of(folder: Path) -> list[Any]:
    return optuna.load_study(study_name="sweep", storage=f"sqlite:///{folder}/study.db").trials


def test_a_sweep_and_more_of_it(call, words, tmp_path, monkeypatch):
    code, out, err = call(words(trials=2))
    assert code == 0, err
    assert "2 trials finished, 0 stopped early, 0 failed; runs in runs/sweep" in out
    assert "on 13 held-out training images, not on the test set" in out
    code, out, err = call(words(trials=3))  # one more
    assert code == 0, err
    assert "3 trials finished" in out
    code, out, err = call([*words(trials=3), "--json"])  # nothing left to do
    found = json.loads(out)
    assert [row["state"] for row in found["trials"]] == ["complete"] * 3
    runs = {int(path.name[6:]): RunFolder.open(path) for path in (tmp_path / "runs" / "sweep").glob("trial-*")}
    for row in found["trials"]:
        result = runs[row["trial"]].result()
        assert result is not None
        assert result["test_accuracy"] == row["accuracy"]
        assert result["metric"] == "test accuracy of the last epoch on held-out training images"
        assert result["config"]["lr"] == row["parameters"]["lr"]
    assert found["best"]["accuracy"] == max(row["accuracy"] for row in found["trials"])
    # The command that it names trains the best setting on all images.
    arguments = found["command"].split()[1:]
    assert call([*arguments, "--run", "best", "--device", "cpu"])[0] == 0
    best = RunFolder.open(tmp_path / "best").config()
    assert best.holdout == 0
    assert best.lr == found["best"]["parameters"]["lr"]
    # Another space or other settings under the same name are refused.
    code, _, err = call([word.replace("1e-3:1e-1", "1e-3:1") for word in words(trials=4)])
    assert code == 2
    assert "the study 'sweep' in sqlite:///study.db searches lr=1e-3:1e-1:log, not lr=1e-3:1:log" in err
    code, _, err = call(words(trials=4, epochs=3))
    assert code == 2
    assert "has epochs=2, not 3; choose another name with --study" in err
    code, _, err = call([*words(trials=4), "--study", "other", "--runs", "runs/sweep"])
    assert code == 2
    assert "runs/sweep holds the trials of another study; choose another folder with --runs" in err


def command(arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    started = [sys.executable, str(Path(tiny.__file__)), "cli", *arguments]
    return subprocess.Popen(
        started, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ}
    )


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    for _ in range(6000):
        if condition():
            return
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    raise AssertionError("nothing happened")


def begun(folder: Path) -> list[Path]:
    """The trials with a checkpoint."""
    return sorted({path.parent.parent for path in folder.glob("runs/sweep/trial-*/checkpoints/*.safetensors")})


def test_a_killed_trial_is_finished_by_the_next_of_two_commands_at_once(call, words, tmp_path, pictures):
    many = words(trials=2, epochs=15)
    killed = command(many, tmp_path)
    wait_for(lambda: bool(begun(tmp_path)), killed)
    killed.kill()
    killed.communicate()
    assert [trial.state for trial in trials_of(tmp_path)] == [TrialState.RUNNING]
    other = command(many, tmp_path)
    code, _, err = call(many)
    _, other_err = other.communicate(timeout=120)
    assert (code, other.returncode) == (0, 0), (err, other_err)
    assert (err + other_err).count("trial 0 was left behind: going on with it") == 1
    trials = trials_of(tmp_path)
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 2
    # As if nothing had happened.
    config = RunFolder.open(begun(tmp_path)[0]).config()
    straight = Trainer(config, data.load(pictures, holdout=13))
    assert straight.fit()["test_accuracy"] == trials[0].value
    weights = load_weights(begun(tmp_path)[0] / WEIGHTS)
    assert all(torch.equal(weights[key], value) for key, value in straight.model.state_dict().items())


@pytest.mark.slow
def test_workers_side_by_side_are_stopped_together_and_go_on(call, words, tmp_path):
    long = words(trials=2, epochs=60)
    both = command([*long, "--workers", "2"], tmp_path)
    wait_for(lambda: len(begun(tmp_path)) == 2, both)
    both.send_signal(signal.SIGTERM)
    _, err = both.communicate(timeout=60)
    assert both.returncode == 128 + signal.SIGTERM, err
    assert err.count("stopped by SIGTERM after step") == 2, err
    assert {trial.state for trial in trials_of(tmp_path)} == {TrialState.RUNNING}
    code, out, err = call(long)
    assert code == 0, err
    assert "2 trials finished" in out


def sweep_of(tmp_path: Path, *, trials: int, dimension: Choice, prune: bool = True) -> Sweep:
    base = tiny.config(epochs=3)
    return Sweep(
        name="sweep",
        storage=f"sqlite:///{tmp_path}/study.db",
        space=Space(base, (dimension,)),
        words=(dimension.name,),
        runs=tmp_path / "runs",
        trials=trials,
        prune=prune,
        device="cpu",
        data_root=None,
    )


@pytest.mark.parametrize("prune", [True, False])
def test_a_trial_below_the_median_stops_early(tmp_path, prune):
    sweep = sweep_of(tmp_path, trials=6, dimension=Choice("lr", (1e-2,)), prune=prune)
    study = open_study(sweep)
    for _ in range(5):  # trials that were better after their first epoch than any network can be
        study.add_trial(create_trial(value=101.0, intermediate_values={1: 101.0, 2: 101.0, 3: 101.0}))
    Worker(sweep, tiny.dataset(), "cpu").work()
    trial = study.trials[5]
    assert trial.state is (TrialState.PRUNED if prune else TrialState.COMPLETE)
    assert list(trial.intermediate_values) == ([1] if prune else [1, 2, 3])
    assert (RunFolder.open(tmp_path / "runs" / "trial-0005").result() is None) is prune


def test_a_trial_that_diverges_fails_alone(tmp_path):
    sweep = sweep_of(tmp_path, trials=2, dimension=Choice("lr", (1e35,)))
    Worker(sweep, tiny.dataset(), "cpu").work()
    trials = open_study(sweep).trials
    assert [trial.state for trial in trials] == [TrialState.FAIL] * 2
    assert "diverged" in trials[0].user_attrs["failed"]


def test_a_full_disk_is_no_trials_fault(tmp_path, monkeypatch):
    sweep = sweep_of(tmp_path, trials=2, dimension=Choice("lr", (1e-2,)))

    def full(self):
        raise CheckpointError("can't write: make room")

    with monkeypatch.context() as during:
        during.setattr(Trainer, "save", full)
        with pytest.raises(CheckpointError, match="make room"):
            Worker(sweep, tiny.dataset(), "cpu").work()
    assert [trial.state for trial in open_study(sweep).trials] == [TrialState.RUNNING]
    Worker(sweep, tiny.dataset(), "cpu").work()
    assert [trial.state for trial in open_study(sweep).trials] == [TrialState.COMPLETE] * 2


def test_a_trial_killed_when_only_the_telling_was_left(tmp_path):
    sweep = sweep_of(tmp_path, trials=1, dimension=Choice("lr", (1e-2,)))
    worker = Worker(sweep, tiny.dataset(), "cpu")
    trial = worker._new()
    assert trial is not None
    config = sweep.space.draw(trial)
    result = Trainer(config, tiny.dataset(), run=RunFolder.create(tmp_path / "runs" / "trial-0000", config)).fit()
    worker.work()
    (told,) = open_study(sweep).trials
    assert (told.state, told.value) == (TrialState.COMPLETE, result["test_accuracy"])


def test_nobody_draws_one_trial_too_many(tmp_path):
    """Two machines that count at the same moment: the higher number steps back."""
    sweep = sweep_of(tmp_path, trials=1, dimension=Choice("lr", (1e-2,)))
    worker = Worker(sweep, tiny.dataset(), "cpu")
    study = open_study(sweep)
    original = study.ask
    worker.study.ask = lambda *a, **k: (original(), optuna.Study.ask(worker.study))[1]  # somebody asks just before us
    assert worker._new() is None
    assert ["surplus" in trial.user_attrs for trial in study.trials] == [False, True]


STORAGES = {
    "nonsense": "can't be opened",
    "nonsense://here": "can't be opened",
    "sqlite:////absent/folder/study.db": "can't be opened",
}


@pytest.mark.parametrize("storage", STORAGES)
def test_bad_storages_are_one_sentence(call, words, storage, tmp_path):
    code, out, err = call([*words(trials=1), "--storage", storage])
    assert (code, out) == (2, "")
    assert STORAGES[storage] in err
    assert len(err.splitlines()) == 1, err


def test_bad_numbers_and_a_missing_package(call, words, tmp_path, monkeypatch):
    for name in ("--trials", "--workers"):
        code, _, err = call([*words(trials=1), name, "0"])
        assert (code, err) == (2, f"fastslow: {name} 0: give a whole number of at least 1\n")
    monkeypatch.delitem(sys.modules, "fastslow.sweep.study")
    monkeypatch.setitem(sys.modules, "optuna", None)
    code, _, err = call(words(trials=1))
    assert (code, err) == (2, "fastslow: sweep needs the package optuna: pip install 'fastslow[sweep]'\n")
    assert list(tmp_path.iterdir()) == []
