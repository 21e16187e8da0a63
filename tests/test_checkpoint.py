"""Checkpoints and run folders: what is written comes back, and damage is noticed."""

from __future__ import annotations

import gc
import json
import os
import resource
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import fastslow as fs
import tiny
from fastslow.files import write_atomically
from fastslow.training import checkpoint
from fastslow.training.checkpoint import CheckpointError, Checkpoints, flatten, load, save, unflatten
from fastslow.training.run import RunError, RunFolder
from fastslow.weights import load_strictly, load_weights, read_metadata, save_weights

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]
SHAPES = [(), (0,), (3,), (2, 0, 3), (2, 3), (1, 2, 2, 2)]


def tensor(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return (100 * torch.rand(shape, generator=torch.Generator().manual_seed(1))).to(dtype)


tensors = st.builds(tensor, st.sampled_from(DTYPES), st.sampled_from(SHAPES))
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
states = st.recursive(
    tensors | plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


# -- one file ----------------------------------------------------------------------------------------------------------


@given(state=states)
@settings(max_examples=40, deadline=None)
def test_any_nesting_comes_back(tmp_path_factory, state):
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    save(path, state)
    tiny.assert_same_state(load(path), state)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_kind_of_tensor_comes_back(tmp_path, dtype, shape):
    value = tensor(dtype, shape)
    save(tmp_path / "one.safetensors", {"x": value, "none": None})
    tiny.assert_same_state(load(tmp_path / "one.safetensors"), {"x": value, "none": None})


def test_shared_and_strided_memory_and_numbers_json_lacks(tmp_path):
    base = torch.arange(12.0)
    state = {"a": base, "b": base[2:5], "c": base.view(3, 4).T, 3: [base, (base,)], "inf": float("inf"), "-": -0.0}
    save(tmp_path / "x.safetensors", state)
    back = load(tmp_path / "x.safetensors")
    tiny.assert_same_state(back, state)
    assert str(back["-"]) == "-0.0"
    save(tmp_path / "x.safetensors", [float("nan"), torch.tensor(float("nan"))])
    assert all(value != value for value in load(tmp_path / "x.safetensors"))


def test_an_optimizer_goes_through_a_file_unchanged(tmp_path):
    model = tiny.Tiny()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.rand(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    save(tmp_path / "x.safetensors", optimizer.state_dict())
    back = load(tmp_path / "x.safetensors")
    tiny.assert_same_state(back, optimizer.state_dict())
    torch.optim.Adam(model.parameters()).load_state_dict(back)


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", {(1, 2): 3}, {None: 1}, {1.5: 1}, [1j]])
def test_what_json_would_bend_is_refused(value):
    with pytest.raises(TypeError, match="a checkpoint"):
        flatten(value)


def _write(path: Path, **header: str) -> None:
    good = {"version": "1", "tree": '{"v":1}'}
    tensors = {"t0": torch.ones(2)}
    header = {**good, **header}
    save_file(tensors, path, {"sha256": checkpoint._digest(header["tree"], tensors), **header})


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"version": "2"}, "its format is version '2', this library reads 1"),
        ({"sha256": "0" * 64}, "its checksum is wrong"),
        ({"tree": "{not json"}, "can't be used"),
        ({"tree": "[1, 2]"}, "can't be used"),
        ({"tree": "{}"}, "can't be used"),
        ({"tree": '{"t": "t7"}'}, "can't be used"),
        ({"tree": '{"t": ["t0"]}'}, "can't be used"),
        ({"tree": '{"z": 1}'}, "unknown node 'z'"),
        ({"tree": '{"d": 5}'}, "can't be used"),
        ({"tree": '{"d": [[[], {"v": 1}]]}'}, "can't be used"),
        ({"tree": '{"l":[' * 5000 + '{"v":1}' + "]}" * 5000}, "can't be used"),
    ],
)
def test_strange_headers(tmp_path, header, why):
    _write(tmp_path / "x.safetensors", **header)
    with pytest.raises(CheckpointError, match=why):
        load(tmp_path / "x.safetensors")


def test_files_that_are_none(tmp_path):
    path = tmp_path / "x.safetensors"
    for content in (b"", b"garbage", b"\x00" * 100, b"{}" * 1000, b"\xff" * 64):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="can't be used"):
            load(path)
    save_file({"w": torch.ones(1)}, path)  # a safetensors file, but no checkpoint
    with pytest.raises(CheckpointError, match="its format is version None"):
        load(path)
    with pytest.raises(CheckpointError, match="can't be used"):
        load(tmp_path / "absent.safetensors")


STATE = {"w": torch.linspace(-1, 1, 50), "n": 7, "list": [1.5, None, ("a", torch.tensor([True, False]))]}


