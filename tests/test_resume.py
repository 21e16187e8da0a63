"""A run that was stopped, anywhere and by anything, ends as if it had not been."""

from __future__ import annotations

import copy
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import tiny
from fastslow import cli
from fastslow.methods import list_methods
from fastslow.training import checkpoint
from fastslow.training.checkpoint import CheckpointError
from fastslow.training.config import RunConfig
from fastslow.training.interrupt import Interrupted, StopRequests
from fastslow.training.run import RunFolder
from fastslow.training.sinks import Silent
from fastslow.weights import load_weights

SCRIPT = Path(tiny.__file__)
ENVIRONMENT = dict(os.environ)


def without_seconds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


# -- every method, in a new process ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each method, saved at a random step within an epoch, then finished by another process."""
    folder = tmp_path_factory.mktemp("resume")
    draw = random.Random(7)
    runs = {}
    for method in tiny.METHODS:
        runs[method] = folder / method
        trainer = tiny.trainer(tiny.config(method), runs[method])
        per_epoch = len(trainer.train_batches)
        assert per_epoch == 5
        tiny.step(trainer, draw.randrange(3) * per_epoch + draw.randrange(1, per_epoch))
        trainer.save()
        torch.rand(3)  # whatever else the process does with its random numbers
    subprocess.run([sys.executable, SCRIPT, "finish", *runs.values()], check=True, env=ENVIRONMENT)
    return runs


@pytest.mark.parametrize("method", tiny.METHODS)
def test_a_new_process_continues_bit_for_bit(stopped_runs, method, tmp_path):
    whole = tiny.trainer(tiny.config(method), tmp_path / "whole")
    result = whole.fit()
    run = RunFolder.open(stopped_runs[method])
    tiny.assert_same_state(whole.state_dict(), checkpoint.load(run.path / "last.safetensors"))
    # To JSON and back: the run that never stopped has the same rows in its file.
    assert without_seconds(run.metrics()) == without_seconds(whole.rows) == without_seconds(whole.run.metrics())
    finished = run.result()
    assert finished is not None
    for key in result.keys() - {"seconds", "curve", "conditions"}:
        assert finished[key] == result[key], key
    tiny.assert_same_state(*(load_weights(path / "weights.safetensors") for path in (run.path, whole.run.path)))


@pytest.mark.parametrize("method", [info.name for info in list_methods()])
def test_a_stop_at_the_last_step_of_an_epoch_loses_no_metric(method, tmp_path):
    whole = tiny.trainer(tiny.config(method))
    whole.fit()
    stopped = tiny.trainer(tiny.config(method), tmp_path / "run")
    tiny.step(stopped, len(stopped.train_batches))
    assert stopped.rows == []  # the epoch's evaluation is still to come
    stopped.save()
    continued = tiny.resumed(tmp_path / "run")
    continued.fit()
    tiny.assert_same_state(whole.state_dict(), continued.state_dict())


