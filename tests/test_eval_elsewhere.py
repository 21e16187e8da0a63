"""``fastslow eval --data folder:PATH``: other images, but the network's own normalisation and order of classes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fastslow as fs
from calling import Answer
from fastslow.deploy import shipped
from fastslow.training.config import RunConfig
from fastslow.training.loop import Trainer
from fastslow.training.run import RunFolder

N = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some of the embedded test images as files, in folders whose order isn't that of the classes."""
    root = tmp_path_factory.mktemp("images")
    images = fs.data.load("mini").test
    pixels = images.images[:N].permute(0, 2, 3, 1).numpy()  # pyright: ignore[reportAttributeAccessIssue]
    for i, (image, label) in enumerate(zip(pixels, images.labels[:N].tolist(), strict=True)):
        for part in ("train", "test"):
            place = root / part / images.classes[label]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(place / f"{i}.png")
    return root


def test_a_packed_network_sees_a_folder_as_it_was_trained(call: Callable[..., Answer], folder: Path) -> None:
    images = fs.data.load("mini").test
    engine = fs.load_packed(shipped())
    pixels = images.images[:N].permute(0, 2, 3, 1).numpy()  # pyright: ignore[reportAttributeAccessIssue]
    right = np.mean(engine(engine.preprocess(pixels)).argmax(1) == images.labels[:N].numpy())
    code, out, _ = call("eval", "shipped", "--data", f"folder:{folder}", "--json")
    assert code == 0
    assert json.loads(out)["accuracy"] == pytest.approx(100 * right)


def test_a_class_that_the_network_does_not_know_is_named(
    call: Callable[..., Answer], folder: Path, tmp_path: Path
) -> None:
    for part in ("train", "test"):
        for name in ("horse", "zebra"):
            place = tmp_path / part / name
            place.mkdir(parents=True)
            Image.new("RGB", (32, 32)).save(place / "1.png")
    code, _, err = call("eval", "shipped", "--data", f"folder:{tmp_path}")
    assert code == 2
    assert "the data has a class 'zebra', which the network doesn't know; it knows airplane, automobile" in err


def test_a_run_sees_a_folder_as_it_was_trained(call: Callable[..., Answer], folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = RunConfig(model="resnet8", method="ste", data="mini", holdout=3800, epochs=1)
    trainer = Trainer(config, fs.data.load("mini", holdout=3800), run=RunFolder.create(run, config))
    trainer.fit()
    images = fs.data.load("mini").test
    model = trainer.model.eval()
    mean, std = (np.array(v, np.float32)[:, None, None] for v in (images.mean, images.std))
    x = (images.images[:N].numpy().astype(np.float32) / 255 - mean) / std  # pyright: ignore[reportAttributeAccessIssue]
    with torch.no_grad():
        right = float((model(torch.from_numpy(x)).argmax(1) == images.labels[:N]).float().mean())
    code, out, _ = call("eval", run, "--data", f"folder:{folder}", "--json")
    assert code == 0
    assert json.loads(out)["accuracy"] == pytest.approx(100 * right)


def test_a_packed_file_trained_on_a_folder_asks_which_one_to_measure_on(
    call: Callable[..., Answer], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, packed = tmp_path / "run", tmp_path / "p.safetensors"
    config = RunConfig(model="resnet8", method="ste", data=f"folder:{folder}", weights="none", epochs=1, batch_size=30)
    Trainer(config, fs.data.load(config.data), run=RunFolder.create(run, config)).fit()
    assert call("pack", run, packed)[0] == 0
    monkeypatch.chdir(folder.parent)  # where the last part of its path is a folder
    code, _, err = call("eval", packed)
    assert code == 2
    assert f"was trained on images of its maker's, folder:{folder.name}; name a folder with --data" in err
    assert call("eval", packed, "--data", f"folder:{folder}")[0] == 0


def test_a_run_whose_config_was_edited_is_not_measured_as_something_else(
    call: Callable[..., Answer], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    config = RunConfig(model="resnet8", method="ste", data="mini", holdout=3800, epochs=1)
    Trainer(config, fs.data.load("mini", holdout=3800), run=RunFolder.create(run, config)).fit()
    file = run / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "method": None}))
    code, _, err = call("eval", run)
    assert code == 2
    assert "was trained with ste, and config.json says none: put that back" in err
