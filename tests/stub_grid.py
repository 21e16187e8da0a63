"""A grid whose workers only pretend to train, for the tests of what a grid does with them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fastslow.reproduce import Grid, PlannedRun
from fastslow.training.config import RunConfig

# A stand-in for `fastslow resume`: an epoch takes 20 ms, an epoch file is its checkpoint. {mode} may make it fail.
STUB = """
import json, pathlib, signal, sys, time
folder, mode = pathlib.Path(sys.argv[1]), sys.argv[2]
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
config = json.loads((folder / "config.json").read_text())
(folder / "starts").open("a").write("x")
metrics = folder / "metrics.jsonl"
rows = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
(folder / "checkpoints").mkdir(exist_ok=True)
while len(rows) < config["epochs"]:
    time.sleep(0.02)
    if mode == "diverge" or mode == "fail" or (mode == "hang" and rows):
        while mode == "hang" and not stop:
            time.sleep(0.01)
        if not stop:
            print("fastslow: " + ("training diverged: the loss is nan" if mode == "diverge" else "out of luck"))
            sys.exit(2)
    rows.append({"epoch": len(rows) + 1, "test_accuracy": 50.0 + len(rows), "train_loss": 1 / 3, "seconds": 0.5})
    metrics.open("a").write(json.dumps(rows[-1]) + "\\n")
    if stop:
        sys.exit(143)
last = rows[-1]["test_accuracy"]
result = {"test_accuracy": last, "best_test_accuracy": last, "best_epoch": len(rows), "train_loss": 0.3, "seconds": 1.0}
result |= {"config": config, "key": "?", "conditions": {"device": "stub"}, "curve": rows}
(folder / "result.json").write_text(json.dumps(result))
"""


def runs_of(count: int, epochs: int = 2) -> list[PlannedRun]:
    config = RunConfig(model="resnet8", data="mini", method="ste", epochs=epochs)
    return [
        PlannedRun(f"resnet8/adam/ste/seed{seed}", RunConfig(**{**config.to_dict(), "seed": seed}))
        for seed in range(1, count + 1)
    ]


@pytest.fixture(name="make_grid")
def grid_maker(tmp_path: Path) -> Callable[..., Grid]:
    stub = tmp_path / "stub.py"
    stub.write_text(STUB)

    def make(runs: list[PlannedRun], mode: str = "well", **options: object) -> Grid:
        return Grid(
            runs,
            results=tmp_path / "results",
            folders=tmp_path / "runs",
            device="cpu",
            pause=0.01,
            command=lambda folder: [sys.executable, "-I", str(stub), str(folder), mode],
            **options,  # pyright: ignore[reportArgumentType]
        )

    return make


@pytest.fixture(name="weights")
def weights_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where names of weights are looked up."""
    folder = tmp_path / "weights"
    folder.mkdir()
    monkeypatch.setenv("FASTSLOW_WEIGHTS", str(folder))
    return folder


def run_cli(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    from fastslow import cli

    assert cli._run(list(arguments)) == 0
    return capsys.readouterr().out