@pytest.mark.parametrize("method", tiny.METHODS)
def test_a_step_can_be_taken_back(method):
    """What a failed capture of a CUDA graph needs: a copy of the state, loaded again after a step that didn't count."""
    whole = tiny.trainer(tiny.config(method))
    tiny.step(whole, 9)
    end = copy.deepcopy(whole.state_dict())
    other = tiny.trainer(tiny.config(method))
    tiny.step(other, 7)
    other.optimizer.zero_grad()
    before = copy.deepcopy(other.state_dict())
    tiny.step(other, 1)
    other.optimizer.zero_grad()
    other.load_state_dict(before)
    tiny.step(other, 2)
    tiny.assert_same_state(end, other.state_dict())


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["ste", "fsg", "fsg-weight"])
def test_a_step_that_cannot_be_captured_runs_one_kernel_at_a_time(method, caplog):
    eager = tiny.trainer(tiny.config(method), device="cuda")
    eager._graphed = None
    tiny.step(eager, 14)
    other = tiny.trainer(tiny.config(method), device="cuda")
    forward = type(other.model).forward

    def looks(self, x):
        float(x.sum())  # asks the GPU for a value, which a capture refuses
        return forward(self, x)

    other.model.forward = looks.__get__(other.model)
    steps = other._steps(0, 0)
    for step in range(14):
        if step and step % len(other.train_batches) == 0:
            other._end_epoch(len(other.rows))
            steps = other._steps(len(other.rows), 0)
        next(steps)
    assert other._graphed is not None
    assert other._graphed.graph is None
    assert sum("capturing one failed" in record.message for record in caplog.records) == 1
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    for a, b in zip(eager.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_the_float_network_resumes_too(tmp_path):
    fields = {"optimizer": "momentum", "warmup_epochs": 1, "lr": 0.1}
    whole = tiny.trainer(tiny.config(None, **fields))
    whole.fit()
    tiny.step(stopped := tiny.trainer(tiny.config(None, **fields), tmp_path / "run"), 7)
    stopped.save()
    continued = tiny.resumed(tmp_path / "run")
    continued.fit()
    tiny.assert_same_state(whole.state_dict(), continued.state_dict())


# -- what a crash leaves -----------------------------------------------------------------------------------------------


def test_a_crash_before_the_first_checkpoint_starts_again_without_double_rows(tmp_path):
    trainer = tiny.trainer(tiny.config(), tmp_path / "run")
    tiny.step(trainer, 6)  # the first epoch's row is written, its checkpoint is not
    assert len(trainer.run.metrics()) == 1
    again = tiny.resumed(tmp_path / "run")
    assert again.done == 0
    again.fit()
    assert [row["epoch"] for row in again.run.metrics()] == [1, 2, 3]


def test_rows_after_the_checkpoint_and_a_half_written_one_are_taken_back(tmp_path):
    whole = tiny.trainer(tiny.config())
    whole.fit()
    trainer = tiny.trainer(tiny.config(), tmp_path / "run")
    tiny.step(trainer, 8)
    trainer.save()
    tiny.step(trainer, 3)  # its second row comes after the checkpoint
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write('{"epoch": 3, "test_acc')
    assert [row["epoch"] for row in RunFolder.open(tmp_path / "run").metrics()] == [1, 2]
    continued = tiny.resumed(tmp_path / "run")
    assert [row["epoch"] for row in continued.run.metrics()] == [1]
    continued.fit()
    assert without_seconds(continued.run.metrics()) == without_seconds(whole.rows)


def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path, caplog):
    whole = tiny.trainer(tiny.config())
    whole.fit()
    trainer = tiny.trainer(tiny.config(), tmp_path / "run")
    for count in (3, 5):
        tiny.step(trainer, count)
        trainer.save()
    newest = trainer.run.checkpoints.paths()[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    continued = tiny.resumed(tmp_path / "run")
    assert continued.done == 3
    assert f"{newest} can't be used" in caplog.text
    continued.fit()
    tiny.assert_same_state(whole.state_dict(), continued.state_dict())


def test_a_finished_run_without_its_result_is_finished_again(tmp_path):
    tiny.trainer(tiny.config(), tmp_path / "run").fit()
    result = tmp_path / "run" / "result.json"
    before = json.loads(result.read_text())
    result.unlink()
    tiny.resumed(tmp_path / "run").fit()
    assert json.loads(result.read_text()) == before


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"batch_size": 4}, "it has 5 steps an epoch, the run now has 11: the data set has changed"),
        ({"method": "fcgrad"}, "doesn't belong to this run"),
        ({"skip": []}, "doesn't belong to this run"),
        ({"model": "resnet8"}, "keys are missing"),
    ],
)
def test_a_checkpoint_of_another_config_is_refused(tmp_path, fields, sentence):
    """Such as versions wrote that didn't keep the config."""
    trainer = tiny.trainer(tiny.config("multifc"), tmp_path / "run")
    tiny.step(trainer, 2)
    assert trainer.run is not None
    trainer.run.checkpoints.save(trainer.done, {k: v for k, v in trainer.state_dict().items() if k != "config"})
    edit(tmp_path / "run", fields)
    with pytest.raises(CheckpointError, match=sentence):
        tiny.resumed(tmp_path / "run")


