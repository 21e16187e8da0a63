import hashlib
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest
import torch

from fastslow.data import (
    CIFAR10,
    CIFAR100,
    DataError,
    Description,
    ImageSet,
    dataset,
    describe,
    embedded,
    list_datasets,
    load,
    read_cifar,
    read_mini,
)
from fastslow.data.fetch import File

# ---- ImageSet ------------------------------------------------------------------------------------------------------


def make_set(n=5):
    images = torch.arange(n * 12, dtype=torch.uint8).view(n, 3, 2, 2)
    return ImageSet(images=images, labels=torch.arange(n), classes=tuple("abcdefgh"[:n]))


def test_image_set():
    image_set = make_set()
    assert len(image_set) == 5
    assert image_set.mean == image_set.std == (0.5, 0.5, 0.5)
    part = image_set.subset(torch.tensor([3, 1]))
    assert part.labels.tolist() == [3, 1]
    assert torch.equal(part.images, image_set.images[[3, 1]])
    assert part.classes == image_set.classes
    assert len(image_set.subset(slice(1, 1))) == 0
    assert image_set.to("meta").images.device.type == "meta"
    assert image_set.to("cpu").images is image_set.images


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": torch.zeros(5, 3, 2, 2)}, "images must be uint8.*float32"),
        ({"images": torch.zeros(5, 1, 2, 2, dtype=torch.uint8)}, r"images .*\(5, 1, 2, 2\)"),
        ({"images": torch.zeros(5, 3, 2, dtype=torch.uint8)}, r"images .*\(5, 3, 2\)"),
        ({"labels": torch.zeros(5)}, "labels must be int64.*float32"),
        ({"labels": torch.arange(4)}, r"labels .*\(4,\)"),
    ],
)
def test_image_set_refuses(change, message):
    with pytest.raises(ValueError, match=message):
        replace(make_set(), **change)


# ---- the mini set --------------------------------------------------------------------------------------------------


