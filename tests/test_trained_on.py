"""A run remembers its images: their classes stay with the network, and a run isn't continued on others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

import fastslow as fs
from calling import Answer
from fastslow.data import FileSet, ImageSet
from fastslow.training.loop import Trainer
from fastslow.training.run import RunError, RunFolder
from fastslow.training.trained_on import as_json, description, difference

CAT, DOG = (40, 40, 60), (200, 180, 190)  # colours


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    for name, colour in (("cat", CAT), ("dog", DOG)):
        (folder / name).mkdir(parents=True)
        for i in range(10):
            Image.new("RGB", (32, 32), tuple(c + i for c in colour)).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture
def trained(pictures: Path, tmp_path: Path) -> Trainer:
    data = f"folder:{pictures}"
    config = fs.RunConfig(model="resnet8", method="ste", data=data, weights="none", epochs=2, batch_size=6)
    trainer = Trainer(config, fs.data.load(data), run=RunFolder.create(tmp_path / "run", config))
    trainer.fit()
    return trainer


def test_a_run_packs_with_the_classes_it_was_trained_on(
    call: Callable[..., Answer], trained: Trainer, pictures: Path, tmp_path: Path
) -> None:
    (pictures / "cat").rename(pictures / "zebra")  # behind the dogs
    answer = call("eval", tmp_path / "run")
    assert answer.code == 2
    assert "the data has a class 'zebra', which the network doesn't know; it knows cat, dog" in answer.err
    assert call("pack", tmp_path / "run", tmp_path / "packed.safetensors").code == 0
    assert fs.load_packed(tmp_path / "packed.safetensors").info.classes == ("cat", "dog")


def test_a_trained_run_needs_its_images_no_more(
    call: Callable[..., Answer], trained: Trainer, pictures: Path, tmp_path: Path
) -> None:
    before = json.loads(call("eval", tmp_path / "run", "--json").out)
    elsewhere = pictures.rename(tmp_path / "elsewhere")
    assert call("pack", tmp_path / "run", tmp_path / "packed.safetensors").code == 0
    assert call("summary", tmp_path / "run").code == 0
    assert json.loads(call("eval", tmp_path / "run", "--data", f"folder:{elsewhere}", "--json").out) == before
    answer = call("eval", tmp_path / "run")
    assert answer.code == 2
    assert f"{pictures} is no folder" in answer.err
    assert answer.err.rstrip().endswith("if the images have moved, name them with --data")


def test_a_run_is_not_continued_on_other_images(
    call: Callable[..., Answer], trained: Trainer, pictures: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    (run / "result.json").unlink()  # as if it had been stopped at its last checkpoint
    added = pictures / "cat" / "more.png"
    Image.new("RGB", (32, 32)).save(added)
    answer = call("resume", run)
    assert answer.code == 2
    assert f"the run in {run} was begun with other images (images.json): train images 18 then, 19 now" in answer.err
    added.unlink()
    for old, new in (("cat", "other"), ("dog", "cat"), ("other", "dog")):  # each called as the other
        (pictures / old).rename(pictures / new)
    answer = call("resume", run)
    assert answer.code == 2
    assert "a training image, its label or its name is another; put them back" in answer.err
    for old, new in (("cat", "other"), ("dog", "cat"), ("other", "dog")):
        (pictures / old).rename(pictures / new)
    (pictures / "cat").rename(pictures / "zebra")
    answer = call("resume", run)
    assert answer.code == 2
    assert "of the classes 'cat' is gone and 'zebra' is new; put them back, or begin another run" in answer.err
    (pictures / "zebra").rename(pictures / "cat")
    (tmp_path / "elsewhere").mkdir()
    elsewhere = pictures.rename(tmp_path / "elsewhere" / "pictures")  # its name is part of the run's key
    answer = call("resume", run)
    assert answer.code == 2
    assert "if the images have moved, write where to into `data` of the run's config.json" in answer.err
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "data": f"folder:{elsewhere}"}))
    assert call("resume", run).code == 0


def test_a_run_begun_before_images_were_kept_takes_them_as_they_are(
    call: Callable[..., Answer], trained: Trainer, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    was = (run / "images.json").read_text()
    (run / "images.json").unlink()
    assert call("eval", run).code == 0
    (run / "result.json").unlink()
    assert call("resume", run).code == 0
    assert (run / "images.json").read_text() == was


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "can't be read"),
        ("[]", "holds no JSON object"),
        ("{}", "can't be used: shape, mean and std are lists of three numbers"),
        ('{"shape": [3, 8, 8], "mean": [0, 0, 0], "std": [1.0, 1.0, 1.0], "classes": ["a"]}', "lists of three numbers"),
        ('{"shape": [3, 8, 8], "mean": [0.5, 0.5, 0.5], "std": [1.0, 1.0, 1.0], "classes": "ab"}', "a list of names"),
    ],
)
def test_a_broken_file_is_named(content: str, sentence: str, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", fs.RunConfig(model="resnet8", data="mini"))
    assert run.images() is None
    (tmp_path / "run" / "images.json").write_text(content)
    with pytest.raises(RunError, match=sentence) as caught:
        run.images()
    assert "images.json" in str(caught.value)
    assert str(caught.value).endswith("put back what it held; or delete it, and the data is taken as it is now")


def images(classes: tuple[str, ...], n: int = 4, side: int = 8) -> ImageSet:
    pixels = torch.zeros(n, 3, side, side, dtype=torch.uint8)
    return ImageSet(images=pixels, labels=torch.zeros(n, dtype=torch.int64), classes=classes, mean=(0, 0, 0))


def test_what_is_written_is_what_is_read() -> None:
    few = images(("a", "b"))
    held = json.loads(json.dumps(as_json(few, few)))
    assert description(held) == fs.data.Description(few.shape, few.classes, few.mean, few.std)
    assert difference(held, as_json(few, few)) is None


@pytest.mark.parametrize(
    ("now", "sentence"),
    [
        (images(("b", "a")), "the classes had another order"),
        (images(("a",)), "of the classes 'b' is gone"),
        (images(("a", "b", "x", "y", "z", "w")), "of the classes 'w', 'x', 'y' and 1 more are new"),
        (images(("a", "b"), side=9), "shape [3, 8, 8] then, [3, 9, 9] now"),
    ],
)
def test_what_has_changed_is_said(now: ImageSet, sentence: str) -> None:
    few = images(("a", "b"))
    assert difference(as_json(few, few), as_json(now, few)) == sentence


def test_one_pixel_and_one_label_are_noticed() -> None:
    few, pixel, label = (images(("a", "b")) for _ in range(3))
    pixel.images[3, 2, 7, 7] = 1
    label.labels[0] = 1
    held = as_json(few, few)
    assert difference(held, as_json(pixel, few)) == "a training image, its label or its name is another"
    assert difference(held, as_json(few, label)) == "a test image, its label or its name is another"
    older = {name: value for name, value in held.items() if not name.endswith("sha256")}
    assert difference(older, as_json(pixel, few)) is None, "a run begun before they were written"


def test_files_are_told_apart_by_their_names_wherever_they_lie() -> None:
    def listed(*files: str) -> FileSet:
        return FileSet(files=files, labels=torch.zeros(len(files), dtype=torch.int64), classes=("a", "b"))

    here, there, renamed = (
        listed("/x/a/1.png", "/x/a/2.png"),
        listed("/y/a/1.png", "/y/a/2.png"),
        listed("/x/a/1.png", "/x/a/3.png"),
    )
    held = as_json(here, here)
    assert difference(held, as_json(there, there)) is None
    assert difference(held, as_json(renamed, here)) is not None
