"""The engine as a user meets it: without torch, shared, forked, measured."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import fastslow as fs
from fastslow.deploy import BackendError, available_backends, load_packed
from fastslow.deploy.pack import pack
from fastslow.deploy.sizes import sizes
from test_deploy_support import NATIVE, engine, residual_graph
from test_deploy_trace import randomize


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = randomize(fs.models.resnet20())
    fs.binarize_(model, "ste", skip=fs.first_and_last(model))
    path = tmp_path_factory.mktemp("packed") / "model.safetensors"
    classes = [f"class {i}" for i in range(10)]
    pack(model, path, mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.2), classes=classes, result={"test_accuracy": 0.9})
    return path


def test_runs_where_torch_cannot_be_imported(packed: Path) -> None:
    program = f"""
import sys
sys.modules["torch"] = None  # any import of it fails
import numpy as np
import fastslow.deploy
engine = fastslow.deploy.load_packed({str(packed)!r})
assert engine(np.zeros((1, 3, 32, 32))).shape == (1, 10)
print(engine.backend, engine.info.classes[3])
"""
    result = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split(" ", 1) == [available_backends()[0], "class 3\n"]


def test_without_the_native_library_numpy_runs(packed: Path) -> None:
    program = f"import fastslow.deploy as d; print(d.available_backends(), d.load_packed({str(packed)!r}).backend)"
    environment = os.environ | {"FASTSLOW_NATIVE": "off"}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    assert result.stdout == "['numpy'] numpy\n"


def test_the_file_is_small(packed: Path) -> None:
    assert packed.stat().st_size <= 60_000


def test_the_binary_layers_are_25_times_smaller() -> None:
    model = randomize(fs.models.resnet20())  # BatchNorm as after training: every filter has a scale of its own
    fs.binarize_(model, "ste", skip=fs.first_and_last(model))
    binary = [layer for layer in sizes(model) if layer.binary]
    assert len(binary) == 20  # 18 convolutions of the blocks and two shortcuts
    assert sum(layer.float_bytes for layer in binary) / sum(layer.packed_bytes for layer in binary) >= 25


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("binarizer", ["dorefa", "scaled-sign", "scaled-sign-filter"])
def test_sizes_equal_the_file_to_the_byte(dtype: str, binarizer: str, tmp_path: Path) -> None:
    model = fs.models.resnet8()
    fs.binarize_(model, "ste", binarizer=binarizer, skip=fs.first_and_last(model))
    rows = sizes(model, (3, 32, 32), dtype)
    written = pack(model, tmp_path / "a.safetensors", dtype=dtype)
    assert sum(row.packed_bytes for row in rows) == written.payload_bytes
    assert written.payload_bytes + written.header_bytes == (tmp_path / "a.safetensors").stat().st_size
    assert str(written.payload_bytes) in str(written)


def test_inputs(packed: Path) -> None:
    engine = load_packed(packed, threads=1)
    x = np.random.default_rng(0).standard_normal((2, 3, 32, 32))
    np.testing.assert_array_equal(engine(x)[1], engine(x[1]))  # float64 and single samples are fine
    np.testing.assert_array_equal(engine(np.asfortranarray(x)), engine(x))
    assert engine(np.zeros((0, 3, 32, 32))).shape == (0, 10)
    assert engine(np.zeros((2, 3, 32, 32), np.int64)).dtype == np.float32
    with pytest.raises(ValueError, match=r"expected an input of shape \(3, 32, 32\).*got \(3, 32, 31\)"):
        engine(np.zeros((3, 32, 31)))
    with pytest.raises(TypeError, match="expected numbers"):
        engine([["a"]])
    pixels = np.full((32, 32, 3), 255, np.uint8)
    np.testing.assert_allclose(engine.preprocess(pixels)[:, 0, 0], [3, 2.5, 2], rtol=1e-6)
    assert engine.preprocess(pixels[None]).shape == (1, 3, 32, 32)
    with pytest.raises(TypeError, match="uint8"):
        engine.preprocess(np.zeros((32, 32, 3)))
    with pytest.raises(ValueError, match=r"\(height, width, 3\)"):
        engine.preprocess(pixels[..., :1])


def test_choices_are_checked(packed: Path) -> None:
    with pytest.raises(BackendError, match=r"'cuda' is not available here; choose from .*numpy"):
        load_packed(packed, backend="cuda")
    with pytest.raises(ValueError, match="threads=0"):
        load_packed(packed, threads=0)
    assert load_packed(packed.read_bytes(), "numpy", 1).backend == "numpy"
    assert "(3, 32, 32) -> (10,)" in repr(load_packed(packed))


@pytest.mark.parametrize("backend", available_backends())
def test_profile_names_the_layers(packed: Path, backend: str) -> None:
    rows = load_packed(packed, backend, threads=2).profile(np.zeros((1, 3, 32, 32)), repeats=1)
    assert {"conv1", "layer1.0.conv1", "fc"} <= {name for name, _ in rows}
    assert all(seconds >= 0 for _, seconds in rows)


@pytest.mark.skipif(not NATIVE, reason="the native library is not built")
def test_threads_share_an_engine() -> None:
    rng = np.random.default_rng(0)
    graph = residual_graph(rng)
    shared = engine(graph, NATIVE[0], threads=2)
    inputs = [rng.standard_normal((3, *graph.input_shape)) for _ in range(8)]
    expected = [shared(x) for x in inputs]
    wrong: list[int] = []

    def work(index: int) -> None:
        for _ in range(20):
            if not np.array_equal(shared(inputs[index]), expected[index]):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not NATIVE, reason="the native library is not built")
def test_more_threads_than_cores_change_nothing(packed: Path) -> None:
    """Parts of a layer are done by whoever comes first, and the answer is the same, bit for bit."""
    x = np.random.default_rng(0).standard_normal((1, 3, 32, 32), dtype=np.float32)
    count = 2 * (os.cpu_count() or 1) + 1
    crowded = load_packed(packed, NATIVE[0], threads=count)
    expected = crowded(x)
    assert all(np.array_equal(crowded(x), expected) for _ in range(50))
    np.testing.assert_allclose(load_packed(packed, NATIVE[0], threads=1)(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
@pytest.mark.parametrize("sanitizer", [pytest.param("thread", marks=pytest.mark.slow), "undefined"])
def test_the_pool_under_stress(sanitizer: str, tmp_path: Path) -> None:
    here, program = Path(__file__).parent, tmp_path / "stress"
    headers = here.parent / "src" / "fastslow" / "deploy" / "native"
    flags = ["-std=c++17", "-O2", f"-fsanitize={sanitizer}", "-pthread", f"-I{headers}"]
    built = subprocess.run(["g++", *flags, str(here / "pool_stress.cpp"), "-o", str(program)], capture_output=True)
    if built.returncode:
        pytest.skip(f"the compiler has no -fsanitize={sanitizer}")
    found = subprocess.run([program], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.skipif(not NATIVE or not hasattr(os, "fork"), reason="needs the native library and fork")
def test_a_forked_child_starts_its_own_threads(packed: Path) -> None:
    program = f"""
import os, numpy as np
from fastslow.deploy import load_packed
engine = load_packed({str(packed)!r}, threads=2)
x = np.ones((4, 3, 32, 32))
before = engine(x)
child = os.fork()
if child == 0:
    os._exit(0 if np.array_equal(engine(x), before) else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


def test_the_example_classifies_an_image_without_torch(packed: Path, tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (50, 40), (200, 30, 30)).save(tmp_path / "red.png")
    example = Path(__file__).parent.parent / "examples" / "classify.py"
    program = f"import sys, runpy; sys.modules['torch'] = None; runpy.run_path({str(example)!r}, run_name='__main__')"
    command = [sys.executable, "-c", program, str(packed), str(tmp_path / "red.png"), "--top", "2"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("class ") == 2
    assert "%" in result.stdout
