"""Networks and files that people really have, and that went wrong once."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastslow as fs
from fastslow.deploy import FormatError, UnsupportedLayerError
from fastslow.deploy.onnx import export


def differs(model: nn.Module, shape: tuple[int, ...], path: Path) -> float:
    """How far the packed network is from the model."""
    model.eval()
    fs.pack(model, path, input_shape=shape)
    x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return float((torch.from_numpy(fs.load_packed(path)(x.numpy())) - model(x)).abs().max())


class Auxiliary(nn.Module):
    """A head that only training uses, with an operation in place, and a BatchNorm at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.aux, self.act, self.bn = nn.Linear(8, 4), nn.Linear(8, 4), nn.ReLU(inplace=True), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        y = self.a(x)
        aux = self.act(self.aux(x))
        out = self.bn(y)
        return (out, aux) if self.training else out


def test_a_head_that_evaluation_does_not_use(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Auxiliary()
    fs.binarize_(model, "ste", only=["a"])
    assert differs(model, (8,), tmp_path / "m.safetensors") < 1e-5
    assert "aux" not in {node.name for node in fs.load_packed(tmp_path / "m.safetensors").model.graph.nodes}


class Heads(nn.Module):
    """Two heads flatten the same pixel, each for itself; ``last`` says what comes out."""

    def __init__(self, last: str) -> None:
        super().__init__()
        self.conv, self.pool, self.last = nn.Conv2d(3, 16, 3, padding=1), nn.AdaptiveAvgPool2d(1), last
        self.a, self.b, self.c = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        pixel = self.pool(self.conv(x))
        one, two = pixel.flatten(1), pixel.flatten(1)
        hidden = self.b(self.b(self.a(one).relu()).relu())
        if self.last == "sum":
            return hidden + self.c(two)
        return hidden + self.c(one) + two if self.last == "pixel" else torch.cat([hidden, two.flatten(1)], 1)


@pytest.mark.parametrize("last", ["sum", "pixel", "both"])
def test_a_pixel_that_two_heads_flatten_lives_until_the_later_one_has_read_it(last: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    assert differs(Heads(last), (3, 8, 8), tmp_path / "m.safetensors") < 1e-5


class NewAxis(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(4, 4, 1), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x)[:, None, ::2, ::2].flatten(1))


def test_a_new_axis_is_no_slice_of_pixels(tmp_path: Path) -> None:
    model = NewAxis()
    fs.binarize_(model, "ste", only=["conv"])
    with pytest.raises(UnsupportedLayerError, match="only strided slices of pixels"):
        fs.pack(model, tmp_path / "m.safetensors", input_shape=(4, 4, 4))


class Padded(nn.Module):
    def __init__(self, pool: nn.Module, pad: int) -> None:
        super().__init__()
        self.conv, self.bn, self.pool, self.pad = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), pool, pad

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(F.pad(self.bn(self.conv(x)), [self.pad] * 4))


