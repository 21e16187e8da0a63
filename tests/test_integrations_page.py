"""docs/integrations.md is run: its Python as it stands or as it stands in an example, its commands by their options."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fastslow as fs
import tiny
from fastslow.cli import app
from fastslow.training.run import RunFolder
from hub_server import TOKEN, Hub

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "integrations.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]
COMMANDS = [
    line
    for language, code in BLOCKS
    if language == "bash"
    for line in code.splitlines()
    if line.startswith("fastslow ")
]


def block_with(text: str) -> str:
    (found,) = (code for code in PYTHON if text in code)
    return found


def test_every_python_block_is_run_here_or_stands_in_an_example():
    run_here = ("TrackerSink(", "SummaryWriter(", "fs.push_to_hub(", "fs.from_pretrained(")
    for code in PYTHON:
        quoted = re.match(r"# from (examples/\w+\.py)\n", code)
        if quoted:
            assert code[quoted.end() :] in (ROOT / quoted[1]).read_text()
        else:
            assert any(text in code for text in run_here), code


@pytest.mark.parametrize("line", COMMANDS)
def test_every_option_exists(line):
    words = shlex.split(line, comments=True)[1:]
    text = CliRunner().invoke(app, [words[0], "--help"], env={"COLUMNS": "200"}).output
    for word in words:
        assert not word.startswith("--") or word in text


def test_links_lead_somewhere():
    links = re.findall(r"\]\((?!http|#)([^)#]+)", PAGE)
    assert len(links) >= 5
    for link in links:
        assert (ROOT / "docs" / link).exists(), link


def test_extras_exist():
    extras = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1].split("\n[")[0]
    for names in re.findall(r"fastslow\[([\w,]+)\]", PAGE):
        for name in names.split(","):
            assert f"\n{name} = " in extras


@pytest.mark.filterwarnings("ignore:::tensorboard")
def test_trackers_from_python(tmp_path, monkeypatch):
    """As written, but for fewer images."""
    monkeypatch.chdir(tmp_path)
    mini = fs.data.load("mini")
    few = dataclasses.replace(mini, train=mini.train.subset(slice(32)), test=mini.test.subset(slice(50)))
    monkeypatch.setattr(fs.data, "load", lambda name: few)
    names: dict[str, object] = {}
    exec(block_with("TrackerSink("), names)
    assert list(Path("runs/tracked/tensorboard").iterdir())
    model = tiny.Tiny()
    fs.binarize_(model, "ste")
    exec(block_with("SummaryWriter("), {"fs": fs, "model": model})
    assert list(Path("runs/own").iterdir())


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_the_hub_from_python(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    config = tiny.config(data="mini", epochs=1, batch_size=40)
    mini = fs.data.load("mini")
    few = dataclasses.replace(mini, train=mini.train.subset(slice(40)), test=mini.test.subset(slice(50)))
    fs.Trainer(config, few, run=RunFolder.create("runs/first", config)).fit()
    names: dict[str, object] = {"images": np.zeros((2, 3, 32, 32), np.float32)}
    with Hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        exec(block_with("fs.push_to_hub("), names)
        exec(block_with("fs.from_pretrained("), names)
    assert names["logits"].shape == (2, 10)  # pyright: ignore
    assert fs.binary_layers(names["model"])  # pyright: ignore
