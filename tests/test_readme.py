"""What only the README promises; test_pages.py runs it with the other pages."""

from __future__ import annotations

import re

from fastslow.cli import app
from pages import ROOT, blocks

README = (ROOT / "README.md").read_text()


def test_the_twelve_lines_are_few():
    training, _ = blocks(README, "python")
    assert len([line for line in training.code.splitlines() if line.strip()]) <= 14


def test_every_command_is_listed():
    listed = set(re.findall(r"`(\w+)`", README.split("`fastslow --help`:")[1].split("\n\n")[0]))
    assert listed == {command.name or command.callback.__name__ for command in app.registered_commands}  # pyright: ignore


def test_the_results_are_those_that_are_recorded(tmp_path):
    from fastslow.report.page import update_readme

    copy = tmp_path / "README.md"
    copy.write_text(README)
    update_readme(ROOT / "results", copy)
    assert copy.read_text() == README


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\S+)", README, re.MULTILINE):
        assert f"\n{target}:" in makefile
