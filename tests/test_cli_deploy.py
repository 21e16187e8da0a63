"""``fastslow pack``, ``export`` and ``bench``, from a small trained run."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch

import fastslow as fs
import tiny
from fastslow import cli, data
from fastslow.deploy import shipped
from fastslow.deploy.pack import pack
from fastslow.report.load import load_trained
from fastslow.training.config import RunConfig


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The tiny network, one epoch on the mini set."""
    folder = tmp_path_factory.mktemp("deploy") / "run"
    config = RunConfig(model="tiny", data="mini", method="ste", epochs=1, batch_size=1000)
    fs.Trainer(config, data.load("mini"), run=tiny.RunFolder.create(folder, config)).fit()
    return folder


@pytest.fixture
def call(monkeypatch, capsys):
    def command(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fastslow", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return command


@pytest.fixture
def packed(run, call, tmp_path):
    path = tmp_path / "model.safetensors"
    code, out, err = call("pack", run, path)
    assert code == 0, err
    assert f"{path.stat().st_size} bytes" in out
    return path


def test_pack_writes_what_the_run_computes_and_where_it_comes_from(run, packed):
    network, _ = load_trained(run)
    images = data.load("mini").test
    x, _ = next(data.Batches(images, 16).epoch())
    engine = fs.load_packed(packed)
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(engine(x.numpy())), network.eval()(x), rtol=1e-4, atol=1e-4)
    assert engine.info.classes == images.classes
    assert engine.info.mean == pytest.approx(images.mean)
    assert engine.info.result["config"]["model"] == "tiny"
    assert engine.info.result["test_accuracy"] == tiny.RunFolder.open(run).result()["test_accuracy"]


@pytest.mark.parametrize("command", ["pack", "export", "eval"])
def test_a_run_that_is_not_finished_says_so(call, tmp_path, caplog, command):
    config = RunConfig(model="tiny", data="mini", method="ste", epochs=3, batch_size=1000)
    trainer = fs.Trainer(config, data.load("mini"), run=tiny.RunFolder.create(tmp_path / "run", config))
    tiny.step(trainer, 5)
    trainer.save()
    code, out, err = call(command, tmp_path / "run", *([] if command == "eval" else [tmp_path / "out"]))
    assert code == 0, err
    assert f"{tmp_path / 'run'} isn't finished: this is its network after 5 steps, 1 of 3 epochs" in caplog.text
    assert "isn't finished" not in out


def test_pack_as_json_and_in_half_precision(run, call, tmp_path):
    code, out, _ = call("pack", run, tmp_path / "half.safetensors", "--dtype", "float16", "--json")
    found = json.loads(out.splitlines()[-1])
    assert code == 0
    assert found["file_bytes"] == found["header_bytes"] + found["payload_bytes"]
    assert found["file_bytes"] == (tmp_path / "half.safetensors").stat().st_size


def test_a_packed_file_is_measured_like_its_run(run, packed, call):
    answers = []
    for what in (run, packed):
        code, out, err = call("eval", what, "--json")
        assert code == 0, err
        answers.append(json.loads(out.splitlines()[-1]))
    assert answers[1]["accuracy"] == pytest.approx(answers[0]["accuracy"], abs=0.2)  # a near tie may fall the other way
    assert answers[1]["loss"] == pytest.approx(answers[0]["loss"], rel=1e-4)
    assert answers[1]["n"] == 1000
    code, out, _ = call("eval", packed, "--data", "mini")
    assert code == 0
    assert out.endswith("on 1000 test images of mini\n")


def test_a_packed_file_that_says_nothing_of_its_data(call, tmp_path):
    network = tiny.Tiny(num_classes=3).eval()
    fs.binarize_(network, "ste")
    path = tmp_path / "bare.safetensors"
    pack(network, path, input_shape=(3, 32, 32))
    for words, sentence in (
        ((), f"{path} doesn't say which data it was trained on; name it with --data"),
        (("--model", "tiny"), f"--model tiny: {path} is a packed file, which knows its network; leave it out"),
        (("--data", "mini"), "--data mini has 10 classes, this network tells 3 apart"),
    ):
        code, _, err = call("eval", path, *words)
        assert code != 0
        assert sentence in err


def test_the_shipped_network(call):
    """The accuracy on all 10,000 test images is in the file; these are the first hundred of each class."""
    code, out, err = call("eval", "shipped", "--data", "mini", "--json")
    assert code == 0, err
    found = json.loads(out.splitlines()[-1])
    engine = fs.load_packed(shipped())
    assert found["accuracy"] == pytest.approx(engine.info.result["test_accuracy"], abs=2)
    assert found["accuracy"] > 90
    assert shipped().stat().st_size < 60_000
    with pytest.raises(ValueError, match=r"^no packed network 'vgg' is shipped; there is resnet20_cifar10"):
        shipped("vgg")


@pytest.mark.parametrize("from_run", [True, False])
def test_export_runs_in_onnxruntime(run, packed, call, tmp_path, from_run):
    onnxruntime = pytest.importorskip("onnxruntime")
    path = tmp_path / "model.onnx"
    code, out, err = call("export", run if from_run else packed, path, "--json")
    assert code == 0, err
    assert json.loads(out.splitlines()[-1])["bytes"] == path.stat().st_size
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).standard_normal((3, 3, 32, 32), dtype=np.float32)
    (logits,) = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(logits, fs.load_packed(packed)(x), rtol=1e-4, atol=1e-4)


def test_bench_prints_a_row_for_each_contestant(packed, call):
    code, out, err = call("bench", packed, "--seconds", "0.01", "--no-compiled", "--json")
    assert code == 0, err
    found = json.loads(out.splitlines()[-1])
    names = {row["contestant"] for row in found["rows"]}
    assert any("numpy" in name for name in names)
    assert any("torch" in name for name in names)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("pack", "nowhere", "x.safetensors"), "nowhere is no folder"),
        (("pack", ".", "x.safetensors"), "holds no run"),
        (("export", "nowhere.safetensors", "x.onnx"), "no packed model at"),
        (("bench", "nowhere.safetensors"), "no packed model at"),
        (("bench", "x", "--seconds", "0"), "above 0"),
    ],
)
def test_bad_input_is_one_sentence(words, message, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = call(*words)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())
