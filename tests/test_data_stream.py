"""Images that stay on disk: the same for any number of workers, from any batch on, and broken files named."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fastslow as fs
import tiny
from fastslow import cli
from fastslow.data import DataError, FileSet, StreamedBatches, batches_of, check_files, default_workers, load
from fastslow.data.stream import Item, crop_box, decode
from fastslow.training.loop import Trainer
from fastslow.training.ranks import Ranks
from fastslow.training.run import RunFolder


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """Two classes of JPEG and PNG files of many sizes: a bright and a dark half, on a side that tells the class."""
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for split, count in (("train", 26), ("val", 8)):
        for i in range(count):
            height, width = random.integers(20, 60, 2)
            picture = random.integers(0, 90, (height, width, 3), dtype=np.uint8)
            half = slice(0, height // 2) if i % 2 else slice(height // 2, height)
            picture[half] += 150
            path = folder / split / f"class{i % 2}" / f"{i}.{'jpg' if i % 3 else 'png'}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(path)
    return folder


def batches(images: Path, **options) -> StreamedBatches:
    found = batches_of(load(f"stream:{images}", size=16).train, 4, seed=3, shuffle=True, augment=True, **options)
    assert isinstance(found, StreamedBatches)
    return found


def assert_equal(one, other) -> None:
    one, other = list(one), list(other)
    assert len(one) == len(other) > 0
    for (x, y), (a, b) in zip(one, other, strict=True):
        assert torch.equal(x, a)
        assert torch.equal(y, b)


def test_a_set_of_files(images):
    data = load(f"stream:{images}")
    assert isinstance(data.train, FileSet)
    assert (len(data.train), len(data.test), data.train.classes) == (26, 8, ("class0", "class1"))
    assert data.train.shape == (3, 224, 224)
    assert [f"class{label}" for label in data.train.labels] == [Path(file).parent.name for file in data.train.files]
    held = load(f"stream:{images}", holdout=6)
    assert held.train.files + held.test.files == data.train.files
    with pytest.raises(DataError, match="'stream:' names no folder: write stream:PATH"):
        load("stream:")
    with pytest.raises(ValueError, match="size must be at least 1 pixel, not 0"):
        load(f"stream:{images}", size=0)


def test_workers_and_starts_change_nothing(images):
    whole = list(batches(images, workers=0).epoch(1))
    assert [len(y) for _, y in whole] == [4] * 6 + [2]
    assert whole[0][0].shape == (4, 3, 16, 16)
    assert whole[0][0].dtype == torch.float32
    assert_equal(batches(images, workers=2).epoch(1), whole)
    assert_equal(batches(images, workers=1).epoch(1, start=5), whole[5:])
    assert not torch.equal(next(batches(images, workers=0).epoch(2))[0], whole[0][0])
    assert len(list(batches(images, workers=0, drop_last=True).epoch())) == 6
    with pytest.raises(ValueError, match="start must be a batch index from 0 to 7, not 8"):
        batches(images).epoch(0, 8)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        StreamedBatches(load(f"stream:{images}").train, 0)  # pyright: ignore[reportArgumentType]


def test_ranks_share_each_batch(images):
    whole = batches(images, workers=0).epoch(0)
    shares = zip(*(batches(images, workers=0, share=Ranks(r, 3).share).epoch(0) for r in range(3)), strict=True)
    joined = ((torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])) for parts in shares)
    assert_equal(joined, whole)


def test_cutout_blanks_squares(images):
    pairs = zip(batches(images, workers=0).epoch(0), batches(images, workers=0, cutout=3).epoch(0), strict=True)
    for (x, y), (holed, same) in pairs:
        assert torch.equal(y, same)
        blank = (holed == 0).all(1)
        assert torch.equal(holed, x * ~blank[:, None])
        assert ((blank.sum((1, 2)) >= 4) & (blank.sum((1, 2)) <= 9)).all()


def test_every_image_is_shown_once_and_evaluation_is_in_order(images):
    train = load(f"stream:{images}", size=8).train
    plan, crops, flips = batches(images).plan(0)
    assert sorted(plan.tolist()) == list(range(26))
    assert crops is not None
    assert crops.shape == (26, 4)
    assert 0 < flips.sum() < 26
    labels = torch.cat([y for _, y in batches_of(train, 5, workers=0).epoch()])
    assert torch.equal(labels, train.labels)


def test_crops_lie_inside_and_have_the_stated_shape():
    generator = torch.Generator().manual_seed(0)
    areas = []
    for width, height in ((50, 50), (500, 20), (1, 1), (20, 300)):
        for numbers in torch.rand(200, 4, generator=generator, dtype=torch.float64).tolist():
            left, upper, right, lower = crop_box(width, height, tuple(numbers))
            assert 0 <= left < right <= width + 1e-9
            assert 0 <= upper < lower <= height + 1e-9
            if width == height == 50:
                areas.append((right - left) * (lower - upper) / 2500)
    assert 0.07 < min(areas) < 0.15
    assert max(areas) > 0.85
    assert crop_box(256, 256, None) == (16, 16, 240, 240)
    assert crop_box(512, 256, None) == (144, 16, 368, 240)


def test_a_crop_shows_what_it_says(tmp_path):
    picture = np.zeros((40, 40, 3), np.uint8)
    picture[:20, :20] = (200, 0, 0)
    Image.fromarray(picture).save(tmp_path / "a.png")
    corner = (0.17 / 0.92, 0.5, 0.0, 0.0)  # a quarter of the area, a square, from the upper left
    shown = decode(Item(str(tmp_path / "a.png"), corner, False), 10)
    assert shown.shape == (3, 10, 10)
    assert (shown[0, :8, :8] == 200).all()  # resizing reads a little beyond the edge
    whole = (1.0, 0.5, 0.0, 0.0)
    left = decode(Item(str(tmp_path / "a.png"), whole, False), 10)
    assert np.array_equal(left[:, :, ::-1], decode(Item(str(tmp_path / "a.png"), whole, True), 10))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_file_is_named(images, tmp_path, workers):
    for label in ("a", "b"):
        for i in range(4):
            path = tmp_path / "train" / label / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8)).save(path)
    (tmp_path / "train" / "b" / "2.png").write_bytes(b"no image")
    (tmp_path / "train" / "a" / "1.png").write_bytes((tmp_path / "train" / "a" / "0.png").read_bytes()[:20])
    (tmp_path / "test").symlink_to(tmp_path / "train")
    found = batches_of(load(f"stream:{tmp_path}", size=8).train, 8, workers=workers)
    with pytest.raises(DataError, match=r"\d.png is not a readable image \(.*\): repair or remove it") as caught:
        list(found.epoch())
    assert "Traceback" not in str(caught.value)
    wrong = check_files(load(f"stream:{tmp_path}", size=8).train, workers)  # pyright: ignore[reportArgumentType]
    assert sorted(sentence.partition(" ")[0] for sentence in wrong) == [
        str(tmp_path / "train" / name) for name in ("a/1.png", "b/2.png")
    ]


@pytest.mark.parametrize("kept", ["an epoch", "an exception"])
def test_a_program_ends_although_it_keeps(kept, images, tmp_path):
    """Workers ignore signals, and Python waits for its processes at the end."""
    if kept == "an exception":
        images = shutil.copytree(images, tmp_path / "images")
        sorted((images / "train" / "class1").iterdir())[-1].write_bytes(b"no image")
    script = tmp_path / "script.py"
    script.write_text(
        "from fastslow.data import DataError, batches_of, load\n"
        "if __name__ == '__main__':\n"
        f"    epoch = batches_of(load('stream:{images}', size=16).train, 4, workers=1).epoch()\n"
        "    next(epoch)\n"
        f"    if {kept == 'an exception'}:\n"
        "        try:\n"
        "            list(epoch)\n"
        "        except DataError as error:\n"
        "            kept = error\n"
        "    print('done')\n"
    )
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=True)
    assert ended.stdout == "done\n"
    assert "Traceback" not in ended.stderr  # Python's resource tracker may warn of a semaphore that is gone already


@pytest.mark.parametrize("then", ["kept", "raised"])
def test_a_program_ends_although_a_worker_was_killed(then, images, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing\n"
        "from fastslow.data import DataError, batches_of, load\n"
        "if __name__ == '__main__':\n"
        f"    epoch = batches_of(load('stream:{images}', size=16).train, 1, workers=2).epoch()\n"
        "    next(epoch)\n"
        "    for worker in multiprocessing.active_children():\n"
        "        worker.kill()\n"
        "    try:\n"
        "        list(epoch)\n"
        "    except DataError as error:\n"
        "        kept = error\n"
        "        print(error, flush=True)\n"
        f"        if {then == 'raised'}:\n"
        "            raise\n"
    )
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=False)
    assert ended.stdout.startswith("a process that decodes images was killed")
    assert ended.returncode == (0 if then == "kept" else 1)


def is_running(process: int) -> bool:
    """Not one that has ended and that nobody has asked for its exit code."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_workers_do_not_outlive_a_killed_program(images, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, time\n"
        "from fastslow.data import batches_of, load\n"
        "if __name__ == '__main__':\n"
        f"    epoch = batches_of(load('stream:{images}', size=16).train, 4, workers=2).epoch()\n"
        "    next(epoch)\n"
        "    print(*[worker.pid for worker in multiprocessing.active_children()], flush=True)\n"
        "    time.sleep(100)\n"
    )
    command = [sys.executable, str(script)]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert program.stdout is not None
    workers = [int(word) for word in program.stdout.readline().split()]
    program.kill()
    program.wait()
    program.stdout.close()
    assert len(workers) == 2
    until = time.monotonic() + 60
    while any(map(is_running, workers)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(map(is_running, workers))


def test_workers_by_default(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 32)
    assert (default_workers(), default_workers(8), default_workers(100)) == (8, 4, 1)


def test_training_resumes_in_the_middle_of_an_epoch(images, tmp_path):
    config = tiny.config("fsg-weight", model="tiny", batch_size=4, epochs=2, workers=0)
    dataset = load(f"stream:{images}", size=16)
    whole = Trainer(config, dataset)
    whole.fit()
    stopped = Trainer(config, dataset, run=RunFolder.create(tmp_path / "run", config))
    tiny.step(stopped, 9)
    stopped.save()
    continued = Trainer(config, dataset, run=stopped.run)
    continued.resume()
    assert continued.done == 9
    continued.fit()
    tiny.assert_same_state(whole.state_dict(), continued.state_dict())


def call(monkeypatch, capsys, *argv: str) -> str:
    monkeypatch.setattr(sys, "argv", ["fastslow", *argv])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    captured = capsys.readouterr()
    assert stop.value.code == 0, captured.err
    return captured.out.splitlines()[-1]


def train(images: Path, run: Path, model: str, *options: str) -> list[str]:
    small = ["--epochs", "1", "--batch-size", "8", "--image-size", "32", "--workers", "1", "--device", "cpu"]
    where = ["--data", f"stream:{images}", "--run", str(run), "--json"]
    return ["train", "--model", model, *options, *small, *where]


def test_a_stream_from_the_command_line(images, tmp_path, monkeypatch, capsys):
    run = tmp_path / "run"
    out = call(monkeypatch, capsys, *train(images, run, "tiny", "--method", "ste"))
    assert json.loads(out)["run"] == str(run)
    assert RunFolder.open(run).config().image_size == 32
    measured = json.loads(call(monkeypatch, capsys, "eval", str(run), "--device", "cpu", "--json"))
    assert measured["n"] == 8
    assert measured["accuracy"] == json.loads(out)["test_accuracy"]
    assert "26 training and 8 test images in 2 classes" in call(monkeypatch, capsys, "data", f"stream:{images}")


@pytest.mark.slow
def test_resnet18_with_patch_tokens_on_a_stream(images, tmp_path, monkeypatch, capsys):
    """The ImageNet network, each large layer as a few hundred tokens; trained, then packed."""
    run = tmp_path / "run"
    sizes = ("patch=4608", "d_model=2", "expand=2", "d_state=2", "length=2")
    fields = [word for size in sizes for word in ("--set", size)]
    call(monkeypatch, capsys, *train(images, run, "resnet18", "--method", "fsg", *fields))
    call(monkeypatch, capsys, "pack", str(run), str(tmp_path / "model.safetensors"))
    logits = fs.load_packed(tmp_path / "model.safetensors")(np.zeros((1, 3, 32, 32), np.float32))
    assert logits.shape == (1, 2)
    assert np.isfinite(logits).all()
