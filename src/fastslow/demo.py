"""``fastslow demo``: a float network becomes a binary one, on the data and the weights that come with the package."""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from . import data
from .convert import freeze
from .deploy import load_packed
from .deploy.bench import interleave
from .report.curves import draw_run
from .report.packed import PackedNetwork
from .report.summary import summarize
from .shipping import pack_run
from .training.build import build_model
from .training.config import SHIPPED, RunConfig
from .training.evaluate import evaluate, evaluation_batches
from .training.loop import Trainer
from .training.run import RunFolder
from .training.sinks import ConsoleSink


def demo_config(epochs: int) -> RunConfig:
    """ResNet-20 on the mini set with per-weight FSG and small hypernetworks."""
    return RunConfig(
        model="resnet20",
        data="mini",
        weights=SHIPPED,
        method="fsg-weight",
        method_fields={"expand": 8, "d_state": 2, "length": 4},
        schedule="cosine",
        epochs=epochs,
        batch_size=64,
    )


def _make_room(out: Path) -> None:
    """Remove an earlier demo, and nothing else."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if (out / "config.json").is_file():
        earlier = RunFolder.open(out).config()
        if earlier == demo_config(earlier.epochs):
            shutil.rmtree(out)
            return
    raise ValueError(f"{out} exists and is no earlier demo; choose another --out")


def _latencies(packed: Path, model: nn.Module) -> dict[str, float]:
    """Median milliseconds for one image on one thread, the two taking turns."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    engine = load_packed(packed, threads=1)
    plain = freeze(model).eval()  # the same network in float arithmetic

    @torch.no_grad()
    def in_torch(x: NDArray[np.float32]) -> Any:
        return plain(torch.from_numpy(x))

    try:
        x = np.random.default_rng(0).standard_normal((1, 3, 32, 32), dtype=np.float32)
        times = interleave({"packed": engine, "torch": in_torch}, x, seconds=1.0)
    finally:
        torch.set_num_threads(threads)
    return {name: 1000 * statistics.median(seconds) for name, seconds in times.items()}


def run_demo(out: Path, *, epochs: int = 8) -> dict[str, Any]:
    """Show the float network, its binarized collapse, its training, and what it weighs; leaves files in ``out``."""
    config = demo_config(epochs)
    _make_room(out)
    dataset = data.load(config.data)
    test = evaluation_batches(dataset.test)
    float_config = RunConfig(**{**config.to_dict(), "method": None, "method_fields": {}})
    before = evaluate(build_model(float_config, 10), test)
    print(f"1  float ResNet-20: {before.accuracy:.1f} % on {before.n} test images", flush=True)

    run = RunFolder.create(out, config)
    trainer = Trainer(config, dataset, run=run, sink=ConsoleSink())
    collapsed = evaluate(trainer.model, test)
    cost = summarize(trainer.model, (3, 32, 32))
    print(f"2  its weights as bits (first and last layer stay float): {collapsed.accuracy:.1f} %")
    passes = f"{epochs} epoch{'s' if epochs > 1 else ''}"
    print(f"3  training with {config.method}, {passes} of {len(dataset.train)} images", flush=True)
    result = trainer.fit()
    print(f"4  trained binary network: {result['test_accuracy']:.1f} % after {result['seconds']:.0f} s")
    picture = draw_run(trainer.rows, out / "curves.png")
    print(f"5  loss and flip ratio: {picture}" if picture else "5  for the curves: pip install 'fastslow[report]'")
    packed = pack_run(out, out / "model.safetensors")
    print(
        f"6  packed: {packed.path}, {packed.file_bytes / 1024:.0f} KiB ({packed.payload_bytes / 1024:.0f} KiB of "
        f"weights), {cost.float_bytes / 1024:.0f} KiB in float"
    )
    engine = load_packed(packed.path)
    accuracy = evaluate(PackedNetwork(engine), test).accuracy
    print(f"7  the packed file without torch ({engine.backend} kernels): {accuracy:.1f} %")
    latency = _latencies(packed.path, trainer.model)
    print(f"8  one image on one thread: packed {latency['packed']:.2f} ms, float in torch {latency['torch']:.2f} ms")
    return {
        "float_accuracy": before.accuracy,
        "binarized_accuracy": collapsed.accuracy,
        "test_accuracy": result["test_accuracy"],
        "seconds": result["seconds"],
        "float_bytes": cost.float_bytes,
        "packed_bytes": packed.payload_bytes,
        "file_bytes": packed.file_bytes,
        "packed_file": str(packed.path),
        "packed_accuracy": accuracy,
        "packed_milliseconds": latency["packed"],
        "torch_milliseconds": latency["torch"],
        "picture": str(picture) if picture else None,
        "run": str(out),
        "torch_threads": torch.get_num_threads(),
    }
