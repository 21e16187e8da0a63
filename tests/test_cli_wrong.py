"""Every way to get a command wrong: one sentence that says what to do, and nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

import fastslow as fs
import tiny
from calling import QUICK, Answer
from fastslow.training.config import RunConfig
from fastslow.training.run import RunFolder
from fastslow.weights import save_weights


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
    "summary classes": (["summary", "--model", "resnet8", "--classes", "0"], "Invalid value for '--classes'"),
    "report": (["report", "--results", "absent", "--out", "docs"], "--results absent: there is no such folder"),
    "diagnose field": (["diagnose", "--set", "bta=1"], "bta"),
    "diagnose field of a run": (["diagnose", "here", "--set", "beta=1"], "here has its own method, network"),
    "diagnose": (["diagnose", "--steps", "0"], "--steps 0: give a whole number of at least 2"),
    "activations": (train("--activations", "foo"), "choose 'sign', or None (on the command line: real)"),
    "data set": (["data", "imagenet"], "unknown data set 'imagenet'"),
    "demo": (["demo", "--epochs", "0"], "epochs=0: give a whole number of at least 1"),
    "momentum": (train("--momentum", "0.9", "--optimizer", "sgd"), "--momentum belongs to --optimizer momentum, which"),
    "step epochs": (
        train("--step-epochs", "3", "--schedule", "cosine"),
        "--step-epochs belongs to --schedule step, which",
    ),
    "temperature": (train("--distill-temperature", "2"), "--distill-temperature belongs to --distill, which this run"),
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
