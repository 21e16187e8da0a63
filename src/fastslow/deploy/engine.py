"""Running a packed model without torch: numpy and safetensors, and native kernels where they were built."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from math import prod
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import native
from .errors import BackendError
from .format import PackedModel, from_bytes, read
from .graph import Graph, canonical
from .header import Info
from .layouts import aligned_zeros
from .native import Layout
from .numpy_ops import KERNELS
from .plan import compile_program

if TYPE_CHECKING:
    from pathlib import Path

Array = NDArray[np.float32]


class Backend(Protocol):
    """Runs a batch; `seconds` receives the time spent in each of `names` when it is given."""

    name: str
    names: list[str]

    def run(self, x: Array, seconds: NDArray[np.float64] | None = None) -> Array: ...


def available_backends() -> list[str]:
    """What `load_packed` accepts as `backend` on this machine, the fastest first."""
    return [*native.backends(), "numpy"]


def load_packed(
    source: str | Path | bytes | bytearray, backend: str | None = None, threads: int | None = None
) -> Engine:
    """Load a packed model for inference.

    Args:
        source: the path of a packed file, or its content.
        backend: one of `available_backends()`; None takes the fastest.
        threads: worker threads of the native backends; None takes one per available core.
    """
    model = from_bytes(bytes(source)) if isinstance(source, bytes | bytearray) else read(source)
    return Engine(model, backend, threads)


class Engine:
    """A packed model, ready to run. Safe to share between threads, which then take turns."""

    def __init__(self, model: PackedModel, backend: str | None = None, threads: int | None = None) -> None:
        choices = available_backends()
        name = backend or choices[0]
        if name not in choices:
            raise BackendError(f"backend {name!r} is not available here; choose from {', '.join(choices)}")
        if threads is not None and threads < 1:
            raise ValueError(f"threads={threads} must be at least 1")
        self.model = model
        self.threads = threads or _cores()
        self.output_shape = model.graph.output_shape()
        self._backend: Backend
        if name == "numpy":
            self._backend = _NumpyBackend(model.graph)
        else:
            self._backend = _NativeBackend(model.graph, name, self.threads)
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, and what another process unpickles, has memory and threads of its own."""
        return Engine, (self.model, self.backend, self.threads)

    @property
    def backend(self) -> str:
        """Which kernels it uses: an instruction set, or ``numpy``."""
        return self._backend.name

    @property
    def info(self) -> Info:
        return self.model.info

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.model.graph.input_shape

    def __call__(self, x: ArrayLike) -> Array:
        """Logits of a batch (batch, *input_shape), or of one sample, which comes back without the batch."""
        batch, single = self._batch(x)
        with self._lock:
            result = self._backend.run(batch)
        return result[0] if single else result

    def profile(self, x: ArrayLike, repeats: int = 10) -> list[tuple[str, float]]:
        """Mean seconds in each operation for the batch."""
        if repeats < 1:
            raise ValueError(f"repeats={repeats} must be at least 1")
        batch, _ = self._batch(x)
        seconds = np.zeros(len(self._backend.names))
        with self._lock:
            for _ in range(repeats):
                self._backend.run(batch, seconds)
        return list(zip(self._backend.names, (seconds / repeats).tolist(), strict=True))

    def preprocess(self, pixels: ArrayLike) -> Array:
        """Images of bytes, (height, width, channels) or a batch of them, as the network was trained on."""
        images = np.asarray(pixels)
        if images.dtype != np.uint8:
            raise TypeError(f"preprocess takes uint8 pixels, got {images.dtype}; pass floats to the engine directly")
        channels = self.input_shape[0]
        if images.ndim not in (3, 4) or images.shape[-1] != channels:
            raise ValueError(f"expected (height, width, {channels}) or a batch of such images, got {images.shape}")
        x: Array = images.astype(np.float32) / np.float32(255)
        if self.info.mean:
            x = (x - np.array(self.info.mean, np.float32)) / np.array(self.info.std, np.float32)
        return np.ascontiguousarray(np.moveaxis(x, -1, -3), np.float32)

    def _batch(self, x: ArrayLike) -> tuple[Array, bool]:
        array = np.asarray(x)
        if array.dtype.kind not in "fiu":
            raise TypeError(f"expected numbers, got {array.dtype}")
        array = np.ascontiguousarray(array, np.float32)
        single = array.shape == self.input_shape
        if not single and array.shape[1:] != self.input_shape:
            wanted = ", ".join(map(str, self.input_shape))
            raise ValueError(f"expected an input of shape ({wanted}) or (batch, {wanted}), got {array.shape}")
        return (array[None] if single else array), single

    def __repr__(self) -> str:
        size = self.model.file_bytes
        return (
            f"Engine({self.input_shape} -> {self.output_shape}, {size} bytes, {self.backend}, threads={self.threads})"
        )