def edit(run, fields):
    path = run / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    "fields",
    [{"weight_decay": 0.5}, {"optimizer": "sgd"}, {"seed": 7}, {"lr": 0.5}, {"epochs": 9}, {"augment": False},
     {"method": "fcgrad"}, {"batch_size": 4}, {"method_fields": {"hidden": 6}}],
)  # fmt: skip
def test_a_config_edited_between_two_sessions_is_refused(tmp_path, fields):
    trainer = tiny.trainer(tiny.config("multifc"), tmp_path / "run")
    tiny.step(trainer, 2)
    trainer.save()
    edit(tmp_path / "run", fields)
    with pytest.raises(CheckpointError, match=f"its config has {next(iter(fields))} = .*put that back"):
        tiny.resumed(tmp_path / "run")
    edit(tmp_path / "run", trainer.config.to_dict())
    assert tiny.resumed(tmp_path / "run").done == 2


def test_how_a_run_looks_after_itself_may_be_edited(tmp_path):
    trainer = tiny.trainer(tiny.config("multifc"), tmp_path / "run")
    tiny.step(trainer, 2)
    trainer.save()
    edit(tmp_path / "run", {"keep": 5, "checkpoint_every": "3steps", "on_nan": "skip"})
    assert tiny.resumed(tmp_path / "run").done == 2


def test_a_folder_of_images_may_move():
    here, there, other = (RunConfig(data=f"folder:{path}", weights="none") for path in ("/a/set", "/b/set", "/b/sets"))
    assert here.differences(there) == []
    assert here.differences(other) == ["data"]


@pytest.mark.parametrize(("optimizer", "method"), [("adam", "fsg"), ("momentum", "ste"), ("adamw", None)])
def test_a_run_begun_on_a_gpu_continues_on_a_cpu(tmp_path, optimizer, method):
    config = tiny.config(method, optimizer=optimizer)
    whole = tiny.trainer(config)
    whole.fit()
    stopped = tiny.trainer(config, tmp_path / "run")
    tiny.step(stopped, 7)
    state = stopped.state_dict()
    for group in state["optimizer"]["param_groups"]:  # as a captured step has it
        group |= {"lr": torch.tensor(group["lr"]), "fused": True}
        group |= {"capturable": True} if "capturable" in group else {}
    stopped.run.checkpoints.save(7, state)
    continued = tiny.resumed(tmp_path / "run")
    continued.fit()
    tiny.assert_same_state(whole.state_dict(), continued.state_dict())


@pytest.mark.gpu
@pytest.mark.parametrize("method", tiny.METHODS)
def test_resume_on_a_gpu(tmp_path, method):
    config = tiny.config(method)
    whole = tiny.trainer(config, device="cuda")
    whole.fit()
    stopped = tiny.trainer(config, tmp_path / "run", device="cuda", sink=StopAt(7))
    with pytest.raises(Interrupted):
        stopped.fit()
    continued = tiny.Trainer(config, tiny.dataset(), run=stopped.run, device="cuda")
    continued.resume()
    assert continued.done == 7
    result = continued.fit()
    assert result["train_loss"] == pytest.approx(whole.rows[-1]["train_loss"], rel=0.05)


# -- signals -----------------------------------------------------------------------------------------------------------


class StopAt(Silent):
    """Sends this process a signal when a step is done."""

    def __init__(self, done: int, number: int = signal.SIGINT) -> None:
        self.at, self.number = done, number

    def step(self, done: int, loss: float | None) -> None:
        if done == self.at:
            os.kill(os.getpid(), self.number)


class StopAtEpoch(StopAt):
    """The same, while an epoch's row is written."""

    def step(self, done: int, loss: float | None) -> None:
        pass

    def epoch(self, row: dict[str, Any]) -> None:
        super().step(row["epoch"], None)


@pytest.mark.parametrize("sink", [StopAt(7), StopAt(10), StopAtEpoch(1)])
def test_a_signal_stops_between_two_steps(tmp_path, sink):
    whole = tiny.trainer(tiny.config("fsg-weight"))
    whole.fit()
    trainer = tiny.trainer(tiny.config("fsg-weight"), tmp_path / "run", sink=sink)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match=rf"stopped by SIGINT after step .*fastslow resume {tmp_path / 'run'}"):
        trainer.fit()
    assert signal.getsignal(signal.SIGINT) is before
    continued = tiny.resumed(tmp_path / "run")
    assert continued.done == (5 if isinstance(sink, StopAtEpoch) else sink.at)
    continued.fit()
    tiny.assert_same_state(whole.state_dict(), continued.state_dict())


