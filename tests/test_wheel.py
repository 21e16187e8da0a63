"""What a user installs: a source distribution and a wheel that are complete, and run in an empty environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest
import torch

import fastslow as fs
from pages import ROOT

SMOKE = """
import importlib.util, sys
import numpy as np
import fastslow as fs

assert importlib.util.find_spec("torch") is None
engine = fs.load_packed("model.safetensors")
np.save("logits.npy", engine(np.load("images.npy")))
print(fs.__version__, fs.__file__, engine.backend)
"""


def _run(*command: str | Path, cwd: Path, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, **options)  # pyright: ignore


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="environments have another layout there")
def test_what_is_installed(tmp_path):
    """One test, since it is built once."""
    source, wheel = _build(tmp_path)
    _the_source_distribution_holds_the_tests_and_what_they_read(source)
    _the_wheel_holds_what_is_used_and_no_more(wheel)
    _the_wheel_runs_in_an_empty_environment(wheel, tmp_path)


def _build(folder: Path) -> tuple[Path, Path]:
    """From a copy without anything that was built before, and the wheel from the source distribution."""
    left = ("*.so", "*.egg-info", "__pycache__", "build", "dist", "site", "runs")
    shutil.copytree(ROOT, folder / "copy", ignore=shutil.ignore_patterns(".*", *left))
    done = _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, cwd=folder / "copy")
    assert done.returncode == 0, done.stdout + done.stderr
    (source,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return source, wheel


def _the_wheel_holds_what_is_used_and_no_more(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    package = ROOT / "src" / "fastslow"
    files = {f"fastslow/{path.relative_to(package).as_posix()}" for path in package.rglob("*") if path.is_file()}
    expected = {name for name in files if "__pycache__" not in name and not name.endswith(".so")}
    assert expected <= held  # among them pretrained weights, mini set, css, kernels' sources, py.typed
    libraries = {name.split(".")[0] for name in held if name.endswith((".so", ".pyd"))}
    assert libraries == {"fastslow/deploy/_native", "fastslow/hypernets/_native"}
    others = {name for name in held - expected if ".dist-info/" not in name and not name.endswith((".so", ".pyd"))}
    assert not others


def _the_source_distribution_holds_the_tests_and_what_they_read(source: Path) -> None:
    with tarfile.open(source) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    wanted = ("tests/conftest.py", "tests/tiny.py", "docs/tutorial.ipynb", "Makefile", "constraints.txt", "setup.py")
    assert {*wanted, "CHANGELOG.md", "README.md", "mkdocs.yml", "src/fastslow/hypernets/csrc/common.h"} <= held


def _lend(package: str, environment: Path) -> None:
    """Copy an installed package into an environment: an installation that needs no network."""
    (site,) = environment.glob("lib/python*/site-packages")
    for file in distribution(package).files or ():
        if ".." not in file.parts and file.suffix != ".pyc":
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(str(file.locate()), site / file)


def _the_wheel_runs_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """With numpy and safetensors and nothing else, and with the results of the network in torch."""
    model = fs.models.resnet8().eval()
    fs.binarize_(model, "ste", skip=["conv1", "fc"])
    fs.pack(model, tmp_path / "model.safetensors")
    images = torch.randn(3, 3, 32, 32)
    np.save(tmp_path / "images.npy", images.numpy())

    environment = tmp_path / "environment"
    venv.create(environment)
    python = environment / "bin" / "python"
    for package in ("numpy", "safetensors"):
        _lend(package, environment)
    install = _run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", wheel, cwd=tmp_path)
    assert install.returncode == 0, install.stdout + install.stderr
    smoke = _run(python, "-c", SMOKE, cwd=tmp_path)
    assert smoke.returncode == 0, smoke.stderr
    version, place, backend = smoke.stdout.split()
    assert version == fs.__version__
    assert Path(place).is_relative_to(environment)
    assert backend == fs.load_packed(tmp_path / "model.safetensors").backend
    with torch.no_grad():
        expected = model(images).numpy()
    np.testing.assert_allclose(np.load(tmp_path / "logits.npy"), expected, rtol=1e-4, atol=1e-4)

    command = _run(environment / "bin" / "fastslow", "methods", cwd=tmp_path)
    assert command.returncode == 2
    assert "pip install 'fastslow[train]'" in command.stderr
    assert "Traceback" not in command.stderr
