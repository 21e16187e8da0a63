"""Every command, what it prints for people and for programs, and every way to get it wrong."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from PIL import Image

import fastslow as fs
import tiny
from fastslow import cli, demo, methods
from fastslow.training.config import NONE, RunConfig
from fastslow.training.run import RunFolder
from fastslow.weights import save_weights


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out.splitlines()[-1])


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """The command line in this process, with its working folder in a place of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FASTSLOW_DATA", str(tmp_path / "no-data"))
    log = logging.getLogger("fastslow")
    monkeypatch.setattr(log, "level", log.level)

    def run(*arguments: object) -> Answer:
        monkeypatch.setattr(log, "handlers", [])  # as in a new process
        monkeypatch.setattr(sys, "argv", ["fastslow", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return Answer(stop.value.code, out, err)

    return run


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data set of two classes, 36 training and 4 test images."""
    folder = tmp_path_factory.mktemp("pictures")
    made = tiny.images(40, 3, size=32, classes=2)
    for i, image in enumerate(made.images):
        path = folder / ("cats", "dogs")[i % 2] / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    return f"folder:{folder}"


QUICK = ["--model", "tiny", "--method", "ste", "--epochs", 1, "--batch-size", 9]


@pytest.fixture(scope="module")
def finished(pictures, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    from fastslow import data
    from fastslow.training.loop import Trainer

    path = tmp_path_factory.mktemp("finished") / "run"
    config = RunConfig(model="tiny", data=pictures, method="ste", epochs=2, batch_size=9)
    Trainer(config, data.load(pictures), run=RunFolder.create(path, config)).fit()
    return path


# -- the commands ------------------------------------------------------------------------------------------------------


def names() -> list[str]:
    return [c.name or c.callback.__name__ for c in cli.app.registered_commands]


def test_all_commands_of_the_core_are_there():
    assert set(names()) >= {"demo", "methods", "pretrain", "train", "resume", "eval", "summary", "data"}


@pytest.mark.parametrize("name", [[], *([name] for name in names())], ids=str)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help(call, name, flag):
    answer = call(*name, flag)
    assert (answer.code, answer.err) == (0, "")
    assert f"Usage: fastslow {' '.join(name)}".rstrip() in answer.out
    assert len(answer.out.splitlines()) > 8


def test_without_a_command_comes_the_help(call):
    answer = call()
    assert answer.code == 0
    assert all(name in answer.out for name in names())


def test_methods_for_people(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    answer = call("methods")
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert max(map(len, lines)) <= 80
    for info in methods.list_methods():
        assert sum(line.split()[:1] == [info.name] and line.startswith("  ") for line in lines) == 1
        assert info.family in lines
    monkeypatch.setenv("COLUMNS", "5")  # nonsense; readable nevertheless
    assert "fsg-weight" in call("methods").out


def test_methods_for_programs(call):
    answer = call("methods", "--json")
    assert len(answer.out.splitlines()) == 1
    assert [row["name"] for row in answer.json] == [info.name for info in methods.list_methods()]
    assert all(list(row) == ["name", "family", "paper", "summary"] for row in answer.json)
    assert all(all(row.values()) for row in answer.json)


def test_the_fields_of_a_method(call):
    fields = call("methods", "fsg", "--json").json["fields"]
    assert (fields["beta"], fields["length"], fields["slow"]) == (0.3, 6, "mamba")
    assert "  beta               0.3" in call("methods", "fsg").out.splitlines()
    assert "(no fields)" in call("methods", "ste").out


def test_train_for_programs(call, pictures, tmp_path):
    answer = call("train", *QUICK, "--data", pictures, "--run", "runs/first", "--json")
    assert answer.code == 0
    assert len(answer.out.splitlines()) == 1
    assert list(answer.json) == ["test_accuracy", "best_test_accuracy", "train_loss", "seconds", "run"]
    assert answer.json["run"] == "runs/first"
    run = RunFolder.open(tmp_path / "runs" / "first")
    result = run.result()
    assert result is not None
    assert answer.json == {**{key: result[key] for key in list(answer.json)[:-1]}, "run": "runs/first"}
    assert sorted(p.name for p in run.path.iterdir()) == [
        ".lock",
        "checkpoints",
        "config.json",
        "metrics.jsonl",
        "result.json",
        "weights.safetensors",
    ]
    assert run.config() == RunConfig(model="tiny", data=pictures, method="ste", epochs=1, batch_size=9)


def test_train_for_people(call, pictures):
    answer = call("train", *QUICK, "--data", pictures)
    assert answer.code == 0
    first, second = answer.out.splitlines()
    assert first.startswith("test accuracy ")
    assert "(last epoch; best " in first
    folder = second.removeprefix("run: ")
    assert folder.startswith("runs/tiny-")
    assert RunFolder.open(folder).result() is not None
    lines = answer.err.splitlines()
    assert lines[0] == "ste: binarized 2 layers, left in float: c1: skipped; fc: skipped"
    assert lines[1].startswith(f"run folder {folder}; Ctrl-C stops it")
    assert lines[-1].startswith("epoch   1  loss ")
    # The same command again names the run that is there.
    again = call("train", *QUICK, "--data", pictures)
    assert again.code == 2
    assert f"{folder} already holds a run; continue it with `fastslow resume {folder}`" in again.err


def test_options_reach_the_config(call, pictures, tmp_path):
    answer = call(
        *("train", "--model", "tiny", "--data", pictures, "--method", "fsg-weight", "--beta", 0.25, "--length", 2),
        *("--set", "expand=3", "--set", "d_state=2", "--set", "slow=mamba", "--skip", "c1", "--bits", 2),
        *("--binarizer", "dorefa", "--optimizer", "momentum", "--lr", 0.02, "--momentum", 0.5, "--weight-decay", 0.001),
        *("--schedule", "step", "--step-epochs", 1, "--warmup-epochs", 1, "--epochs", 2, "--batch-size", 6),
        *("--no-augment", "--seed", 3, "--precision", "bf16", "--holdout", 6, "--weights", "none"),
        *("--device", "cpu", "--run", "run", "--json"),
    )
    assert answer.code == 0, answer.err
    assert RunFolder.open(tmp_path / "run").config() == RunConfig(
        model="tiny",
        data=pictures,
        holdout=6,
        weights=NONE,
        method="fsg-weight",
        method_fields={"beta": 0.25, "length": 2, "expand": 3, "d_state": 2, "slow": "mamba"},
        binarizer="dorefa",
        bits=2,
        skip=("c1",),
        optimizer="momentum",
        lr=0.02,
        momentum=0.5,
        weight_decay=0.001,
        schedule="step",
        step_epochs=1,
        warmup_epochs=1,
        epochs=2,
        batch_size=6,
        augment=False,
        seed=3,
        precision="bf16",
    )
    found = call("eval", "run")
    assert "on the last 6 training images, held out of folder:" in found.out


def test_a_relative_folder_can_be_resumed_from_elsewhere(call, pictures, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(pictures.removeprefix("folder:")).parent)
    name = Path(pictures).name
    assert call("train", *QUICK, "--data", f"folder:{name}", "--run", tmp_path / "run").code == 0
    assert RunFolder.open(tmp_path / "run").config().data == pictures


def test_none_binarizes_every_layer(call, pictures, tmp_path):
    assert call("train", *QUICK, "--data", pictures, "--skip", "none", "--run", "run").code == 0
    assert RunFolder.open(tmp_path / "run").config().skip == ()


def test_a_tracked_run_is_tracked_when_it_is_resumed(call, pictures, tmp_path):
    options = [*QUICK, "--data", pictures, "--run", "run", "--track", "tensorboard"]
    assert call("train", *options).code == 0
    shutil.rmtree(tmp_path / "run" / "checkpoints")  # as if it had been stopped at once
    (tmp_path / "run" / "result.json").unlink()
    before = set((tmp_path / "run" / "tensorboard").iterdir())
    assert call("resume", "run", "--track", "none").code == 0
    assert set((tmp_path / "run" / "tensorboard").iterdir()) == before
    (tmp_path / "run" / "result.json").unlink()
    assert call("resume", "run").code == 0
    assert set((tmp_path / "run" / "tensorboard").iterdir()) > before


def test_pretrain_then_train_from_its_weights(call, pictures, tmp_path):
    options = ["--model", "tiny", "--data", pictures, "--epochs", 2, "--batch-size", 9]
    answer = call("pretrain", *options, "--run", "float", "--json")
    assert answer.code == 0, answer.err
    assert list(answer.json) == ["test_accuracy", "best_test_accuracy", "train_loss", "seconds", "run"]
    config = RunFolder.open(tmp_path / "float").config()
    assert (config.method, config.optimizer, config.warmup_epochs) == (None, "momentum", 0)
    weights = tmp_path / "float" / "weights.safetensors"
    found = call("eval", weights, "--model", "tiny", "--data", pictures, "--json")
    assert found.json["accuracy"] == answer.json["test_accuracy"]
    started = call("train", *QUICK, "--lr", 1e-9, "--data", pictures, "--weights", weights, "--run", "run")
    assert started.code == 0
    state = RunFolder.open(tmp_path / "run").checkpoints.load_newest()[1]
    assert torch.allclose(state["model"]["c2.weight"], fs.load_weights(weights)["c2.weight"], atol=1e-6)


def test_eval(call, finished):
    answer = call("eval", finished, "--json")
    assert (answer.code, answer.err) == (0, "")
    result = RunFolder.open(finished).result()
    assert result is not None
    assert answer.json == {
        "accuracy": result["test_accuracy"],
        "loss": pytest.approx(result["test_loss"]),
        "n": result["n_test"],
    }
    assert call("eval", finished).out.startswith(f"accuracy {result['test_accuracy']:.2f} %, loss ")


def test_eval_of_an_unfinished_run_is_of_its_newest_checkpoint(call, pictures, tmp_path):
    config = RunConfig(model="tiny", data=pictures, method="ste", epochs=5, batch_size=9)
    run = RunFolder.create(tmp_path / "run", config)
    answer = call("eval", run.path)
    assert (answer.code, answer.err) == (
        2,
        f"fastslow: {run.path} has no weights yet; continue it with `fastslow resume {run.path}`\n",
    )
    from fastslow import data
    from fastslow.training.loop import Trainer

    trainer = Trainer(config, data.load(pictures), run=run)
    tiny.step(trainer, 2)
    trainer.save()
    assert call("eval", run.path, "--json").json["n"] == 4


def test_summary(call, finished):
    values = call("summary", "--model", "resnet20", "--json").json
    assert (values["parameters"], sum(values["macs"].values())) == (272_474, 40_813_184)
    assert {row["name"]: row["bits"] for row in values["layers"]}["conv1"] == 32
    all_binary = call("summary", "--model", "resnet20", "--skip", "none", "--json").json
    assert all_binary["packed_bytes"] < values["packed_bytes"]
    assert call("summary", finished, "--json").json["parameters"] == sum(p.numel() for p in tiny.Tiny(2).parameters())
    text = call("summary", "--model", "resnet8").out
    assert "78,042" in text


def test_summary_of_weights(call, tmp_path):
    save_weights(fs.models.resnet8(), tmp_path / "w.safetensors")
    values = call("summary", "w.safetensors", "--model", "resnet8", "--method", "fsg", "--json").json
    assert values["parameters"] == 78_042


def test_data(call, pictures, tmp_path):
    rows = call("data", "--json").json
    assert rows == [
        {"name": "cifar10", "present": False},
        {"name": "cifar100", "present": False},
        {"name": "mini", "present": True},
    ]
    text = call("data").out
    assert text.splitlines()[0] == f"folder: {tmp_path / 'no-data'}"
    assert "not fetched yet" in text
    assert call("data", "mini", "--json").json == {"name": "mini", "train": 4000, "test": 1000, "classes": 10}
    assert call("data", pictures).out == f"{pictures}: 36 training and 4 test images in 2 classes\n"


def small_demo(epochs: int) -> RunConfig:
    return RunConfig(
        model="tiny", data="mini", method="fsg-weight", method_fields=tiny.SMALL, epochs=epochs, batch_size=500
    )


def test_demo(call, monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "demo_config", small_demo)
    answer = call("demo", "--epochs", 1, "--out", "runs/demo", "--json")
    assert answer.code == 0, answer.err
    assert [line[0] for line in answer.out.splitlines()] == [*"12345678", "{"]
    found = answer.json
    assert found["run"] == "runs/demo"
    assert {"float_accuracy", "binarized_accuracy", "test_accuracy", "seconds"} <= found.keys()
    assert found["packed_bytes"] < found["float_bytes"]
    assert (tmp_path / found["picture"]).read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / found["packed_file"]).stat().st_size == found["file_bytes"]
    assert found["packed_accuracy"] == found["test_accuracy"]
    assert call("eval", "runs/demo", "--json").json["accuracy"] == found["test_accuracy"]
    # Once more, in place of the first.
    assert call("demo", "--epochs", 1).code == 0


def test_demo_removes_nothing_but_a_demo(call, monkeypatch, finished, tmp_path):
    monkeypatch.setattr(demo, "demo_config", small_demo)
    before = sorted(finished.rglob("*"))
    answer = call("demo", "--out", finished)
    assert (answer.code, answer.err) == (
        2,
        f"fastslow: {finished} exists and is no earlier demo; choose another --out\n",
    )
    assert sorted(finished.rglob("*")) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    assert call("demo", "--out", "mine").code == 2
    assert (tmp_path / "mine" / "thesis.txt").exists()


@pytest.mark.slow
def test_the_demo_itself(call):
    found = call("demo", "--epochs", 1, "--json").json
    assert found["binarized_accuracy"] < 30 < found["test_accuracy"]


# -- what a user can get wrong -----------------------------------------------------------------------------------------


def train(*options: object) -> list[object]:
    return ["train", *QUICK, "--run", "run", *options]


BAD: dict[str, tuple[list[object], str]] = {
    "no command": (["fly"], "No such command 'fly'; see `fastslow --help`"),
    "no option": (["train", "--colour", "red"], "No such option: --colour"),
    "no argument": (["resume"], "see `fastslow resume --help`"),
    "no number": (train("--epochs", "many"), "Invalid value for '--epochs'"),
    "method": (["train", "--method", "fgs"], "unknown method 'fgs'; did you mean 'fsg'"),
    "methods": (["methods", "fgs"], "unknown method 'fgs'; did you mean 'fsg'"),
    "model": (train("--model", "resnet21"), "unknown model 'resnet21'; did you mean 'resnet"),
    "data": (train("--data", "cifar11"), "unknown data set 'cifar11'; did you mean 'cifar10'"),
    "optimizer": (train("--optimizer", "adagrad"), "optimizer='adagrad': choose one of sgd, momentum, adam, adamw"),
    "schedule": (train("--schedule", "linear"), "schedule='linear': choose one of"),
    "precision": (train("--precision", "int8"), "precision='int8': choose one of"),
    "lr": (train("--lr", "-1"), "lr=-1.0: give a positive learning rate"),
    "lr nan": (train("--lr", "nan"), "lr=nan: give a positive learning rate"),
    "epochs": (train("--epochs", "0"), "epochs=0: give a whole number of at least 1"),
    "batch size": (train("--batch-size", "0"), "batch_size=0"),
    "seed": (train("--seed", "99999999999999999999"), "seed=99999999999999999999"),
    "warm-up": (train("--warmup-epochs", "1"), "warmup_epochs=1: must be fewer than epochs=1"),
    "field": (train("--beta", "0.5"), "ste has no field 'beta'; its fields: none"),
    "set": (train("--set", "beta"), "--set beta: write name=value, for example --set d_state=4"),
    "set unknown": (train("--method", "fsg", "--set", "colour=1"), "fsg has no field 'colour'; its fields: "),
    "set text": (
        train("--method", "fsg", "--set", "d_state=x"),
        "d_state='x': the field 'd_state' of fsg takes",
    ),
    "set fraction": (train("--method", "fsg", "--set", "length=2.5"), "length=2.5: the field 'length' of fsg takes"),
    "set switch": (train("--method", "fsg", "--set", "projections=1"), "takes True or False"),
    "set name": (train("--method", "fsg", "--set", "slow=gru"), "slow='gru': choose one of mamba, lstm"),
    "beta, before a download": (
        ["train", "--method", "fsg", "--beta", "2", "--data", "cifar10"],
        "beta=2.0: the weight of the slow gradient lies between 0 and 1",
    ),
    "beta": (
        train("--method", "fsg", "--beta", "1.5"),
        "beta=1.5: the weight of the slow gradient lies",
    ),
    "length": (train("--method", "fsg", "--length", "0"), "length=0: give a whole number of at least 1"),
    "binarizer": (train("--binarizer", "sgin"), "unknown binarizer 'sgin'; did you mean 'sign'"),
    "bits": (train("--bits", "9"), "bits=9: give a whole number from 1 to 8"),
    "bits of a sign": (train("--bits", "2", "--binarizer", "sign"), "bits=2: the binarizer 'sign' has one bit"),
    "pattern": (train("--skip", "conv9"), "skip: the pattern 'conv9' matches no layer"),
    "nothing left": (train("--skip", "*"), "nothing to binarize in Tiny: c1: skipped"),
    "device": (train("--device", "gpu"), "--device gpu: no device to train on; use auto, cpu or cuda"),
    "device meta": (train("--device", "meta"), "--device meta: no device to train on"),
    "track": (train("--track", "tensorbord"), "'tensorbord' is no tracker; choose from tensorboard, wandb, mlflow"),
    "holdout": (train("--holdout", "36"), "holdout must be from 0 to 35, not 36"),
    "holdout below": (train("--holdout", "-1"), "holdout=-1: give a whole number of at least 0"),
    "weights": (train("--weights", "absent.safetensors"), "no weights at "),
    "weights by name": (train("--weights", "name:absent"), "no float weights absent.safetensors in "),
    "shipped": (train("--weights", "shipped"), "no float weights are shipped for tiny on folder:"),
    "no such folder": (train("--data", "folder:absent"), "/absent is no folder"),
    "no folder": (train("--data", "folder:"), "'folder:' names no folder: write folder:PATH"),
    "resume": (
        ["resume", "absent"],
        "absent holds no run (no config.json); give the folder",
    ),
    "eval": (["eval", "absent"], "no weights at absent; give the path of a .safetensors file"),
    "summary": (["summary"], "give the folder of a run, or name a network with --model"),
    "summary model": (["summary", "--model", "vgg"], "unknown model 'vgg'; did you mean 'vgg_small'"),
    "summary skip": (["summary", "--model", "resnet8", "--skip", "x"], "the pattern 'x' matches no layer"),
    "data set": (["data", "imagenet"], "unknown data set 'imagenet'"),
    "demo": (["demo", "--epochs", "0"], "epochs=0: give a whole number of at least 1"),
}


def one_sentence(answer: Answer, sentence: str) -> None:
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.startswith("fastslow: ")
    assert sentence in answer.err
    assert len(answer.err.splitlines()) == 1, answer.err


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence(call, pictures, tmp_path, name):
    arguments, sentence = BAD[name]
    if arguments[:1] == ["train"] and "--data" not in arguments:
        arguments = [*arguments, "--data", pictures]
    one_sentence(call(*arguments), sentence)
    assert list(tmp_path.iterdir()) == []  # no run folder, no download


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_no_gpu(call):
    one_sentence(call(*train("--device", "cuda")), "PyTorch sees no CUDA device here; use --device cpu")


def test_weights_that_dont_fit(call, pictures, tmp_path):
    save_weights(tiny.Tiny(3), tmp_path / "w.safetensors")
    answer = call(*train("--data", pictures, "--weights", "w.safetensors"))
    one_sentence(answer, "doesn't fit this Tiny: fc.bias is (3,), the model needs (2,); fc.weight is (3, 8)")
    (tmp_path / "w.safetensors").write_bytes(b"garbage")
    one_sentence(call(*train("--data", pictures, "--weights", "w.safetensors")), "is no readable safetensors file")
    assert not (tmp_path / "run").exists()


def cifar10(root: Path, size: int) -> None:
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        with open(folder / name, "wb") as file:
            file.truncate(size)


def test_data_files_that_are_damaged(call, tmp_path):
    cifar10(tmp_path / "short", 1000)
    one_sentence(
        call(*train("--data", "cifar10", "--data-root", "short")),
        "data_batch_1.bin has 1000 bytes, not 30730000: delete it and it will be downloaded again",
    )
    cifar10(tmp_path / "wrong", 30_730_000)
    one_sentence(call(*train("--data", "cifar10", "--data-root", "wrong")), "not 5dd7e06a14cb22eb9f671a540d1b7c25")
    one_sentence(call("data", "cifar10", "--data-root", "wrong"), "data_batch_1.bin has MD5")
    assert not (tmp_path / "run").exists()


def test_data_that_cant_be_fetched(call, monkeypatch, tmp_path):
    from fastslow.data import fetch

    def no_network(*_: object, **__: object) -> None:
        raise OSError("Network is unreachable")

    monkeypatch.setattr(fetch, "urlopen", no_network)
    one_sentence(call(*train("--data", "cifar100")), "Network is unreachable")
    assert not (tmp_path / "run").exists()


def test_a_folder_with_one_class(call, tmp_path):
    (tmp_path / "pictures" / "cats").mkdir(parents=True)
    for i in range(3):
        Image.new("RGB", (32, 32)).save(tmp_path / "pictures" / "cats" / f"{i}.png")
    one_sentence(call(*train("--data", "folder:pictures")), "holds only one class, 'cats'")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_a_run_is_left_alone(call, finished, pictures, monkeypatch):
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    monkeypatch.setattr("fastslow.data.load", lambda *_, **__: pytest.fail("read the data first"))
    for command in (["train", *QUICK], ["pretrain", "--model", "tiny"]):
        answer = call(*command, "--data", pictures, "--run", finished)
        one_sentence(answer, f"{finished} already holds a run; continue it with `fastslow resume {finished}`")
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before
    answer = call("train", *QUICK, "--data", pictures, "--run", finished / "config.json")
    one_sentence(answer, "config.json is a file; choose another folder")


def test_a_loss_that_is_no_number(call, pictures, tmp_path):
    answer = call(*train("--data", pictures, "--optimizer", "sgd", "--lr", 1e38, "--epochs", 50))
    last = answer.err.splitlines()[-1]
    assert answer.code == 2
    assert "Traceback" not in answer.err
    assert last.startswith("fastslow: training diverged: ")
    assert "step " in last
    assert "first not finite: " in last
    assert "checkpoint" in last
    assert answer.out == ""
    one_sentence(call(*train("--data", pictures)), "already holds a run")


def test_a_run_folder_that_is_damaged(call, pictures, tmp_path):
    run = RunFolder.create(tmp_path / "run", RunConfig(model="tiny", data=pictures, method="ste", epochs=1))
    (run.path / "result.json").write_text("{")
    one_sentence(call("resume", "run"), "run/result.json can't be read")
    (run.path / "result.json").unlink()
    run.checkpoints.save(3, {}).write_bytes(b"half")
    answer = call("resume", "run")
    assert answer.code == 2
    assert "holds no usable checkpoint; start the run again" in answer.err.splitlines()[-1]
    run.checkpoints.save(3, {"done": 3})
    answer = call("resume", "run")
    assert answer.code == 2
    assert "doesn't belong to this run" in answer.err.splitlines()[-1]
    (run.path / "config.json").write_text('{"epochs": 0}')
    for command in ("resume", "eval", "summary"):
        one_sentence(call(command, "run"), "run/config.json can't be used: epochs=0")


def test_a_disk_that_is_full(call, pictures, monkeypatch, tmp_path):
    from fastslow.training import checkpoint

    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(checkpoint, "write_atomically", full)
    answer = call(*train("--data", pictures))
    assert answer.code == 2
    last = answer.err.splitlines()[-1]
    assert last.startswith("fastslow: the checkpoint run/checkpoints/step-000000004.safetensors can't be written")
    assert "No space left on device" in last


def test_eval_on_other_classes(call, finished, tmp_path):
    one_sentence(call("eval", finished, "--data", "mini"), "--data mini has 10 classes, this network tells 2 apart")
    one_sentence(call("eval", finished, "--model", "resnet8"), "trained tiny; leave it out")
    weights = finished / "weights.safetensors"
    one_sentence(call("eval", weights), "holds weights only; name its network with --model")
    one_sentence(
        call("eval", weights, "--model", "tiny", "--data", "mini"),
        "holds the latent weights of a network trained with ste: give the folder of its run",
    )
    save_weights(fs.models.resnet8(100), tmp_path / "w.safetensors")
    one_sentence(call("eval", "w.safetensors", "--model", "resnet8", "--data", "mini"), "doesn't fit this ResNet")


def test_unforeseen_errors_are_not_hidden(call, monkeypatch):
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("fastslow.cli_support.print_json", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        call("methods", "--json")


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 2, "out of memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried ..."), 2, "out of memory; free some, or try a smaller "),
        (PermissionError(13, "Permission denied", "/x/y"), 2, "/x/y: Permission denied"),
        (OSError("odd"), 2, "odd"),
        (ModuleNotFoundError("No module named 'rich'", name="rich"), 2, "the package rich is missing: pip install"),
        (ValueError("two\nlines"), 2, "two lines"),
    ],
)
def test_errors_from_anywhere(call, monkeypatch, error, code, sentence):
    def raises(*_: object) -> None:
        raise error

    monkeypatch.setattr("fastslow.cli_support.print_json", raises)
    answer = call("methods", "--json")
    assert (answer.code, answer.out) == (code, "")
    assert answer.err.startswith(f"fastslow: {sentence}")
    assert len(answer.err.splitlines()) == 1


# -- as a program of its own -------------------------------------------------------------------------------------------


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def test_python_m_fastslow_and_the_script(tmp_path):
    script = Path(sys.executable).with_name("fastslow")
    for start in ([sys.executable, "-m", "fastslow"], [str(script)]):
        done = subprocess.run(
            [*start, "train", "--lr", "x"], capture_output=True, text=True, check=False, cwd=tmp_path, env=os.environ
        )
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.startswith("fastslow: Invalid value for '--lr'")
        assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_nothing_heavy_is_imported_early():
    done = python(
        "import sys, fastslow, fastslow.cli\n"
        "assert fastslow.__version__ and 'binarize_' in dir(fastslow)\n"
        "print(sorted({'torch', 'numpy', 'rich', 'PIL', 'matplotlib'} & sys.modules.keys()))\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout in ("[]\n", "['rich']\n")  # some versions of typer bring rich along


def test_packages_that_are_missing():
    done = python("import sys; sys.modules['typer'] = None; import fastslow.cli")
    assert done.returncode == 2
    assert done.stderr == "fastslow: the command line needs more packages: pip install 'fastslow[train]'\n"
    done = python(
        "import sys, fastslow.cli\nsys.modules['torch'], sys.argv = None, ['fastslow', 'methods']\nfastslow.cli.main()"
    )
    assert done.returncode == 2
    assert done.stderr == "fastslow: the package torch is missing: pip install 'fastslow[train]'\n"


def test_the_public_surface():
    assert dir(fs) == sorted(fs.__all__)
    for name in fs.__all__:
        assert getattr(fs, name) is not None, name
    with pytest.raises(AttributeError, match="module 'fastslow' has no attribute 'binarise_'"):
        fs.binarise_  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    assert math.isfinite(float(fs.__version__.split(".")[0]))
