"""The ONNX file in onnxruntime: equal to torch, as small as the packed file, standard operators only."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import fastslow as fs
from fastslow.deploy import Info, PackedModel
from fastslow.deploy.onnx import export, to_onnx
from fastslow.deploy.pack import pack
from test_deploy_support import engine, residual_graph
from test_deploy_trace import MODELS, randomize

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def session(content: str | bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", MODELS)
def test_equals_torch(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    build, shape = MODELS[name]
    model = randomize(build())
    fs.binarize_(model, "ste", binarizer="scaled-sign-filter")
    packed = pack(model, tmp_path / "model.safetensors", input_shape=shape)
    size = export(packed.path, tmp_path / "model.onnx")
    assert size == (tmp_path / "model.onnx").stat().st_size
    x = torch.randn(3, *shape)
    with torch.no_grad():
        expected = model(x).numpy()
    (actual,) = session(str(tmp_path / "model.onnx")).run(None, {"input": x.numpy()})
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_operation(dtype: str) -> None:
    rng = np.random.default_rng(4)
    graph = residual_graph(rng)
    data = to_onnx(PackedModel(graph, Info(dtype=dtype), 0, 0)).SerializeToString()
    x = rng.standard_normal((2, *graph.input_shape)).astype(np.float32)
    (actual,) = session(data).run(None, {"input": x})
    if dtype == "float32":
        np.testing.assert_allclose(actual, engine(graph, "numpy")(x), rtol=1e-4, atol=1e-4)
    else:
        assert actual.shape == (2, 10)  # rounded constants turn a few signs: the values are others


def test_small_and_described(tmp_path: Path) -> None:
    model = fs.models.resnet20()
    fs.binarize_(model, "ste", skip=fs.first_and_last(model))
    classes = [f"class {i}" for i in range(10)]
    packed = pack(
        model,
        tmp_path / "a.safetensors",
        classes=classes,
        mean=(0.5,) * 3,
        std=(0.2,) * 3,
        result={"test_accuracy": 0.9},
    )
    size = export(packed.path, tmp_path / "a.onnx")
    assert size <= 1.1 * packed.file_bytes
    loaded = onnx.load(tmp_path / "a.onnx")
    metadata = {entry.key: json.loads(entry.value) for entry in loaded.metadata_props}
    assert metadata["classes"] == classes
    assert metadata["std"] == [0.2] * 3
    assert metadata["result"] == {"test_accuracy": 0.9}
    assert {node.domain for node in loaded.graph.node} == {""}


def test_onnxruntime_folds_the_bits_at_load(tmp_path: Path) -> None:
    """What runs is a plain convolutional network: the unpacking is done once."""
    model = fs.models.resnet8()
    fs.binarize_(model, "ste")
    export(pack(model, tmp_path / "a.safetensors").path, tmp_path / "a.onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    onnxruntime.InferenceSession(str(tmp_path / "a.onnx"), options, providers=["CPUExecutionProvider"])
    optimized = {node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node}
    assert not optimized & {"Gather", "Slice", "Cast"}