class _NumpyBackend:
    name = "numpy"

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.names = [node.name for node in graph.nodes]
        self.output_shape = graph.output_shape()
        self._last_use = {source: i for i, node in enumerate(graph.nodes) for source in node.inputs}

    def run(self, x: Array, seconds: NDArray[np.float64] | None = None) -> Array:
        values: dict[int, Array] = {0: x.reshape(len(x), *canonical(self.graph.input_shape))}
        # Finite constants can still overflow on the way; the result then says inf or NaN, as the native kernels do.
        with np.errstate(over="ignore", invalid="ignore"):
            for index, node in enumerate(self.graph.nodes):
                start = perf_counter()
                values[index + 1] = KERNELS[node.op](node, *(values[source] for source in node.inputs))
                for source in set(node.inputs):
                    if self._last_use[source] == index:
                        del values[source]
                if seconds is not None:
                    seconds[index] += perf_counter() - start
        return np.ascontiguousarray(values[len(self.graph.nodes)]).reshape(len(x), *self.output_shape)


class _NativeBackend:
    def __init__(self, graph: Graph, name: str, threads: int) -> None:
        library = native.library()
        assert library is not None
        self._library: Any = library
        self.name = name
        self.index = native.backends().index(name)
        self.program = compile_program(graph, Layout(library.fastslow_backend_layout(self.index)))
        self.names = self.program.names
        self.output_shape = graph.output_shape()
        self.threads = threads
        region = self.program.arena_bytes + self.program.scratch_bytes
        # Zeros: margins are never written, so they stay what padding must be.
        self._memory = aligned_zeros(threads * region)
        self._call = native.Program(
            backend=self.index,
            op_count=len(self.program.ops),
            ops=self.program.ops,
            memory=self._memory.ctypes.data,
            region=region,
            scratch=self.program.arena_bytes,
            input_size=prod(graph.input_shape),
            output_size=prod(self.output_shape),
        )
        self._process = 0

    def run(self, x: Array, seconds: NDArray[np.float64] | None = None) -> Array:
        if self._process != os.getpid():
            self._start()
        result = np.empty((len(x), *self.output_shape), np.float32)
        clock = seconds.ctypes.data_as(ctypes.POINTER(ctypes.c_double)) if seconds is not None else None
        status = self._library.fastslow_run(self._call, _address(x), _address(result), len(x), clock)
        if status:
            raise RuntimeError(f"the native library refused the program (status {status})")
        return result

    def _start(self) -> None:
        """Threads on first use, and again in a forked child, which inherits none."""
        pool = self._library.fastslow_pool_new(self.threads)
        if not pool:
            raise RuntimeError(f"could not start {self.threads} threads")
        self._call.pool = pool
        self._process = os.getpid()
        weakref.finalize(self, _free_pool, self._library, pool, self._process)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _free_pool(library: Any, pool: int, process: int) -> None:
    if os.getpid() == process:
        library.fastslow_pool_free(pool)


def _address(array: Array) -> int:
    """`array.ctypes.data` in a third of its time, which a small network notices."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    except (TypeError, ValueError):  # read-only or empty
        return array.ctypes.data
