"""The command line under torchrun: several processes, one of them killed, started again, resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image

import tiny
from fastslow import data
from fastslow.training.loop import Trainer
from fastslow.training.run import RunFolder

SCRIPT = str(Path(tiny.__file__))
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    pictures = tiny.images(60, 3, size=8, classes=2)
    for i, (image, label) in enumerate(zip(pictures.images, pictures.labels, strict=True)):
        path = folder / f"class{int(label)}" / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    return folder


def command(images: Path, run: Path, model: str, method: str) -> list[str]:
    """Six steps an epoch. Without `--` torchrun would take --run for an option of its own."""
    fields = [word for name, value in tiny.METHODS[method].items() for word in ("--set", f"{name}={value}")]
    options = ["--model", model, "--method", method, *fields, "--epochs", "3", "--batch-size", "8", "--device", "cpu"]
    saving = ["--checkpoint-every", "4steps", "--run", str(run), "--json"]
    return ["--", SCRIPT, "cli", "train", "--data", f"folder:{images}", *options, *saving]


def start(arguments: list[str], *options: str, kill: str = "") -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TINY_KILL": kill}
    words = [*TORCHRUN, "--monitor-interval", "0.1", *options, *arguments]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return RunFolder.open(run).checkpoints.load_newest()[1]["model"]


@pytest.mark.slow
def test_a_killed_rank_is_started_again_and_the_run_finishes(images, tmp_path):
    run = tmp_path / "run"
    process = start(command(images, run, "bare", "ste"), "--max-restarts", "1", kill="1:11")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["run"] == str(run)
    assert "resumed at step 8 from" in err
    assert err.count("run folder") == 1
    # Without BatchNorm and dropout, one process that was never disturbed gives the same.
    config = RunFolder.open(run).config()
    alone = Trainer(config, data.load(config.data))
    alone.fit()
    assert alone.done == 18
    for key, value in alone.model.state_dict().items():
        torch.testing.assert_close(weights(run)[key], value, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_with_batch_norm_and_dropout_bit_for_bit_whichever_rank_dies(images, tmp_path):
    whole = start(command(images, tmp_path / "whole", "tiny", "fsg-weight"))
    _, err = whole.communicate(timeout=300)
    assert whole.returncode == 0, err
    for kill in ("0:10", "1:15"):
        run = tmp_path / kill.replace(":", "-")
        process = start(command(images, run, "tiny", "fsg-weight"), "--max-restarts", "1", kill=kill)
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert "resumed at step" in err
        states = [RunFolder.open(path).checkpoints.load_newest()[1] for path in (run, tmp_path / "whole")]
        tiny.assert_same_state(*states)


@pytest.mark.slow
def test_ctrl_c_leaves_a_run_that_goes_on(images, tmp_path):
    run = tmp_path / "run"
    arguments = command(images, run, "tiny", "ste")
    arguments[arguments.index("--epochs") + 1] = "3000"
    process = start(arguments)
    while process.poll() is None and not (run / "metrics.jsonl").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert err.count("fastslow: stopped by SIGINT after step ") == 1
    assert f"saved: continue with `fastslow resume {run}`" in err
    assert RunFolder.open(run).checkpoints.paths()
    # It goes on in two processes, as long as it is let.
    process = start(["--", SCRIPT, "cli", "resume", str(run), "--device", "cpu"])
    seen = ""
    while "resumed at step" not in seen or "epoch " not in seen:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line, seen
        seen += line
    process.terminate()
    _, err = process.communicate(timeout=120)
    assert err.count("fastslow: stopped by SIGTERM after step ") == 1


@pytest.mark.slow
def test_the_module_under_torchrun_says_what_is_wrong_in_a_sentence(tmp_path):
    options = [
        "-m",
        "--",
        "fastslow",
        "train",
        "--model",
        "resnet8",
        "--data",
        "mini",
        "--method",
        "ste",
        "--batch-size",
    ]
    process = subprocess.run(
        [*TORCHRUN, *options, "1", "--run", str(tmp_path / "run"), "--device", "cpu"], capture_output=True, text=True
    )
    assert process.returncode != 0
    assert "fastslow: a batch of 1 images can't be shared by 2 processes" in process.stderr
    assert not (tmp_path / "run").exists()
