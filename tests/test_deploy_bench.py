"""The benchmark measures what it says; no test here depends on speed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import fastslow as fs
from fastslow.deploy import available_backends
from fastslow.deploy.bench import bench, format_report, interleave
from fastslow.deploy.format import to_bytes
from fastslow.deploy.header import Info
from fastslow.deploy.pack import pack
from fastslow.deploy.torch_graph import TorchGraph
from fastslow.files import write_atomically
from test_deploy_support import engine, residual_graph


def test_the_rebuilt_torch_network_is_the_same() -> None:
    rng = np.random.default_rng(4)
    graph = residual_graph(rng)
    x = rng.standard_normal((3, *graph.input_shape)).astype(np.float32)
    actual = TorchGraph(graph)(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(actual, engine(graph, "numpy")(x), rtol=1e-4, atol=1e-4)


def test_report(tmp_path: Path) -> None:
    model = fs.models.resnet8()
    fs.binarize_(model, "ste", skip=fs.first_and_last(model))
    packed = pack(model, tmp_path / "a.safetensors", input_shape=(3, 8, 8))
    report = bench(packed.path, model=model, batches=(1, 2), threads=(1,), seconds=0, compiled=False, memory=False)
    pytest.importorskip("onnxruntime")
    names = {"torch eager float32", "onnxruntime float32", *(f"fastslow {name}" for name in available_backends())}
    assert {row.contestant for row in report.rows} == names
    assert {(row.batch, row.threads) for row in report.rows} == {(1, 1), (2, 1)}
    sizes = {row.contestant: row.bytes for row in report.rows}
    assert sizes["fastslow numpy"] == packed.file_bytes
    assert sizes["onnxruntime float32"] > 10 * packed.file_bytes
    assert all(0 < row.low_ms <= row.median_ms <= row.high_ms and row.calls >= 5 for row in report.rows)
    assert {layer.name for layer in report.layers} > {"conv1", "layer3.0.conv2", "fc"}
    assert json.loads(report.to_json())["machine"]["cores"]
    text = format_report(report)
    assert "onnxruntime float32" in text
    assert "layer3.0.conv2" in text


def test_peak_memory_is_that_of_a_fresh_process(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.safetensors", to_bytes(residual_graph(np.random.default_rng(0)), Info()))
    report = bench(tmp_path / "a.safetensors", batches=(1,), threads=(1,), seconds=0, compiled=False)
    peaks = {row.contestant: row.peak_mib for row in report.rows}
    if any(peak is None for peak in peaks.values()):
        pytest.skip("peak memory is read from /proc, which this system lacks")
    assert peaks["fastslow numpy"] < peaks["torch eager float32"]  # pyright: ignore[reportOperatorIssue]


def test_contestants_take_turns() -> None:
    calls: list[str] = []
    runners = {name: lambda x, name=name: calls.append(name) for name in "ab"}
    times = interleave(runners, np.zeros(1, np.float32), seconds=0)
    assert calls == ["a", "a", "b", "b"] * 5  # each turn: once to wake up, once to be measured
    assert [len(spent) for spent in times.values()] == [5, 5]
