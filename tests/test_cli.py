"""Every command, and what it prints for people and for programs."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fastslow as fs
import tiny
from calling import QUICK
from fastslow import cli, demo, methods
from fastslow.training.config import NONE, RunConfig
from fastslow.training.run import RunFolder
from fastslow.weights import save_weights

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


def test_version(call):
    assert call("--version").out == f"fastslow {fs.__version__}\n"


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
        "images.json",
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
    assert values["packed_bytes"] == 44_264  # as of any trained one: BatchNorm's scales are counted as if they differ
    large = call("summary", "--model", "resnet18", "--json").json
    assert (large["input_shape"], large["parameters"]) == ([3, 224, 224], 11_689_512)
    small = call("summary", "--model", "resnet18", "--classes", "3", "--image-size", "64", "--json").json
    assert (small["input_shape"], large["parameters"] - small["parameters"]) == ([3, 64, 64], 997 * 513)
    assert call("summary", finished, "--classes", "3").code == 2
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
