"""Every page is run: its Python as it stands or as it stands in an example, its commands as far as parsing them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer.main

import fastslow as fs
import tiny
from fastslow.cli import app
from fastslow.training.run import RunFolder
from hub_server import TOKEN, Hub
from pages import PAGES, ROOT, blocks, commands, name_of

Names = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a page takes for granted, what is made smaller in it, and what must hold after it."""

    before: Callable[[pytest.MonkeyPatch], contextlib.AbstractContextManager[Names]]
    smaller: tuple[tuple[str, str], ...] = ()
    after: Callable[[Names], None] = lambda names: None


@contextlib.contextmanager
def readme(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    fs.save_weights(fs.models.resnet20(), "float.safetensors")
    images = torch.randn(8, 3, 32, 32)
    yield {"loader": [(images, torch.arange(8))] * 2, "images": images.numpy()}


def packed_as_trained(names: Names) -> None:
    expected = names["model"].eval()(torch.from_numpy(names["images"]))
    torch.testing.assert_close(torch.from_numpy(names["logits"]), expected, rtol=1e-4, atol=1e-4)


@contextlib.contextmanager
def own_loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    batch = torch.randn(8, 3, 32, 32), torch.arange(8)
    yield {"model": fs.models.resnet8(), "loader": [batch] * 2, "epochs": 1}


def taught(names: Names) -> None:
    assert fs.binary_layers(names["model"])
    assert not fs.binary_layers(names["teacher"])
    assert names["optimizer"].steps == 2
    assert names["optimizer"].param_groups[0]["lr"] < 1e-9


@contextlib.contextmanager
def deployment(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    model = fs.models.resnet8()
    fs.binarize_(model, "ste", skip=["conv1", "fc"])
    pixels = np.zeros((2, 32, 32, 3), np.uint8)
    yield {"model": model, "mean": (0.5,) * 3, "std": (0.5,) * 3, "names": list("abcdefghij"), "pixels": pixels}


def exported(names: Names) -> None:
    assert names["logits"].shape == (2, 10)
    assert Path("model.onnx").is_file()


@contextlib.contextmanager
def other_tools(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    """A few images for the mini set, a finished run, and a hub of our own."""
    from huggingface_hub import constants

    mini = fs.data.load("mini")
    few = dataclasses.replace(mini, train=mini.train.subset(slice(40)), test=mini.test.subset(slice(50)))
    config = tiny.config(data="mini", epochs=1, batch_size=40)
    fs.Trainer(config, few, run=RunFolder.create("runs/first", config)).fit()
    monkeypatch.setattr(fs.data, "load", lambda name, **_: few)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(Path("cache").absolute()))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    model = tiny.Tiny()
    fs.binarize_(model, "ste")
    with Hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield {"model": model, "images": np.zeros((2, 3, 32, 32), np.float32)}


def tracked_and_pushed(names: Names) -> None:
    assert list(Path("runs/tracked/tensorboard").iterdir())
    assert list(Path("runs/own").iterdir())
    assert names["logits"].shape == (2, 10)
    assert fs.binary_layers(names["model"])


@contextlib.contextmanager
def one_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    from torch.nn.parallel import DistributedDataParallel

    store = torch.distributed.FileStore(str(Path("store").absolute()), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield {"fs": fs, "torch": torch, "DistributedDataParallel": DistributedDataParallel}
    finally:
        torch.distributed.destroy_process_group()


SETTINGS = {
    "README.md": Setting(readme, (("range(100)", "range(1)"), ('"fsg", ', '"fsg-weight", ')), packed_as_trained),
    "docs/fsg-plus.md": Setting(own_loop, (), taught),
    "docs/deploy.md": Setting(deployment, (), exported),
    "docs/integrations.md": Setting(other_tools, (), tracked_and_pushed),
    "docs/scale.md": Setting(one_rank),
}
WITH_PYTHON = [name_of(page) for page in PAGES if blocks(page.read_text(), "python")]


@pytest.mark.filterwarnings("ignore:::tensorboard", "ignore:Use 'content=:DeprecationWarning")
@pytest.mark.parametrize("page", WITH_PYTHON)
def test_every_python_block_runs(page, tmp_path, monkeypatch):
    """In order, in one namespace. A block that opens with ``# from FILE`` stands in that file, which a test runs."""
    assert page in SETTINGS, "say here what the page's Python takes for granted, or mark it <!-- not run: reason -->"
    setting = SETTINGS[page]
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    text = (ROOT / page).read_text()
    assert all(old in text for old, _ in setting.smaller)
    with setting.before(monkeypatch) as names:
        for block in blocks(text, "python"):
            quoted = re.match(r"# from (examples/\w+\.py)\n", block.code)
            if quoted:
                assert block.code[quoted.end() :] in (ROOT / quoted[1]).read_text()
            elif block.not_run is None:
                code = block.code
                for old, new in setting.smaller:
                    code = code.replace(old, new)
                exec(compile("\n" * (block.line - 1) + code, page, "exec"), names)
        setting.after(names)


def test_a_block_can_be_marked():
    text = "<!-- not run: it is the output -->\n```python\n1\n```\n\n```python\n2\n```\n"
    marked, plain = blocks(text, "python")
    assert (marked.not_run, plain.not_run, plain.line) == ("it is the output", None, 7)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_says_its_language_and_json_is_json(page):
    text = page.read_text()
    assert text.count("```") == 2 * len(blocks(text)), "a fence that this test can't read"
    for block in blocks(text, "json"):
        json.loads(block.code)


COMMANDS = [(name_of(page), line) for page in PAGES for line in commands(page.read_text())]


def test_commands_are_found():
    assert {"README.md", "docs/integrations.md", "docs/reproduce.md", "docs/runs.md", "docs/scale.md"} <= {
        page for page, _ in COMMANDS
    }
    assert any(page == "docs/scale.md" and "--nproc-per-node" not in line for page, line in COMMANDS)


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_every_command_parses(page, line):
    """The commands themselves are run in test_cli.py and others; here nothing may be misspelt or of the wrong type."""
    words = [word for word in shlex.split(line, comments=True)[1:] if word not in ("...", "--help")]
    group = typer.main.get_command(app)
    assert not words or words[0] in group.commands  # pyright: ignore
    if words[1:]:  # a bare name in a sentence is no whole command
        group.commands[words[0]].make_context(words[0], words[1:])  # pyright: ignore


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text()):
        assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_extras_exist(page):
    extras = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1].split("\n[")[0]
    for names in re.findall(r"fastslow\[([\w,]+)\]", page.read_text()):
        for name in names.split(","):
            assert f"\n{name} = " in extras