def test_truncation_is_noticed(tmp_path):
    path = tmp_path / "x.safetensors"
    save(path, STATE)
    whole = path.read_bytes()
    for size in range(0, len(whole), 3):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            load(path)


def test_a_flipped_bit_changes_nothing_or_is_noticed(tmp_path):
    path = tmp_path / "x.safetensors"
    save(path, STATE)
    whole = path.read_bytes()
    noticed = 0
    for position in range(len(whole)):
        content = bytearray(whole)
        content[position] ^= 1 << position % 8
        path.write_bytes(content)
        try:
            tiny.assert_same_state(load(path), STATE)  # for example in the padding of the header
        except CheckpointError:
            noticed += 1
    assert noticed > 0.95 * len(whole)


def test_a_checkpoint_leaves_no_tensor_for_the_collector():
    gc.disable()
    try:
        tensors, tree = flatten({"a": [torch.ones(3)], "b": (torch.zeros(2),)})
        gone = [weakref.ref(tensor) for tensor in tensors.values()]
        del tensors, tree
        assert [ref() for ref in gone] == [None, None]
    finally:
        gc.enable()


def test_unflatten_is_the_inverse_without_a_file():
    tiny.assert_same_state(unflatten(*flatten(STATE)), STATE)


# -- the checkpoints of a run ------------------------------------------------------------------------------------------


def steps(checkpoints: Checkpoints) -> list[int]:
    return [int(path.stem.removeprefix("step-")) for path in checkpoints.paths()]


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_are_kept(tmp_path, keep):
    checkpoints = Checkpoints(tmp_path, keep)
    for step in (1, 20, 300, 1000, 99_999):
        checkpoints.save(step, {"step": step})
    assert steps(checkpoints) == [1, 20, 300, 1000, 99_999][-keep:]
    path, state = checkpoints.load_newest()
    assert (path, state) == (checkpoints.paths()[-1], {"step": 99_999})


@pytest.mark.parametrize("keep", [1, 2])
def test_damaged_ones_are_passed_over_and_never_crowd_out_good_ones(tmp_path, caplog, keep):
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(10, {"step": 10})
    checkpoints.save(20, {"step": 20}).write_bytes(b"damaged")
    assert checkpoints.load_newest()[1] == {"step": 10}
    assert "step-000000020.safetensors can't be used" in caplog.text
    assert "trying the one before" in caplog.text
    checkpoints.keep = keep
    for step in (12, 14, 16):  # the run goes on from step 10
        checkpoints.save(step, {"step": step})
        assert checkpoints.load_newest()[1] == {"step": step}
    assert steps(checkpoints) == [*[14, 16][-keep:], 20]
    checkpoints.save(20, {"step": 20})
    assert steps(checkpoints) == [*[16][: keep - 1], 20]


def test_none_that_is_usable(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {}).write_bytes(b"")
    with pytest.raises(CheckpointError, match="holds no usable checkpoint; start the run again"):
        checkpoints.load_newest()


def test_leftovers_of_a_crash_are_ignored(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"step": 1})
    (tmp_path / ".step-000000002.safetensors.tmp").write_bytes(b"half of a")
    assert steps(checkpoints) == [1]
    assert checkpoints.load_newest()[1] == {"step": 1}
    checkpoints.save(2, {"step": 2})
    checkpoints.sweep()
    assert not list(tmp_path.glob(".*"))


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left on device") as error:
        write_atomically(path, b"new")
    assert error.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_an_interrupted_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", b"new")
    assert not list(tmp_path.iterdir())


FULL = """
import resource, signal, sys
from pathlib import Path
import torch
from fastslow.training.checkpoint import CheckpointError, Checkpoints

checkpoints = Checkpoints(Path(sys.argv[1]))
checkpoints.save(1, {"w": torch.ones(10)})
checkpoints.save(2, {"w": torch.ones(10)})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    checkpoints.save(3, {"w": torch.ones(100_000)})
except CheckpointError as error:
    print(error)
"""


def test_a_full_disk_costs_no_older_checkpoint(tmp_path):
    assert resource.getrlimit(resource.RLIMIT_FSIZE)
    done = subprocess.run([sys.executable, "-c", FULL, tmp_path], check=True, capture_output=True, text=True)
    assert done.stdout == (
        f"the checkpoint {tmp_path}/step-000000003.safetensors can't be written (File too large); "
        f"the newest one is {tmp_path}/step-000000002.safetensors; "
        "make room or the folder writable, then resume the run\n"
    )
    assert [p.name for p in sorted(tmp_path.iterdir())] == [f"step-00000000{i}.safetensors" for i in (1, 2)]
    assert load(tmp_path / "step-000000002.safetensors")["w"].sum() == 10