@pytest.mark.parametrize("pool", [nn.MaxPool2d(3, 2), nn.MaxPool2d(2), nn.AvgPool2d(2)], ids=str)
@pytest.mark.parametrize("pad", [1, 2])
def test_onnxruntime_pads_with_zeros_before_a_pool(pool: nn.Module, pad: int, tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    model = Padded(pool, pad)
    nn.init.constant_(model.bn.bias, -3.0)  # everything is below zero, so that a zero of the border counts
    fs.binarize_(model, "ste")
    assert differs(model, (3, 9, 9), tmp_path / "m.safetensors") < 1e-5
    export(tmp_path / "m.safetensors", tmp_path / "m.onnx")
    x = torch.randn(2, 3, 9, 9)
    (found,) = ort.InferenceSession(tmp_path / "m.onnx").run(None, {"input": x.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(found, model.eval()(x).numpy(), atol=1e-4)


class Named(nn.Module):
    """Modules called as ONNX calls its own things."""

    def __init__(self) -> None:
        super().__init__()
        self.input, self.constant, self.output = nn.Linear(8, 8), nn.Sequential(nn.ReLU()), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.constant(self.input(x)))


def test_modules_called_input_and_output(tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    model = Named()
    fs.binarize_(model, "ste", only=["input"])
    fs.pack(model, tmp_path / "m.safetensors", input_shape=(8,))
    export(tmp_path / "m.safetensors", tmp_path / "m.onnx")
    x = torch.randn(2, 8)
    (found,) = ort.InferenceSession(tmp_path / "m.onnx").run(None, {"input": x.numpy()})
    np.testing.assert_allclose(found, model(x).detach().numpy(), atol=1e-4)


def test_numpy_copies_a_large_convolution_in_pieces(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 1, 96, bias=False), nn.Conv2d(1, 2, 1))
    fs.binarize_(model, "ste", only=["0"])
    fs.pack(model, tmp_path / "m.safetensors", input_shape=(1, 143, 143))
    engine = fs.load_packed(tmp_path / "m.safetensors", backend="numpy")
    x = torch.randn(3, 1, 143, 143)
    tracemalloc.start()
    found = engine(x.numpy())
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 150 * 2**20  # all columns at once are 243 MiB
    with torch.no_grad():
        np.testing.assert_allclose(found, model(x).numpy(), rtol=1e-3, atol=1e-3)


def test_a_scale_that_half_precision_makes_zero_is_refused(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
    nn.init.constant_(model[1].running_var, 1e18)
    fs.binarize_(model, "ste")
    with pytest.raises(ValueError, match=r"0\.scale is too small for float16"):
        fs.pack(model, tmp_path / "m.safetensors", input_shape=(8,), dtype="float16")


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    model = nn.Sequential(nn.Linear(8, 3))
    fs.binarize_(model, "ste")
    fs.pack(model, tmp_path / "m.safetensors", input_shape=(8,))
    return tmp_path / "m.safetensors"


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))], ids=["copy", "pickle"])
@pytest.mark.parametrize("backend", [None, "numpy"])
def test_an_engine_can_be_copied_and_sent_to_other_processes(packed: Path, copier, backend: str | None) -> None:
    engine = fs.load_packed(packed, backend=backend, threads=1)
    twin = copier(engine)
    x = np.ones((2, 8), np.float32)
    assert (twin(x) == engine(x)).all()
    assert (twin.backend, twin.threads) == (engine.backend, 1)


def test_small_things_are_said_in_a_sentence(packed: Path, tmp_path: Path) -> None:
    assert fs.load_packed(bytearray(packed.read_bytes()))(np.ones(8)).shape == (3,)
    with pytest.raises(ValueError, match="repeats=0"):
        fs.load_packed(packed).profile(np.ones(8), repeats=0)
    fs.save_weights(nn.BatchNorm1d(3), tmp_path / "weights.safetensors")
    with pytest.raises(FormatError, match="not a packed fastslow model"):
        fs.load_packed(tmp_path / "weights.safetensors")
    layer = nn.Linear(8, 3)
    fs.binarize_(layer, "ste")
    with pytest.raises(UnsupportedLayerError, match=r"a BinaryLinear alone is no network"):
        fs.pack(layer, packed, input_shape=(8,))
    model = nn.Sequential(nn.Conv2d(3, 2, 1), nn.Flatten())
    fs.binarize_(model, "ste")
    with pytest.raises(TypeError, match="result may hold what JSON can"):
        fs.pack(model, packed, input_shape=(3, 1, 1), result={"accuracy": np.float32(1)})
    half, names = np.full(3, 0.5), np.array(["a", "b"])
    fs.pack(model, packed, input_shape=(3, 1, 1), mean=half, std=torch.ones(3), classes=names)  # pyright: ignore[reportArgumentType]
    assert fs.load_packed(packed).info.classes == ("a", "b")


@pytest.mark.parametrize(("method", "bits"), [("adabin", 1), ("ste", 2)])
def test_binary_layers_that_are_packed_as_floats_are_named(method, bits, tmp_path, caplog):
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))
    fs.binarize_(model, method, bits=bits)
    fs.pack(model, tmp_path / "m.safetensors", input_shape=(3, 2, 2))
    assert "2 binary layers are packed as float numbers" in caplog.text
    assert "the first is 1" in caplog.text


def test_filters_of_one_weight_are_bits_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 1))
    fs.binarize_(model, "ste")
    assert differs(model, (1,), tmp_path / "m.safetensors") < 1e-5
    assert not caplog.records
    depthwise = nn.Sequential(nn.Conv2d(6, 6, 1, groups=6), nn.ReLU(), nn.Conv2d(6, 4, 3))
    fs.binarize_(depthwise, "bwn")
    assert differs(depthwise, (6, 5, 4), tmp_path / "d.safetensors") < 1e-5
    assert not caplog.records


@pytest.mark.parametrize("name", [".", "/"])
def test_a_folder_is_no_file_to_write(name: str) -> None:
    with pytest.raises(IsADirectoryError, match="Is a directory"):
        fs.pack(nn.Sequential(nn.Linear(3, 2)), name, input_shape=(3,))
