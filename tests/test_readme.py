"""The README is run: its Python blocks as they stand, its commands by name."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import fastslow as fs
from fastslow.cli import app

README = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)


def test_the_twelve_lines_and_the_deployment_run_as_written(tmp_path, monkeypatch):
    """With two small batches for the user's loader, one epoch for a hundred, and small hypernetworks for "fsg"."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    fs.save_weights(fs.models.resnet20(), "float.safetensors")
    images = torch.randn(8, 3, 32, 32)
    loader = [(images, torch.arange(8)), (images, torch.arange(8))]
    names: dict[str, object] = {"loader": loader, "images": images.numpy()}
    training, deployment = (code for language, code in BLOCKS if language == "python")
    assert len([line for line in training.splitlines() if line.strip()]) <= 14
    quick = training.replace("range(100)", "range(1)").replace('"fsg", ', '"fsg-weight", ')
    assert quick != training
    exec(quick, names)
    assert Path("model.safetensors").is_file()
    exec(deployment, names)
    expected = names["model"].eval()(images)  # pyright: ignore
    torch.testing.assert_close(torch.from_numpy(names["logits"]), expected, rtol=1e-4, atol=1e-4)  # pyright: ignore


COMMANDS = [
    line
    for language, code in BLOCKS
    if language == "bash"
    for line in code.splitlines()
    if line.startswith("fastslow ")
]


@pytest.mark.parametrize("line", COMMANDS)
def test_every_option_that_the_readme_names_exists(line):
    """The commands themselves are run in test_cli.py; here nothing may be misspelt."""
    words = shlex.split(line, comments=True)[1:]
    text = CliRunner().invoke(app, [words[0], "--help"], env={"COLUMNS": "200"}).output
    for word in words:
        if word.startswith("--"):
            assert word in text


def test_every_command_is_listed():
    listed = set(re.findall(r"`(\w+)`", README.split("`fastslow --help`:")[1].split("\n\n")[0]))
    assert listed == {command.name or command.callback.__name__ for command in app.registered_commands}  # pyright: ignore


def test_links_lead_somewhere():
    for link in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (Path(__file__).parent.parent / link).exists(), link


def test_the_results_are_those_that_are_recorded(tmp_path):
    from fastslow.report.page import update_readme

    copy = tmp_path / "README.md"
    copy.write_text(README)
    update_readme(Path(__file__).parent.parent / "results", copy)
    assert copy.read_text() == README


def test_make_targets_exist():
    makefile = (Path(__file__).parent.parent / "Makefile").read_text()
    for target in re.findall(r"^make (\S+)", README, re.MULTILINE):
        assert f"\n{target}:" in makefile