def test_a_folder_that_cant_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"can't be written \(.*\); there is none yet"):
        Checkpoints(tmp_path / "file" / "checkpoints").save(1, {})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"step": 1})
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(CheckpointError, match="Permission denied"):
            checkpoints.save(2, {"step": 2})
        assert checkpoints.load_newest()[1] == {"step": 1}
    finally:
        tmp_path.chmod(0o700)


# -- the run folder ----------------------------------------------------------------------------------------------------


def test_a_folder_with_a_run_is_refused(tmp_path):
    path = tmp_path / "deep" / "run"
    run = RunFolder.create(path, tiny.config())
    before = (path / "config.json").read_bytes()
    with pytest.raises(RunError, match="already holds a run; continue it with `fastslow resume"):
        RunFolder.create(path, tiny.config(seed=1))
    assert (path / "config.json").read_bytes() == before
    assert run.config() == tiny.config()
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file"):
        RunFolder.create(tmp_path / "file", tiny.config())
    with pytest.raises(RunError, match="holds no run"):
        RunFolder.open(tmp_path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "can't be read"),
        (b'{"model": ', "can't be read"),
        (b"\xff\xfe\x00", "can't be read"),
        (b"[1]", "holds no JSON object"),
        (b'{"colour": "red"}', "unknown config field 'colour'; was it written by a newer version?"),
        (b'{"epochs": "many"}', "epochs='many': give a whole number"),
        (b'{"lr": null}', "lr=None: give a positive learning rate"),
        (b'{"skip": "conv1"}', "skip='conv1': give a list of patterns"),
    ],
)
def test_a_damaged_config(tmp_path, content, why):
    run = RunFolder.create(tmp_path / "run", tiny.config())
    (run.path / "config.json").write_bytes(content)
    with pytest.raises(RunError, match=why) as error:
        RunFolder.open(run.path).config()
    assert str(run.path / "config.json") in str(error.value)


def test_a_damaged_result(tmp_path):
    run = RunFolder.create(tmp_path / "run", tiny.config())
    assert run.result() is None
    (run.path / "result.json").write_text('{"test_acc')
    with pytest.raises(RunError, match=r"result.json can't be read .*delete it and resume the run"):
        run.result()
    (run.path / "result.json").write_text('{"test_accuracy": 1}')
    with pytest.raises(RunError, match=r"result.json has no 'best_test_accuracy'; delete it"):
        run.result()


def test_a_half_written_last_row(tmp_path):
    run = RunFolder.create(tmp_path / "run", tiny.config())
    assert run.metrics() == []
    rows = [{"epoch": 1, "x": 0.1}, {"epoch": 2, "x": 1e-300}]
    for row in rows:
        run.append_metrics(row)
    assert run.metrics() == rows
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write('{"epoch": 3, "x": 0.')
    assert run.metrics() == rows
    run.rewind_metrics(rows[:1])
    run.append_metrics(rows[1])
    assert run.metrics() == rows
    assert all(json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines())


# -- weights -----------------------------------------------------------------------------------------------------------


def test_weights_come_back_strictly(tmp_path):
    path = tmp_path / "w.safetensors"
    model, other = tiny.Tiny(), tiny.Tiny()
    save_weights(model, path, {"origin": "test"})
    assert read_metadata(path) == {"origin": "test"}
    fs.binarize_(other, "ste", skip=fs.first_and_last(other))
    load_strictly(other, load_weights(path), path)
    tiny.assert_same_state(dict(other.state_dict()), dict(model.state_dict()))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda w: w.pop("c2.weight"), r"1 keys are missing \(c2.weight\)"),
        (lambda w: w.update(extra=torch.ones(1)), r"1 keys are not the model's \(extra\)"),
        (lambda w: w.update({"fc.bias": torch.ones(3)}), r"fc.bias is \(3,\), the model needs \(10,\)"),
    ],
)
def test_weights_that_dont_fit(change, why):
    model = tiny.Tiny()
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    before = {key: value.clone() for key, value in weights.items()}
    change(weights)
    with pytest.raises(ValueError, match=rf"w.safetensors doesn't fit this Tiny: {why}"):
        load_strictly(model, weights, "w.safetensors")
    tiny.assert_same_state(dict(model.state_dict()), before)


def test_weights_files_that_cant_be_used(tmp_path):
    with pytest.raises(FileNotFoundError, match="no weights at"):
        load_weights(tmp_path / "absent.safetensors")
    with pytest.raises(FileNotFoundError, match="no weights at"):
        load_weights(tmp_path)
    path = tmp_path / "w.safetensors"
    save_weights(tiny.Tiny(), path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match="is no readable safetensors file"):
        load_weights(path)
    with pytest.raises(OSError, match="No such file or directory"):
        save_weights(tiny.Tiny(), tmp_path / "absent" / "w.safetensors")