@pytest.mark.parametrize(("fields", "at"), [({"ema": 0.5}, 10), ({"ema": 0.5}, 15), ({"reestimate": 4}, 15)])
def test_a_signal_is_heeded_while_the_network_is_measured(tmp_path, fields, at):
    whole = tiny.trainer(tiny.config("fsg-weight", **fields))
    whole.fit()
    trainer = tiny.trainer(tiny.config("fsg-weight", **fields), tmp_path / "run")
    passes = []

    def ask(module, _):
        if not module.training and trainer.done == at:
            passes.append(trainer.done)
            os.kill(os.getpid(), signal.SIGTERM)

    trainer.model.register_forward_pre_hook(ask)
    with pytest.raises(Interrupted, match=f"stopped by SIGTERM after step {at}; saved"):
        trainer.fit()
    assert len(passes) == 1  # of a measurement that takes more
    continued = tiny.resumed(tmp_path / "run")
    assert (continued.done, len(continued.rows)) == (at, at // 5 - 1)
    continued.fit()
    tiny.assert_same_state(whole.state_dict(), continued.state_dict())


def test_a_signal_in_the_last_evaluation_ends_a_finished_run(tmp_path):
    trainer = tiny.trainer(tiny.config(), tmp_path / "run", sink=StopAtEpoch(3))
    assert trainer.fit()["test_accuracy"] == RunFolder.open(tmp_path / "run").result()["test_accuracy"]


def test_a_run_without_a_folder_says_that_nothing_is_saved():
    with pytest.raises(Interrupted, match="nothing is saved") as stop:
        tiny.trainer(tiny.config(), sink=StopAt(2, signal.SIGTERM)).fit()
    assert stop.value.exit_code == 143


def test_a_second_ctrl_c_stops_at_once():
    with StopRequests() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    pictures = tiny.images(100, 3, size=32, classes=2)
    for i, (image, label) in enumerate(zip(pictures.images, pictures.labels, strict=True)):
        path = folder / f"class{int(label)}" / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    return folder


def arguments(images: Path, run: Path) -> list[str]:
    method = ["--model", "tiny", "--method", "multifc", "--set", "hidden=4", "--epochs", "12", "--batch-size", "8"]
    return ["train", *method, "--data", f"folder:{images}", "--run", str(run), "--json"]


def call(monkeypatch: pytest.MonkeyPatch, *argv: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fastslow", *argv])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code


@pytest.fixture(scope="module")
def uninterrupted(image_folder, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    path = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        torch.set_num_threads(1)
        assert call(patch, *arguments(image_folder, path)) == 0
    return RunFolder.open(path)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_command_line_survives_a_signal(image_folder, uninterrupted, tmp_path, monkeypatch, capsys, number, code):
    run = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, SCRIPT, "cli", *arguments(image_folder, run)],
        env=ENVIRONMENT,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # the tests themselves may run under nohup
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not (run / "metrics.jsonl").exists():
        time.sleep(0.003)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert out == ""
    assert err.splitlines()[-1].startswith(f"fastslow: stopped by {number.name} after step ")
    assert err.splitlines()[-1].endswith(f"; saved: continue with `fastslow resume {run}`")
    assert "Traceback" not in err
    assert not (run / "result.json").exists()

    assert call(monkeypatch, "resume", str(run), "--json") == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["run"] == str(run)
    (_, state), (_, whole) = (r.checkpoints.load_newest() for r in (RunFolder.open(run), uninterrupted))
    tiny.assert_same_state(state, whole)
    assert without_seconds(RunFolder.open(run).metrics()) == without_seconds(uninterrupted.metrics())
    # A second resume has nothing to do, and says so.
    assert call(monkeypatch, "resume", str(run), "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == last
    assert "is finished already" in captured.err
