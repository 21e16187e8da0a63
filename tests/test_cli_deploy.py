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


def test_pack_as_json_and_in_half_precision(run, call, tmp_path):
    code, out, _ = call("pack", run, tmp_path / "half.safetensors", "--dtype", "float16", "--json")
    found = json.loads(out.splitlines()[-1])
    assert code == 0
    assert found["file_bytes"] == found["header_bytes"] + found["payload_bytes"]
    assert found["file_bytes"] == (tmp_path / "half.safetensors").stat().st_size


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