def test_mini_is_what_was_packed():
    data = load("mini")
    for image_set, n, md5 in (
        (data.train, 4000, "888ec699e2849bbb768085bf813b285a"),
        (data.test, 1000, "1551c6f66a074d47dd56c940c2fc3e05"),
    ):
        assert image_set.images.shape == (n, 3, 32, 32)
        assert image_set.labels.bincount().tolist() == [n // 10] * 10
        labels = image_set.labels.to(torch.uint8)
        assert hashlib.md5(image_set.images.numpy().tobytes() + labels.numpy().tobytes()).hexdigest() == md5
    assert data.train.classes == CIFAR10.classes
    assert (data.train.mean, data.train.std) == (CIFAR10.mean, CIFAR10.std)
    # A frog and a truck: the first two labels of the official training files.
    assert [data.train.classes[label] for label in data.train.labels[:2]] == ["frog", "truck"]
    # The average colour of so many images is close to that of all of them: channels are not swapped.
    mean = data.train.images.float().mean((0, 2, 3)) / 255
    assert torch.allclose(mean, torch.tensor(CIFAR10.mean), atol=0.01)


def test_mini_is_small():
    sizes = [file.stat().st_size for file in (files("fastslow.data") / "mini").iterdir()]
    assert max(sizes) < 4 << 20
    assert sum(sizes) < 10 << 20


def test_a_damaged_mini_set_is_noticed(monkeypatch):
    monkeypatch.setitem(embedded._MD5, "test", "0" * 32)
    with pytest.raises(DataError, match=r"MD5 1551.*not 000.*reinstall"):
        read_mini("test")


# ---- load ----------------------------------------------------------------------------------------------------------


def test_holdout_is_the_end_of_training_and_leaves_test_alone(monkeypatch):
    full = load("mini")
    only_train = {"train": full.train}
    monkeypatch.setattr(dataset, "_DATASETS", {"cifar10": lambda root, download, url: only_train.__getitem__})
    data = load("cifar10", holdout=500)
    assert (len(data.train), len(data.test), data.holdout) == (3500, 500, 500)
    assert torch.equal(torch.cat([data.train.images, data.test.images]), full.train.images)
    assert torch.equal(torch.cat([data.train.labels, data.test.labels]), full.train.labels)


def test_the_mini_set_holds_out_every_class_alike():
    full, data = load("mini"), load("mini", holdout=500)
    assert data.test.labels.bincount().tolist() == [50] * 10
    assert data.train.labels.bincount().tolist() == [350] * 10
    both = torch.cat([data.train.images, data.test.images]).flatten(1)
    assert torch.equal(both.unique(dim=0), full.train.images.flatten(1).unique(dim=0))


@pytest.mark.parametrize("holdout", [-1, 4000, 10**9])
def test_impossible_holdout(holdout):
    with pytest.raises(ValueError, match=f"holdout .*3999, not {holdout}"):
        load("mini", holdout=holdout)


@pytest.mark.parametrize(
    ("name", "message"),
    [("cifar11", "unknown data set 'cifar11'.*cifar10"), ("", "unknown data set ''"), ("folder:", "names no folder")],
)
def test_unknown_names(name, message):
    with pytest.raises(ValueError, match=message):
        load(name)


def test_size_is_for_folders():
    with pytest.raises(ValueError, match=r"size=64 .*folder"):
        load("mini", size=64)


def test_list_datasets():
    assert list_datasets() == ["cifar10", "cifar100", "mini", "folder:PATH", "stream:PATH"]


# ---- CIFAR files ---------------------------------------------------------------------------------------------------


def test_cifar_facts():
    for cifar, records, label_bytes in ((CIFAR10, 60_000, 1), (CIFAR100, 60_000, 2)):
        assert sum(file.size for file in cifar.archive.files) == records * (label_bytes + 3072)
        assert len({file.md5 for file in cifar.archive.files}) == len(cifar.archive.files)
    assert len(CIFAR10.classes) == 10
    assert len(set(CIFAR100.classes)) == 100
    assert list(CIFAR100.classes) == sorted(CIFAR100.classes)


def write_cifar(cifar, folder, records=(4, 2)):
    """Small files in the format of `cifar`, and the description that fits them."""
    generator = np.random.default_rng(0)
    folder.mkdir()
    described, contents = [], []
    for name, n in zip(("train.bin", "test.bin"), records, strict=True):
        data = generator.integers(0, 10, (n, cifar.label_bytes + 3072), dtype=np.uint8)
        (folder / name).write_bytes(data.tobytes())
        described.append(File(name, data.size, hashlib.md5(data.tobytes()).hexdigest()))
        contents.append(data)
    return replace(cifar, train_files=1, archive=replace(cifar.archive, files=tuple(described))), contents


@pytest.mark.parametrize("cifar", [CIFAR10, CIFAR100])
def test_cifar_records(cifar, tmp_path):
    small, contents = write_cifar(cifar, tmp_path / "files")
    for split, data in zip(("train", "test"), contents, strict=True):
        image_set = read_cifar(small, tmp_path / "files", split)
        assert image_set.images.shape == (len(data), 3, 32, 32)
        assert image_set.images.is_contiguous()
        for record, image, label in zip(data, image_set.images, image_set.labels, strict=True):
            assert label == record[cifar.label_bytes - 1]  # CIFAR-100: the second byte, the fine label
            pixels = record[cifar.label_bytes :]
            assert image[2, 5, 7] == pixels[2 * 1024 + 5 * 32 + 7]
            assert image.flatten().tolist() == pixels.tolist()


def test_truncated_and_altered_cifar_files_name_themselves(tmp_path):
    small, _ = write_cifar(CIFAR10, tmp_path / "files")
    path = tmp_path / "files" / "train.bin"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"train\.bin has MD5 .* not .*: delete it"):
        read_cifar(small, tmp_path / "files", "train")
    path.write_bytes(data[:-1])
    with pytest.raises(DataError, match=r"train\.bin has 12291 bytes, not 12292: delete it"):
        read_cifar(small, tmp_path / "files", "train")
    read_cifar(small, tmp_path / "files", "test")  # the other file is not to blame


def test_load_finds_a_folder_placed_by_hand(tmp_path, monkeypatch):
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    for name in ("train.bin", "test.bin"):
        (folder / name).write_bytes(b"short")
    monkeypatch.setenv("FASTSLOW_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"cifar-100-binary/train\.bin has 5 bytes, not 153700000"):
        load("cifar100")


# ---- descriptions --------------------------------------------------------------------------------------------------


def test_a_description_needs_no_cifar(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTSLOW_DATA", str(tmp_path / "empty"))
    for name, cifar in (("cifar10", CIFAR10), ("cifar100", CIFAR100)):
        assert describe(name) == Description((3, 32, 32), cifar.classes, cifar.mean, cifar.std)
    own = load("mini").test
    assert describe("mini") == Description(own.shape, own.classes, own.mean, own.std)
    with pytest.raises(ValueError, match="unknown data set"):
        describe("cifar11")
