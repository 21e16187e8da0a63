"""Packed files are untrusted: each way to be wrong has its message."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors

from fastslow.deploy import FormatError, load_packed
from fastslow.deploy.format import digest, from_bytes, read, to_bytes
from fastslow.deploy.graph import Graph
from fastslow.deploy.header import Info
from fastslow.files import write_atomically
from test_deploy_support import residual_graph

INFO = Info(
    producer="test",
    mean=(0.1, 0.2, 0.3, 0.4, 0.5),
    std=(1.0, 1.0, 1.0, 1.0, 2.0),
    classes=tuple("abcdefghij"),
    binarizer="sign",
    result={"accuracy": 0.5},
)


@pytest.fixture(scope="module")
def data() -> bytes:
    return to_bytes(residual_graph(np.random.default_rng(0)), INFO)


def edited(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """A file with another header and a checksum that fits it: what an attacker would write."""
    length = struct.unpack("<Q", data[:8])[0]
    outer = json.loads(data[8 : 8 + length])
    document = json.loads(outer["__metadata__"]["fastslow"])
    change(document)
    outer["__metadata__"]["fastslow"] = text = json.dumps(document)
    tensors = {}
    for name, entry in outer.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            dtype = {"U8": "u1", "F32": "<f4", "F16": "<f2"}[entry["dtype"]]
            tensors[name] = np.frombuffer(data[8 + length + begin : 8 + length + end], dtype).reshape(entry["shape"])
    outer["__metadata__"]["sha256"] = digest(text, tensors)
    header = json.dumps(outer).encode()
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def test_round_trip(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_atomically(path, data)
    model = read(path)
    assert model.info == INFO
    assert model.file_bytes == len(data) == path.stat().st_size
    assert to_bytes(model.graph, model.info) == data
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]
    with safetensors.safe_open(path, "np") as file:  # a plain safetensors file for everybody else
        assert file.get_tensor("first.bits").dtype == np.uint8
        assert json.loads(file.metadata()["fastslow"])["version"] == 1


def test_half_precision(data: bytes) -> None:
    graph = from_bytes(data).graph
    half = from_bytes(to_bytes(graph, Info(dtype="float16")))
    np.testing.assert_allclose(half.graph.nodes[0].tensors["weight"], graph.nodes[0].tensors["weight"], atol=1e-2)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no packed model at"):
        load_packed(tmp_path / "nothing.safetensors")
    (tmp_path / "empty").touch()
    with pytest.raises(FormatError, match=r"empty: 0 bytes are too few"):
        load_packed(tmp_path / "empty")


def test_every_truncation_is_noticed(data: bytes) -> None:
    for size in [*range(64), *range(64, len(data), 97), len(data) - 1]:
        with pytest.raises(FormatError):
            from_bytes(data[:size])
    with pytest.raises(FormatError, match="bytes appended"):
        from_bytes(data + b"\0")


def test_every_flipped_bit_of_the_payload_is_noticed(data: bytes) -> None:
    start = 8 + struct.unpack("<Q", data[:8])[0]
    for position in range(start, len(data), 61):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        with pytest.raises(FormatError, match="checksum"):
            from_bytes(bytes(flipped))


def node(document: dict[str, Any], index: int) -> dict[str, Any]:
    return document["nodes"][index]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(version=2), "format version 2 is not 1"),
        (lambda d: d.update(version=True), "format version True"),
        (lambda d: d.pop("version"), "format version None"),
        (lambda d: d.update(input=[5, 9]), "can't|doesn't fit|needs|expected"),
        (lambda d: d.update(input=[5, 9, 7, 1]), r"must be \(features,\)"),
        (lambda d: d.update(input=[5, 2**24, 2**24]), "above 16777216 elements"),
        (lambda d: d.update(input=[5, 10**9, 7]), "integer from 1 to 16777216"),
        (lambda d: d.update(input=[5, -9, 7]), "integer from 1"),
        (lambda d: d.update(input="image"), "input must be a list"),
        (lambda d: d.update(nodes=[]), "0 nodes"),
        (lambda d: d.update(nodes={}), "nodes must be a list"),
        (lambda d: d["nodes"].append(3), "node 19 must be an object"),
        (lambda d: node(d, 5).update(inputs=[5, 9]), "reads value 9, which is not computed before it"),
        (lambda d: node(d, 5).update(inputs=[6, 5]), "a cycle"),
        (lambda d: node(d, 5).update(inputs=[-1, 5]), "integer from 0"),
        (lambda d: node(d, 5).update(inputs=[5]), "takes 2 inputs, has 1"),
        (lambda d: node(d, 5).update(inputs=[5, 0]), "can't add"),
        (lambda d: node(d, 9).update(inputs=[8]), "takes two or more inputs"),
        (lambda d: node(d, 9).update(inputs=[8, 7]), "can't concatenate"),
        (lambda d: node(d, 0).update(op="exec"), "unknown operation 'exec'"),
        (lambda d: node(d, 0).update(op="linear"), "unknown attributes"),
        (lambda d: node(d, 0).update(extra=1), "unknown attributes extra"),
        (lambda d: node(d, 0).pop("stride"), "stride must be a list, is None"),
        (lambda d: node(d, 0).update(stride=[0, 1]), "stride must be an integer from 1"),
        (lambda d: node(d, 0).update(stride=[1]), "stride must have 2 entries"),
        (lambda d: node(d, 0).update(stride=[1.5, 1]), r"is 1\.5"),
        (lambda d: node(d, 0).update(kernel=[2**20, 2**20]), "doesn't fit into"),
        (lambda d: node(d, 0).update(padding=[2**20, 2**20]), "larger than 16777216 elements"),
        (lambda d: node(d, 0).update(groups=2), "can't be split into 2 groups"),
        (lambda d: node(d, 0).update(outputs=21), r"expected \(21, 5, 3, 3\)"),
        (lambda d: node(d, 0).update(sign_input=True), "has float weights"),
        (lambda d: node(d, 0).update(sign_input=1), "must be true or false"),
        (lambda d: node(d, 3).update(outputs=24), r"bits has shape \(20, 23\), expected \(24, 23\)"),
        (lambda d: node(d, 0).update(name="other"), "has neither weight nor bits|no node uses"),
        (lambda d: node(d, 6).update(name="first"), "same name"),
        (lambda d: node(d, 6).update(name=None), "name must be a string"),
        (lambda d: node(d, 7).update(padding=[2, 1]), "more than half of the kernel"),
        (lambda d: node(d, 12).update(low=2.0), "which is empty"),
        (lambda d: node(d, 12).update(low="-1"), "finite number"),
        (lambda d: node(d, 12).update(high=1e300), "finite number"),
        (lambda d: node(d, 11).update(before=[0, 2**24, 2**24]), "above 16777216 elements"),
        (lambda d: d.update(preprocessing=None), "preprocessing must be an object"),
        (lambda d: d["preprocessing"].update(std=[0, 1, 1, 1, 1]), "positive std"),
        (lambda d: d["preprocessing"].update(mean=[0.0]), "for each of 5 channels"),
        (lambda d: d.update(classes=[1]), "class names must be strings"),
        (lambda d: d.update(classes=None), "classes must be a list"),
        (lambda d: d.update(dtype="int4"), "neither float32 nor float16"),
        (lambda d: d.update(result=[]), "result must be an object"),
    ],
)
def test_lying_headers(data: bytes, change: Callable[[dict[str, Any]], object], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        from_bytes(edited(data, change))


def container(header: object, payload: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + payload


def entry(dtype: object = "U8", shape: object = (1,), offsets: object = (0, 1), **more: object) -> dict[str, Any]:
    return {"__metadata__": {"fastslow": ""}, "t": {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (struct.pack("<Q", 2**63) + b"{}", "the header claims"),
        (container(b"\xff\xfe"), "no UTF-8"),
        (container(b"{" * 9), "no valid JSON"),
        (container(b"[" * 100_000), "no valid JSON"),
        (container(b'{"a":' + b"9" * 5000 + b"}"), "no valid JSON"),
        (container([]), "no JSON object"),
        (container({}), "without metadata"),
        (container({"__metadata__": {}}), "not a packed fastslow model"),
        (container(b'{"a":1,"a":2}'), "repeats a key"),
        (container(b'{"a":NaN}'), "holds NaN"),
        (container({"__metadata__": {"fastslow": "[1]", "sha256": digest("[1]", {})}}), "header must be an object"),
        (container({"__metadata__": {"fastslow": ""}, "t": 1}), "the entry is not dtype, shape and data_offsets"),
        (container(entry(extra=1), b"x"), "the entry is not"),
        (container(entry(dtype="F64"), b"x"), "type 'F64' is none of"),
        (container(entry(shape=[-1]), b"x"), "bad shape"),
        (container(entry(shape=[2**40]), b"x"), "bad shape"),
        (container(entry(shape=[2**20] * 4), b"x"), "can't be the bytes"),
        (container(entry(shape=[1] * 9), b"x"), "bad shape"),
        (container(entry(shape=["1"]), b"x"), "bad shape"),
        (container(entry(offsets=[0, 2], shape=[2]), b"x"), "can't be the bytes 0 to 2 of 1"),
        (container(entry(offsets=[-1, 0]), b"x"), "can't be the bytes"),
        (container(entry(offsets=[1, 2]), b"xy"), "gap or overlap"),
    ],
)
def test_broken_containers(content: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        from_bytes(content)


def test_values_that_no_training_gives(data: bytes) -> None:
    graph = from_bytes(data).graph
    for name, role, value, message in [
        ("first", "scale", np.nan, r"first\.scale holds NaN or infinity"),
        ("stem", "weight", np.inf, r"stem\.weight holds NaN or infinity"),
    ]:
        text = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])["__metadata__"]["fastslow"]
        from safetensors.numpy import save

        tensors = {f"{n.name}.{r}": t.copy() for n in graph.nodes for r, t in n.tensors.items()}
        tensors[f"{name}.{role}"].flat[0] = value
        with pytest.raises(FormatError, match=message):
            from_bytes(save(tensors, {"fastslow": text, "sha256": digest(text, tensors)}))


def test_unused_bits_must_be_zero(data: bytes) -> None:
    graph = from_bytes(data).graph
    node = next(node for node in graph.nodes if node.name == "first")  # 180 bits: four are unused
    node.tensors["bits"].setflags(write=False)
    dirty = node.tensors["bits"].copy()
    dirty[3, -1] |= 0x80
    nodes = tuple(
        type(n)(n.op, n.name, n.inputs, n.attributes, {**n.tensors, "bits": dirty}) if n is node else n
        for n in graph.nodes
    )
    with pytest.raises(FormatError, match="unused bits"):
        from_bytes(to_bytes(Graph(graph.input_shape, nodes), INFO))
