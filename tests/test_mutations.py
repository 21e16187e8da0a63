"""Thousands of damaged checkpoints, configs and run folders: each ends in a clear sentence, or doesn't matter."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tiny
from fastslow import cli, cli_support
from fastslow.data import dataset
from fastslow.methods import get_method
from fastslow.training import checkpoint
from fastslow.training.run import RunFolder
from fastslow.training.sinks import Silent

ALLOWED = (0, 2, 128 + signal.SIGINT)
NUMBERS: list[Any] = [-1, 0, 1, 3, -(2**40), 2**40, 2**63, 10**30, 0.5, -1.5, 1e-300, 1e308, float("nan"), float("inf")]
OTHERS: list[Any] = [
    None,
    True,
    "",
    "fsg",
    "x" * 5000,
    "\x00",
    "../../etc",
    [],
    [[]],
    {},
    {"a": 1},
    [1, "b"],
    [None] * 9,
]


class StopSoon(Silent):
    """Ctrl-C after three steps: a mutated run may be endless."""

    def __init__(self) -> None:
        self.left = 3

    def step(self, done: int, loss: float | None) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory):
    """Runs in the middle of their second epoch, with two checkpoints, by method."""
    folder = tmp_path_factory.mktemp("mutations")
    for method in ("ste", "fsg", "lstmfc"):
        trainer = tiny.trainer(tiny.config(method, epochs=2), folder / method)
        for count in (6, 2):
            tiny.step(trainer, count)
            trainer.save()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(dataset._DATASETS._entries, "tiny", _read_tiny)
        patch.setattr(cli_support, "ConsoleSink", StopSoon)
        yield folder


def _read_tiny(*_: Any) -> Callable[[str], Any]:
    whole = tiny.dataset()
    return {"train": whole.train, "test": whole.test}.__getitem__


# -- mutations ---------------------------------------------------------------------------------------------------------


def mutate_bytes(content: bytes, draw: random.Random) -> bytes:
    """Flip, cut, repeat, insert or blank a part."""
    data = bytearray(content)
    at = draw.randrange(len(data) + 1)
    end = min(len(data), at + draw.choice([1, 2, 8, 100, 5000]))
    kind = draw.randrange(7)
    if kind == 0:
        for _ in range(draw.choice([1, 1, 1, 5, 50])):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        del data[at:end]
    elif kind == 3:
        data[at:at] = data[at:end]
    elif kind == 4:
        data[at:at] = draw.randbytes(end - at)
    elif kind == 5:
        data[at:end] = bytes(end - at)
    else:
        data[:8] = draw.choice([0, 1, len(data), 2**31, 2**62, 2**64 - 1]).to_bytes(8, "little")
    return bytes(data)


def odd_value(old: Any, draw: random.Random) -> Any:
    """Something else in place of a value."""
    if isinstance(old, Tensor) and draw.random() < 0.7:
        odd = [old.double(), old.to(torch.int64), old.reshape(-1)[:1], old[None], old.new_zeros(0), old.new_full((), 7)]
        odd += [torch.full_like(old, draw.choice([0, 1, 100]))]
        odd += [torch.full_like(old, float("nan"))] if old.is_floating_point() else []
        return draw.choice(odd)
    return draw.choice(NUMBERS + OTHERS)


def mutate_tree(node: Any, draw: random.Random) -> Any:
    """The same nesting with one place changed, at a random depth."""
    inside = isinstance(node, dict | list) and len(node) and draw.random() < 0.93
    if not inside:
        return odd_value(node, draw)
    items = dict(node) if isinstance(node, dict) else dict(enumerate(node))
    key = draw.choice(list(items))
    kind = draw.random()
    if kind < 0.85:
        items[key] = mutate_tree(items[key], draw)
    elif kind < 0.93:
        del items[key]
    else:
        items["strange" if isinstance(node, dict) else len(items)] = odd_value(None, draw)
    return items if isinstance(node, dict) else list(items.values())


def damaged_file(run: Path, draw: random.Random) -> None:
    path = draw.choice([*sorted(run.glob("checkpoints/*")), run / "config.json", run / "metrics.jsonl"])
    path.write_bytes(mutate_bytes(path.read_bytes(), draw))


def strange_checkpoint(run: Path, draw: random.Random) -> None:
    """Whole, with a right checksum, but not what a run would write."""
    path = sorted(run.glob("checkpoints/*"))[-1]
    state = checkpoint.load(path)
    part = draw.choice([None, "rows", "optimizer", "done", "steps_per_epoch", "rng", "bits", "left_out", "metrics"])
    if part is None:
        checkpoint.save(path, mutate_tree(state, draw))
    else:
        checkpoint.save(path, {**state, part: mutate_tree(state[part], draw)})


def strange_config(run: Path, draw: random.Random) -> None:
    path = run / "config.json"
    config = json.loads(path.read_text())
    for _ in range(draw.choice([1, 1, 2])):
        key = draw.choice([*config, "method_fields"])
        if key == "method_fields" and draw.random() < 0.8:
            names = ["length", "beta", "seed", "expand", "d_state", "d_conv", "patch", "slow", "layout", "horizon_tol"]
            names += ["fast_hidden", "fast_depth", "hidden", "slow_lr", "nothing"]
            config[key] = {draw.choice(names): draw.choice(NUMBERS + OTHERS)}
        else:
            config[key] = draw.choice(NUMBERS + OTHERS)
    path.write_text(json.dumps(config))


def strange_folder(run: Path, draw: random.Random) -> None:
    newest = sorted(run.glob("checkpoints/*"))[-1]
    victim = draw.choice([newest, run / "checkpoints", run / "config.json", run / "metrics.jsonl", run / ".lock"])
    kind = draw.randrange(6)
    if kind < 4:
        shutil.rmtree(victim) if victim.is_dir() else victim.unlink(missing_ok=True)
    if kind == 1:
        victim.mkdir()
    elif kind == 2:
        victim.symlink_to(victim)
    elif kind == 3:
        victim.write_bytes(draw.choice([b"", b"{}", b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe", b"1" * 10_000]))
    elif kind == 4:
        (run / "checkpoints" / draw.choice(["step-x.safetensors", "step-9.safetensors", "step-.safetensors"])).touch()
    elif kind == 5:
        (run / "result.json").write_bytes(draw.choice([b"", b"{}", b"[]", b"[" * 100_000, b'{"test_accuracy": 1}']))


MUTATIONS = [damaged_file, strange_checkpoint, strange_checkpoint, strange_config, strange_folder]


# -- the test ----------------------------------------------------------------------------------------------------------


def resume(run: Path) -> tuple[int, str]:
    """The exit code of ``fastslow resume`` and what it said."""
    err = StringIO()
    before = sys.argv
    sys.argv = ["fastslow", "resume", str(run), "--device", "cpu"]
    try:
        with redirect_stderr(err), redirect_stdout(StringIO()):
            cli.main()
    except SystemExit as stop:
        return int(stop.code or 0), err.getvalue()
    finally:
        sys.argv = before
    return 0, err.getvalue()


def check(runs: Path, folder: Path, seed: int, count: int) -> dict[int, int]:
    """So many mutations; how often each exit code came."""
    found = dict.fromkeys(ALLOWED, 0)
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(count):
        draw = random.Random(f"{seed}.{number}")
        run = folder / "run"
        shutil.copytree(runs / draw.choice(["ste", "fsg", "lstmfc"]), run)
        mutation = draw.choice(MUTATIONS)
        where = f"{mutation.__name__}, seed {seed}.{number}"
        mutation(run, draw)
        try:
            code, said = resume(run)
        except BaseException as error:
            raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error
        assert code in ALLOWED, f"{where}: {code}, {said}"
        if code == 2:
            assert said.splitlines()[-1].startswith("fastslow: "), f"{where}: {said}"
            assert len(said.splitlines()[-1]) > 30, f"{where}: {said}"
        assert "Traceback" not in said, f"{where}: {said}"
        found[code] += 1
        shutil.rmtree(run)
    # No file has more than 100 kB: nothing it says may cost much more than a run does anyway.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - largest < 300_000
    return found


def test_the_unmutated_runs_go_on(runs, tmp_path):
    for method in ("ste", "fsg", "lstmfc"):
        shutil.copytree(runs / method, tmp_path / method)
        code, said = resume(tmp_path / method)
        assert code == 0, said
        assert RunFolder.open(tmp_path / method).result() is not None


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_mutations(runs, tmp_path, seed):
    found = check(runs, tmp_path, seed, 150)
    assert min(found[0] + found[130], found[2]) > 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_ten_thousand_mutations(runs, tmp_path, seed):
    check(runs, tmp_path, seed, 500)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"slow_lr": 1e308}, "takes a number that a float32 can hold"),
        ({"slow_lr": 10**400}, "takes a number that a float32 can hold"),
        ({"beta": float("nan")}, "takes a number that a float32 can hold"),
        ({"fast_nonlinearity": []}, "takes a number or a word"),
        ({"length": True}, "takes a whole number"),
        ({"seed": 2**63}, "give a whole number below 2.*63, from 0 on"),
        ({"seed": -1}, "give a whole number below 2.*63, from 0 on"),
        ({"d_conv": 10**30}, "give a whole number below 2.*63"),
    ],
)
def test_fields_of_a_method(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        get_method("fsg", **fields)


def test_a_setting_that_an_older_torch_did_not_know(runs, tmp_path):
    shutil.copytree(runs / "fsg", tmp_path / "run")
    path = RunFolder.open(tmp_path / "run").checkpoints.paths()[-1]
    state = checkpoint.load(path)
    del state["optimizer"]["param_groups"][0]["maximize"]
    del state["optimizer"]["fastslow"]["drivers"][0]["optimizers"][0]["param_groups"][0]["maximize"]
    checkpoint.save(path, state)
    assert resume(tmp_path / "run")[0] == 0


def test_a_setting_of_another_optimizer_is_refused(runs, tmp_path):
    shutil.copytree(runs / "ste", tmp_path / "run")
    path = RunFolder.open(tmp_path / "run").checkpoints.paths()[-1]
    state = checkpoint.load(path)
    state["optimizer"]["param_groups"][0]["amsgrad"] = True
    checkpoint.save(path, state)
    code, said = resume(tmp_path / "run")
    assert code == 2
    assert "amsgrad is bool 'True', not False" in said
