"""The public surface: its doctests run, and every name is documented, typed, and loaded only when it is used."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import inspect
import re
import subprocess
import sys
from types import ModuleType

import pytest

import fastslow as fs
from pages import ROOT

SOURCE = ROOT / "src"
API = (ROOT / "docs" / "api.md").read_text()
LISTED = re.findall(r"^::: (\S+)$", API, re.MULTILINE)


def _module_of(path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


WITH_DOCTESTS = [_module_of(path) for path in sorted(SOURCE.rglob("*.py")) if ">>> " in path.read_text()]


@pytest.mark.parametrize("module", WITH_DOCTESTS)
def test_doctests(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(importlib.import_module(module))
    assert found.attempted
    assert not found.failed


def _resolve(dotted: str) -> object:
    """The object that a page names, by the longest part of the name that is a module."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            value = getattr(value, part)
        return value
    raise AssertionError(dotted)


def test_every_public_name_is_on_the_api_page():
    for name in fs.__all__:
        heading = name.replace("_", r"\_") if name.startswith("__") else name
        assert f"::: fastslow.{name}\n" in API or f"### fastslow.{heading}\n" in API, name


def test_every_network_is_on_the_api_page():
    own = [name for name in fs.models.list_models() if hasattr(fs.models, name)]  # other tests register theirs
    assert len(own) >= 14
    assert all(f"`{name}`" in API for name in own)


@pytest.mark.parametrize("name", LISTED)
def test_every_listed_name_exists_and_has_a_docstring(name):
    assert len((inspect.getdoc(_resolve(name)) or "").strip()) > 10


def _functions(owner: object) -> list[tuple[str, object]]:
    """A function itself; of a class its public methods, properties and constructor; of a module what it offers."""
    if inspect.isclass(owner):
        members = {name: value for name, value in vars(owner).items() if not name.startswith("_") or name == "__init__"}
        functions = [
            (name, getattr(value, "__func__", None) or getattr(value, "fget", None) or value)
            for name, value in members.items()
        ]
        if dataclasses.is_dataclass(owner):  # its constructor is generated from annotated fields
            functions = [(name, value) for name, value in functions if name != "__init__"]
        return [(f"{owner.__name__}.{name}", value) for name, value in functions if inspect.isfunction(value)]
    if isinstance(owner, ModuleType):
        return []
    return [(getattr(owner, "__name__", "?"), owner)]


@pytest.mark.parametrize("name", LISTED)
def test_every_public_function_is_typed(name):
    """Every parameter and every return value has a type; `make lint` sees to it that it is the right one."""
    for label, function in _functions(_resolve(name)):
        signature = inspect.signature(inspect.unwrap(function))  # pyright: ignore
        untyped = [p.name for p in signature.parameters.values() if p.annotation is p.empty]
        assert not set(untyped) - {"self", "cls"}, label
        assert signature.return_annotation is not signature.empty, label


def test_the_marker_of_a_typed_package_is_there():
    assert (SOURCE / "fastslow" / "py.typed").is_file()


def test_importing_the_package_and_the_engine_loads_no_torch():
    code = "import sys, fastslow as fs; fs.load_packed, fs.Engine; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_newest_version_is_in_the_changelog():
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == fs.__version__
