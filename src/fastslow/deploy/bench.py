"""``fastslow bench``: a packed model against the same network in float, side by side in one run.

Contestants take turns call by call, so that whatever else the machine does hits all of them. Latencies are wall
clock; peak memory is that of a fresh process that imports, loads and runs one batch.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .engine import Engine, available_backends
from .format import PackedModel, read
from .sizes import layer_sizes

if TYPE_CHECKING:
    from torch import nn

Array = NDArray[np.float32]
_REST = 0.05  # seconds; OpenBLAS and onnxruntime ask for tens of milliseconds


@dataclass(frozen=True)
class Row:
    """One contestant at one batch size and thread count. Times are milliseconds for the whole batch."""

    contestant: str
    batch: int
    threads: int
    median_ms: float
    low_ms: float  # 10th percentile
    high_ms: float  # 90th percentile
    calls: int
    bytes: int
    peak_mib: float | None


@dataclass(frozen=True)
class LayerRow:
    """One operation of the packed engine at batch 1, one thread."""

    name: str
    milliseconds: float
    packed_bytes: int | None


@dataclass(frozen=True)
class Report:
    """Everything `bench` measured, and where."""

    file: str
    machine: dict[str, Any]
    rows: tuple[Row, ...]
    layers: tuple[LayerRow, ...]
    skipped: dict[str, str]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


@dataclass
class _Contestant:
    """`make(threads)` loads it and returns what runs a batch; `probe` does the same as a program of its own."""

    name: str
    bytes: int
    make: Callable[[int], Callable[[Array], Any]]
    probe: str


def bench(
    path: str | Path,
    *,
    model: nn.Module | None = None,
    batches: Sequence[int] = (1, 64),
    threads: Sequence[int] | None = None,
    seconds: float = 1.0,
    compiled: bool = True,
    memory: bool = True,
) -> Report:
    """Measure a packed file.

    Args:
        path: a packed file.
        model: the torch model it was made from, for the torch rows; None rebuilds one from the file, with BatchNorm
            already folded (which makes torch faster than the network that was trained).
        batches, threads: what to measure; threads default to one and all cores.
        seconds: time for each contestant in each setting.
        compiled: also measure `torch.compile`, which takes up to a minute to build.
        memory: also measure peak memory, each contestant in a process of its own.
    """
    packed = read(path)
    cores = Engine(packed, "numpy").threads
    counts = sorted({1, cores} if threads is None else set(threads))
    skipped: dict[str, str] = {}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        contestants = _contestants(packed, Path(path), Path(folder), model, compiled, skipped)
        for count in counts:
            runners: dict[str, Callable[[Array], Any]] = {}
            for contestant in contestants:
                try:
                    runners[contestant.name] = contestant.make(count)
                except Exception as error:  # torch.compile without a compiler, say: the others still count
                    skipped[contestant.name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            peaks = {c.name: _peak_memory(c, count) if memory and c.name in runners else None for c in contestants}
            for batch in batches:
                x = np.random.default_rng(0).standard_normal((batch, *packed.graph.input_shape)).astype(np.float32)
                times = interleave(runners, x, seconds)
                for contestant in contestants:
                    if contestant.name in times:
                        spread = np.percentile(times[contestant.name], [10, 50, 90]) * 1e3
                        low, median, high = map(float, spread)
                        calls, size = len(times[contestant.name]), contestant.bytes
                        peak = peaks[contestant.name]
                        rows.append(Row(contestant.name, batch, count, median, low, high, calls, size, peak))
    return Report(str(path), machine(), tuple(rows), _layers(packed), skipped)


def interleave(runners: dict[str, Callable[[Array], Any]], x: Array, seconds: float) -> dict[str, list[float]]:
    """Call times of each runner, in ten turns or more until each has had its time (and at least five calls).

    A turn begins after a rest, with a call that isn't counted: threads of the runner before keep asking for work for a
    while, on cores that this one needs, and its own have gone to sleep.
    """
    times: dict[str, list[float]] = {name: [] for name in runners}
    while active := [name for name, t in times.items() if len(t) < 5 or (sum(t) < seconds and len(t) < 5000)]:
        for name in active:
            sleep(_REST)
            runners[name](x)
            end = perf_counter() + seconds / 10
            while True:
                start = perf_counter()
                runners[name](x)
                times[name].append(perf_counter() - start)
                if perf_counter() >= end:
                    break
    return times


def machine() -> dict[str, Any]:
    """What a speed depends on."""
    versions = {"python": platform.python_version(), "numpy": np.__version__}
    for name in ("torch", "onnxruntime"):
        module = sys.modules.get(name)
        if module is not None:
            versions[name] = str(module.__version__)
    cpu = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    cores = os.cpu_count()
    return {"cpu": cpu, "cores": cores, "kernels": available_backends(), "load": load, "versions": versions}


def format_report(report: Report) -> str:
    """Tables for a terminal."""
    fastest: dict[tuple[int, int], float] = {}
    for row in report.rows:
        key = (row.batch, row.threads)
        fastest[key] = min(fastest.get(key, row.median_ms), row.median_ms)
    lines = [f"{report.file} on {report.machine['cpu']}, {report.machine['cores']} cores"]
    lines.append(f"{'':24}{'batch':>6}{'threads':>8}{'median ms':>11}{'10..90 %':>18}{'KB':>9}{'peak MiB':>10}{'':>9}")
    for row in report.rows:
        peak = "" if row.peak_mib is None else f"{row.peak_mib:.0f}"
        spread = f"{row.low_ms:.2f}..{row.high_ms:.2f}"
        ratio = f"{row.median_ms / fastest[row.batch, row.threads]:.1f}x"
        lines.append(
            f"{row.contestant:24}{row.batch:6}{row.threads:8}{row.median_ms:11.3f}{spread:>18}"
            f"{row.bytes / 1000:9.1f}{peak:>10}{ratio:>9}"
        )
    lines += [f"{name}: not measured, {why}" for name, why in report.skipped.items()]
    lines.append("")
    lines.append(f"{'layer':40}{'ms':>9}{'bytes':>10}")
    for layer in report.layers:
        size = "" if layer.packed_bytes is None else str(layer.packed_bytes)
        lines.append(f"{layer.name:40}{layer.milliseconds:9.4f}{size:>10}")
    return "\n".join(lines)


def _layers(packed: PackedModel) -> tuple[LayerRow, ...]:
    sizes = {layer.name: layer.packed_bytes for layer in layer_sizes(packed.graph, packed.info.dtype)}
    x = np.zeros((1, *packed.graph.input_shape), np.float32)
    engine = Engine(packed, threads=1)
    engine(x)
    return tuple(LayerRow(name, 1e3 * spent, sizes.get(name)) for name, spent in engine.profile(x, repeats=20))


def _contestants(
    packed: PackedModel, path: Path, folder: Path, model: nn.Module | None, compiled: bool, skipped: dict[str, str]
) -> list[_Contestant]:
    float_bytes = sum(layer.float_bytes for layer in layer_sizes(packed.graph))
    result = []
    try:
        import torch

        from .torch_graph import TorchGraph

        network = (model if model is not None else TorchGraph(packed.graph)).eval()

        def eager(threads: int) -> Callable[[Array], Any]:
            def run(x: Array) -> Any:
                torch.set_num_threads(threads)
                with torch.inference_mode():
                    return network(torch.from_numpy(x))

            return run

        def fused(threads: int) -> Callable[[Array], Any]:
            torch.set_num_threads(threads)
            torch._dynamo.reset()
            quick = torch.compile(network, dynamic=False)

            def run(x: Array) -> Any:
                torch.set_num_threads(threads)
                with torch.inference_mode():
                    return quick(torch.from_numpy(x))

            run(np.zeros((1, *packed.graph.input_shape), np.float32))
            return run

        load = f"from fastslow.deploy.format import read; g = read({str(path)!r}).graph"
        probe = (
            f"import torch; torch.set_num_threads(THREADS); {load}; "
            "from fastslow.deploy.torch_graph import TorchGraph; m = TorchGraph(g).eval(); "
            "x = torch.zeros(1, *g.input_shape)\nwith torch.inference_mode(): m(x)"
        )
        result.append(_Contestant("torch eager float32", float_bytes, eager, probe))
        if compiled:
            result.append(_Contestant("torch compiled float32", float_bytes, fused, ""))
    except ImportError:
        skipped["torch"] = "torch is not installed"
    try:
        import onnxruntime

        from .onnx import export

        file = folder / "float.onnx"
        size = export(packed, file, expand=True)

        def session(threads: int) -> Callable[[Array], Any]:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads
            made = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
            return lambda x: made.run(None, {"input": x})

        shape = (1, *packed.graph.input_shape)
        probe = (
            "import numpy, onnxruntime; o = onnxruntime.SessionOptions(); o.intra_op_num_threads = THREADS; "
            f"s = onnxruntime.InferenceSession({str(file)!r}, o, providers=['CPUExecutionProvider']); "
            f"s.run(None, dict(input=numpy.zeros({shape}, 'f')))"
        )
        result.append(_Contestant("onnxruntime float32", size, session, probe))
    except ImportError:
        skipped["onnxruntime"] = "onnx and onnxruntime are not installed: pip install 'fastslow[onnx]'"
    for backend in available_backends():
        probe = (
            f"import numpy; from fastslow.deploy import load_packed; e = load_packed({str(path)!r}, {backend!r}, "
            "threads=THREADS); e(numpy.zeros((1, *e.input_shape)))"
        )

        def load_engine(threads: int, backend: str = backend) -> Callable[[Array], Any]:
            return Engine(packed, backend, threads)

        result.append(_Contestant(f"fastslow {backend}", packed.file_bytes, load_engine, probe))
    return result


def _peak_memory(contestant: _Contestant, threads: int) -> float | None:
    """MiB of a process that does nothing else."""
    if not contestant.probe or not sys.platform.startswith("linux"):
        return None
    program = contestant.probe.replace("THREADS", str(threads))
    # Not getrusage: its peak starts at that of the process which started this one.
    program += "\nprint(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return float(result.stdout) / 1024 if result.returncode == 0 else None
