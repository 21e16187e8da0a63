"""Speed and size of packed models against float, as ratios in one run.

    python benchmarks/deploy.py                    # print
    python benchmarks/deploy.py --record           # and write results/benchmarks/deploy.json
    python benchmarks/deploy.py --cifar DIR --record   # instead: packed against torch on the CIFAR-10 test set
    python benchmarks/deploy.py --cifar DIR --runs DIR --record   # the same with the networks of recorded runs

Contestants take turns call by call, one thread each, batch 1. A ratio is float time / packed time: of the medians,
and of the minimums, which a busy machine disturbs least.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

import fastslow as fs
from fastslow.deploy import Engine, PackedModel
from fastslow.deploy.bench import interleave, machine
from fastslow.deploy.format import from_bytes
from fastslow.deploy.onnx import to_onnx
from fastslow.deploy.pack import pack
from fastslow.training.build import build_model
from fastslow.training.config import RunConfig
from fastslow.weights import load_strictly

RESULTS = Path(__file__).parent.parent / "results" / "benchmarks"
WEIGHTS = Path(fs.__file__).parent / "pretrained" / "resnet20_cifar10.safetensors"


class Block(nn.Module):
    """The basic block of ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


def resnet18() -> nn.Module:
    """ResNet-18 for 224 x 224 pixels and 1,000 classes."""
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    blocks = [Block(*width) for width in [*widths, (512, 512, 1)]]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)).eval()


def onnx_session(model: PackedModel) -> Callable[[np.ndarray], Any]:
    """The network in float32 in onnxruntime, one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    content = to_onnx(model, expand=True).SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"input": x})


def packed(model: nn.Module, shape: tuple[int, ...]) -> PackedModel:
    with tempfile.TemporaryDirectory() as folder:
        return from_bytes(pack(model, Path(folder) / "model.safetensors", input_shape=shape).path.read_bytes())


def compare(runners: dict[str, Callable[[np.ndarray], Any]], shape: tuple[int, ...], seconds: float) -> dict[str, Any]:
    """Times of all runners in milliseconds; the packed engine's ratios to the others."""
    x = np.random.default_rng(0).standard_normal((1, *shape)).astype(np.float32)
    times = {name: np.array(spent) * 1e3 for name, spent in interleave(runners, x, seconds).items()}
    rows: dict[str, Any] = {
        name: {
            "median_ms": round(float(np.median(spent)), 4),
            "min_ms": round(float(spent.min()), 4),
            "p90_ms": round(float(np.percentile(spent, 90)), 4),
            "calls": len(spent),
        }
        for name, spent in times.items()
    }
    for name in rows:
        if name != "packed":
            for kind in ("median", "min"):
                rows[name][f"{kind}_ratio"] = round(rows[name][f"{kind}_ms"] / rows["packed"][f"{kind}_ms"], 3)
    return rows


def engine(model: PackedModel) -> Callable[[np.ndarray], Any]:
    return Engine(model, threads=1)


def eager(model: nn.Module) -> Callable[[np.ndarray], Any]:
    def run(x: np.ndarray) -> Any:
        with torch.inference_mode():
            return model(torch.from_numpy(x))

    return run


def network(build: Callable[[], nn.Module], shape: tuple[int, ...], activations: str | None, seconds: float) -> Any:
    """A float network and its binary twin: first and last layer stay float."""
    torch.manual_seed(0)
    model = build().eval()
    original = packed(model, shape)
    runners = {"torch eager": eager(build().eval()), "onnxruntime": onnx_session(original)}
    fs.binarize_(model, "ste", skip=fs.first_and_last(model), activations=activations)
    small = packed(model, shape)
    result = compare(runners | {"packed": engine(small)}, shape, seconds)
    return result | {"packed_bytes": small.file_bytes, "float_bytes": original.file_bytes}


def layer(channels: int, size: int, seconds: float) -> Any:
    """One 3x3 convolution of signs, from float input to float output: packing is included."""
    torch.manual_seed(0)
    shape = (channels, size, size)
    model = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False))
    original = packed(model, shape)
    fs.binarize_(model, "ste", activations="sign")
    return compare({"onnxruntime": onnx_session(original), "packed": engine(packed(model, shape))}, shape, seconds)


FIRST_RESULT = """
import sys, time
import numpy as np
sys.modules["torch"] = None
x = np.zeros((1, 3, 32, 32), np.float32)
start = time.perf_counter()
from fastslow.deploy import load_packed
imported = time.perf_counter()
load_packed(sys.argv[1], threads=1)(x)
done = time.perf_counter()
print(imported - start, done - imported)
"""


