"""Mutated packed files: a `FormatError`, or a network that runs. Never another exception, a crash, a hang.

Most mutations are signed again with a valid checksum, as an attacker would; otherwise nothing but the checksum would
be tested. The slow test runs the native code under the address and undefined-behaviour sanitizers; it starts this
file as a program.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import struct
import subprocess
import sys
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastslow.deploy
from fastslow.deploy import FormatError, available_backends, load_packed
from fastslow.deploy.format import digest, from_bytes, to_bytes
from fastslow.deploy.header import Info
from test_deploy_support import residual_graph

NUMBERS = [
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    16,
    17,
    31,
    64,
    100,
    -1,
    255,
    2**16,
    2**24,
    2**24 + 1,
    2**31,
    2**63,
    2**64,
    1.5,
    1e39,
]
THINGS: list[Any] = [
    *NUMBERS,
    None,
    True,
    False,
    "",
    "conv",
    [],
    {},
    [1],
    [1, 1],
    [[]],
    [2, 2],
    [0, 0],
    [3, 1],
    [1, 2, 3],
]
SMALL = 2**18  # elements of a value up to which a mutated network is also run


def seed_file() -> bytes:
    info = Info(classes=tuple("abcdefghij"), mean=(0.0,) * 5, std=(1.0,) * 5)
    return to_bytes(residual_graph(np.random.default_rng(0)), info)


def signed(document: str, tensors: dict[str, np.ndarray[Any, Any]]) -> bytes:
    """A container with a checksum that fits, whatever is in it."""
    codes = {"uint8": "U8", "float32": "F32", "float16": "F16"}
    outer: dict[str, Any] = {"__metadata__": {"fastslow": document, "sha256": digest(document, tensors)}}
    payload = b""
    for name, tensor in tensors.items():
        raw = tensor.tobytes()
        offsets = [len(payload), len(payload) + len(raw)]
        outer[name] = {"dtype": codes[tensor.dtype.name], "shape": list(tensor.shape), "data_offsets": offsets}
        payload += raw
    header = json.dumps(outer).encode()
    return struct.pack("<Q", len(header)) + header + payload


def mutate_bytes(rng: np.random.Generator, data: bytes) -> bytes:
    """Damage: flipped bits, cuts, repeats, anywhere in the file or in its header only."""
    result = bytearray(data)
    limit = len(data) if rng.random() < 0.5 else 8 + struct.unpack("<Q", data[:8])[0]
    for _ in range(rng.integers(1, 4)):
        position = int(rng.integers(0, limit))
        match rng.integers(0, 5):
            case 0:
                result[position % len(result)] ^= 1 << int(rng.integers(0, 8))
            case 1:
                result[position % len(result)] = int(rng.integers(0, 256))
            case 2:
                del result[position : position + int(rng.integers(1, 50))]
            case 3:
                result[position:position] = result[: int(rng.integers(1, 20))]
            case _:
                del result[position:]
        if not result:
            break
    return bytes(result)


def mutate_header(rng: np.random.Generator, document: dict[str, Any]) -> None:
    """Lies: another attribute, another wiring, nodes moved, doubled or gone, another input."""
    nodes = document["nodes"]
    node = nodes[int(rng.integers(0, len(nodes)))]
    key = list(node)[int(rng.integers(0, len(node)))]
    match rng.integers(0, 9):
        case 0:
            node[key] = copy.deepcopy(THINGS[int(rng.integers(0, len(THINGS)))])
        case 1 | 2 | 3:
            values = node[key]
            if isinstance(values, list) and values:
                values[int(rng.integers(0, len(values)))] = NUMBERS[int(rng.integers(0, len(NUMBERS)))]
            else:
                node[key] = NUMBERS[int(rng.integers(0, len(NUMBERS)))]
        case 4:
            node["inputs"] = [int(value) for value in rng.integers(0, len(nodes) + 1, rng.integers(0, 4))]
        case 5:
            nodes.remove(node)
        case 6:
            nodes.insert(int(rng.integers(0, len(nodes))), dict(node, name=f"copy {rng.integers(100)}"))
        case 7:
            document["input"][int(rng.integers(0, 3))] = NUMBERS[int(rng.integers(0, len(NUMBERS)))]
        case _:
            field = list(document)[int(rng.integers(0, len(document)))]
            document[field] = copy.deepcopy(THINGS[int(rng.integers(0, len(THINGS)))])


def mutate_tensors(rng: np.random.Generator, tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    """Values and shapes that no training gives."""
    name = list(tensors)[int(rng.integers(0, len(tensors)))]
    tensor = tensors[name].copy()
    match rng.integers(0, 4):
        case 0:
            raw = tensor.reshape(-1).view(np.uint8)
            raw[int(rng.integers(0, raw.size))] ^= np.uint8(1 << int(rng.integers(0, 8)))
        case 1:
            tensor = tensor[: int(rng.integers(1, len(tensor) + 1))]
        case 2:
            tensor = tensor.reshape(tensor.shape[::-1])
        case _:
            if tensor.dtype == np.float32:
                tensor.flat[0] = [np.nan, np.inf, 3e38, -3e38, 1e-45][int(rng.integers(0, 5))]
    tensors[name] = tensor


def mutable(document: dict[str, Any]) -> bool:
    """Whether a first lie has left nodes and an input to lie about again."""
    nodes, shape = document.get("nodes"), document.get("input")
    if not isinstance(nodes, list) or not isinstance(shape, list) or len(shape) != 3:
        return False
    return bool(nodes) and all(isinstance(node, dict) and node for node in nodes)


def mutated(rng: np.random.Generator, data: bytes) -> bytes:
    kind = rng.random()
    if kind < 0.25:
        return mutate_bytes(rng, data)
    length = struct.unpack("<Q", data[:8])[0]
    document = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["fastslow"])
    tensors = {f"{node.name}.{role}": t for node in from_bytes(data).graph.nodes for role, t in node.tensors.items()}
    if kind < 0.9:
        for _ in range(rng.integers(1, 3)):
            if mutable(document):
                mutate_header(rng, document)
    else:
        mutate_tensors(rng, tensors)
    return signed(json.dumps(document), tensors)


def fuzz(count: int, seed: int, backends: list[str]) -> dict[str, int]:
    """Try `count` mutations; anything but a `FormatError` or a result propagates."""
    rng = np.random.default_rng(seed)
    data = seed_file()
    outcome = {"refused": 0, "loaded": 0, "run": 0}
    for _ in range(count):
        case = mutated(rng, data)
        try:
            engine = load_packed(case, backends[0], threads=1)
        except FormatError:
            outcome["refused"] += 1
            continue
        outcome["loaded"] += 1
        if max(prod(shape) for shape in engine.model.graph.shapes()) > SMALL:
            continue
        for backend in backends:
            engine = load_packed(case, backend, threads=1)
            result = engine(rng.standard_normal((2, *engine.input_shape)))
            assert result.shape == (2, *engine.output_shape)
        outcome["run"] += 1
    return outcome


def test_a_thousand_mutated_files() -> None:
    outcome = fuzz(1000, seed=0, backends=available_backends())
    assert outcome["refused"] > 500
    assert outcome["run"] > 50  # some mutations are valid networks: they must run, too


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to build the native library with sanitizers")
def test_twenty_thousand_mutated_files_under_sanitizers(tmp_path: Path) -> None:
    native = Path(fastslow.deploy.__file__).parent / "native"
    library = tmp_path / "native.so"
    sources = sorted(map(str, native.glob("*.cpp")))
    flags = ["-std=gnu++17", "-O1", "-g1", "-Wno-psabi", "-fPIC", "-shared", "-pthread", "-fno-sanitize-recover=all"]
    build = ["g++", *flags, "-fsanitize=address,undefined", *sources, "-o", str(library)]
    made = subprocess.run(build, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"the sanitizers are not installed: {made.stderr[-200:]}")
    runtime = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    environment = os.environ | {
        "LD_PRELOAD": runtime.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",  # Python itself never frees everything
        "FASTSLOW_NATIVE": str(library),
    }
    command = [sys.executable, "-W", "error", __file__, "20000"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr[-4000:]
    assert json.loads(result.stdout)["run"] > 1000


if __name__ == "__main__":
    names = available_backends()
    assert len(names) > 1, "the sanitized library was not loaded"
    print(json.dumps(fuzz(int(sys.argv[1]), seed=1, backends=names)))