def first_result(repeats: int = 15) -> dict[str, Any]:
    """Milliseconds from nothing but numpy to the first logits of ResNet-20, in fresh processes without torch."""
    model = fs.models.resnet20()
    model.load_state_dict(fs.load_weights(WEIGHTS))
    fs.binarize_(model, "ste", skip=fs.first_and_last(model))
    with tempfile.TemporaryDirectory() as folder:
        report = pack(model, Path(folder) / "model.safetensors")
        command = [sys.executable, "-c", FIRST_RESULT, str(report.path)]
        # Byte code as an installed package has it: written by a first run that doesn't count.
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": folder}
        lines = [
            subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
            for _ in range(repeats + 1)
        ][1:]
    imports, loads = (
        np.array(column) * 1e3 for column in zip(*(map(float, line.split()) for line in lines), strict=True)
    )
    return {
        "file_bytes": report.file_bytes,
        "payload_bytes": report.payload_bytes,
        "import_ms": {"median": round(float(np.median(imports)), 2), "min": round(float(imports.min()), 2)},
        "load_and_first_result_ms": {"median": round(float(np.median(loads)), 2), "min": round(float(loads.min()), 2)},
    }


def untrained(root: str, activations: str | None) -> dict[str, Any]:
    """The float network's weights, binarized without training: what counts here is that both agree."""
    model = fs.models.resnet20()
    model.load_state_dict(fs.load_weights(WEIGHTS))
    fs.binarize_(model.eval(), "ste", skip=fs.first_and_last(model), activations=activations)
    return agreement(model, fs.data.load("cifar10", root, download=False).test)


def trained(runs: Path, root: str) -> dict[str, Any]:
    """Networks of `fastslow reproduce`, from its folder of runs, each beside the accuracy that was recorded."""
    found = {}
    for weights in sorted(runs.glob("*/*/weights.safetensors")):
        name = str(weights.parent.relative_to(runs))
        record = json.loads((RESULTS.parent / f"{name}.json").read_text())
        config = RunConfig.from_dict({**record["config"], "weights": "none"})
        test = fs.data.load(config.data, root, download=False).test
        model = build_model(config, len(test.classes))
        load_strictly(model, fs.load_weights(weights), weights)
        found[name] = {"recorded_accuracy": record["test_accuracy"], **agreement(model.eval(), test)}
    return found


def agreement(model: nn.Module, test: fs.data.AnySet) -> dict[str, Any]:
    """How far the packed network is from torch on all test images."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (test.mean, test.std))
    run = engine(packed(model, (3, 32, 32)))
    expected, actual = [], []
    for images in test.images.split(500):
        x = (images.float() / 255 - mean) / std
        with torch.inference_mode():
            expected.append(model(x).numpy())
        actual.append(run(x.numpy()))
    ours, theirs = np.concatenate(actual), np.concatenate(expected)
    top = np.sort(theirs, axis=1)
    clear = top[:, -1] - top[:, -2] > 1e-3
    same = ours.argmax(1) == theirs.argmax(1)
    error = np.abs(ours - theirs).max(1) / np.abs(theirs).max(1)
    labels = test.labels.numpy()
    return {
        "images": len(labels),
        "largest_relative_error": float(error.max()),
        "images_above_1e-4": int((error > 1e-4).sum()),
        "argmax_equal": int(same.sum()),
        "margin_above_1e-3": int(clear.sum()),
        "argmax_equal_where_margin_above_1e-3": int((same & clear).sum()),
        "accuracy_torch": float((theirs.argmax(1) == labels).mean()),
        "accuracy_packed": float((ours.argmax(1) == labels).mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each contestant in each comparison")
    parser.add_argument("--cifar", help="folder with CIFAR-10: compare results instead of speed")
    parser.add_argument("--runs", type=Path, help="with --cifar: folder of runs of `fastslow reproduce`")
    parser.add_argument("--commit", help="the commit that is measured, where there is no git to ask")
    parser.add_argument("--record", action="store_true", help=f"write to {RESULTS.name}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    before = machine()["load"]
    if options.cifar:
        name, settings = "deploy_cifar10", "ResNet-20, pretrained float weights, binarized without training"
        if options.runs is None:
            results = {"W1A32": untrained(options.cifar, None), "W1A1": untrained(options.cifar, "sign")}
        else:
            name, settings = "deploy_trained", "networks of recorded runs, on all test images"
            results = trained(options.runs, options.cifar)
    else:
        name = "deploy"
        settings = "batch 1, one thread, contestants interleaved call by call; ratio = float time / packed time"
        results = speeds(options.seconds)
    commit = options.commit
    if commit is None:
        asked = ["git", "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    document = {
        "benchmark": name,
        "command": "python benchmarks/deploy.py" + "".join(f" {word}" for word in sys.argv[1:] if "/" not in word),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "machine": machine() | {"load_before": before},
        "settings": settings,
        "results": results,
    }
    text = json.dumps(document, indent=1)
    print(text)
    if options.record:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{name}.json").write_text(text + "\n")


def speeds(seconds: float) -> dict[str, Any]:
    cifar, imagenet = (3, 32, 32), (3, 224, 224)
    return {
        "resnet20 W1A32": network(fs.models.resnet20, cifar, None, seconds),
        "conv 64 channels 16x16 W1A1": layer(64, 16, seconds),
        "conv 128 channels 28x28 W1A1": layer(128, 28, seconds),
        "conv 256 channels 14x14 W1A1": layer(256, 14, seconds),
        "resnet18 W1A1": network(resnet18, imagenet, "sign", seconds),
        "resnet20 from file to first result": first_result(),
    }


if __name__ == "__main__":
    main()
