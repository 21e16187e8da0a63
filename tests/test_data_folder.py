import struct

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from fastslow.data import DataError, Description, describe, load, read_folder
from fastslow.data.folder import open_rgb

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}


def save(path, colour=(255, 0, 0), size=(8, 8), mode="RGB", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).convert(mode).save(path, **options)
    return path


def make(root, counts):
    for name, count in counts.items():
        for i in range(count):
            save(root / name / f"{i}.png", COLOURS[name])
    return root


def colours_of(image_set):
    """The class of each image by its centre pixel, which the label must agree with."""
    centre = image_set.images[:, :, image_set.images.shape[2] // 2, image_set.images.shape[3] // 2]
    names = {colour: name for name, colour in COLOURS.items()}
    return [names[tuple(pixel.tolist())] for pixel in centre]


def test_own_split(tmp_path):
    make(tmp_path / "train", {"red": 3, "green": 4, "blue": 2})
    make(tmp_path / "test", {"red": 1, "green": 2, "blue": 1})
    (tmp_path / "train" / ".hidden").mkdir()
    (tmp_path / "train" / "README.txt").write_text("not an image")
    (tmp_path / "train" / "red" / "notes.txt").write_text("not an image")
    (tmp_path / "train" / "red" / "._0.png").write_bytes(b"what some systems leave behind")
    data = load(f"folder:{tmp_path}")
    assert data.train.classes == data.test.classes == ("blue", "green", "red")
    assert data.train.images.shape == (9, 3, 32, 32)
    assert len(data.test) == 4
    assert data.train.mean == data.train.std == (0.5, 0.5, 0.5)
    for image_set in (data.train, data.test):
        assert [image_set.classes[label] for label in image_set.labels] == colours_of(image_set)


def test_a_tenth_of_each_class_is_the_test_set(tmp_path):
    make(tmp_path, {"red": 20, "green": 5, "blue": 31})
    data = load(f"folder:{tmp_path}", size=8)
    assert data.test.labels.bincount().tolist() == [3, 1, 2]
    assert data.train.labels.bincount().tolist() == [28, 4, 18]
    again = load(f"folder:{tmp_path}", size=8)
    assert torch.equal(data.train.labels, again.train.labels)


def test_the_split_depends_on_names_only_and_splits_are_disjoint(tmp_path):
    def numbered(root, order):
        for i in order:
            save(root / "a" / f"{i}.png", (i, 0, 0), (1, 1))
            save(root / "b" / f"{i}.png", (i, 1, 0), (1, 1))
        return root

    one, two = numbered(tmp_path / "one", range(30)), numbered(tmp_path / "two", reversed(range(30)))
    pixels = {split: read_folder(one, split, size=1).images.flatten(1).tolist() for split in ("train", "test")}
    assert pixels == {split: read_folder(two, split, size=1).images.flatten(1).tolist() for split in pixels}
    assert sorted(pixels["train"] + pixels["test"]) == sorted([i, c, 0] for i in range(30) for c in (0, 1))


def test_classes_come_mixed_so_that_a_holdout_is_fair(tmp_path):
    make(tmp_path, {"red": 40, "green": 40})
    data = load(f"folder:{tmp_path}", holdout=20, size=2)
    assert len(data.test) == 20
    assert min(data.test.labels.bincount(minlength=2)) >= 4


def test_holdout_needs_no_test_folder(tmp_path):
    make(tmp_path / "train", {"red": 3, "green": 4})
    assert len(load(f"folder:{tmp_path}", holdout=2).test) == 2
    with pytest.raises(DataError, match="has train but no test: add"):
        load(f"folder:{tmp_path}")


def test_a_class_may_be_called_train(tmp_path):
    make(tmp_path, {"red": 3})
    save(tmp_path / "train" / "0.png")
    save(tmp_path / "train" / "1.png")
    assert load(f"folder:{tmp_path}").train.classes == ("red", "train")


def test_pixels_of_the_right_size_pass_unchanged(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    for name in ("a", "b"):
        save(tmp_path / name / "other.png")
        Image.fromarray(pixels).save(tmp_path / name / "image.png")
    images = torch.cat([read_folder(tmp_path, split).images for split in ("train", "test")])
    expected = torch.from_numpy(pixels).permute(2, 0, 1)
    assert sum(torch.equal(image, expected) for image in images) == 2


@pytest.mark.parametrize("upright", [True, False])
def test_the_centre_square_is_kept(tmp_path, upright):
    image = np.zeros((12, 4, 3), np.uint8)
    image[4:8] = (10, 200, 30)  # the middle third
    image = image if upright else image.transpose(1, 0, 2)
    for name in ("train/a", "train/b"):
        (tmp_path / name).mkdir(parents=True)
        Image.fromarray(np.ascontiguousarray(image)).save(tmp_path / name / "x.png")
    got = read_folder(tmp_path, "train", size=4).images
    assert got.flatten(2).unique(dim=2).tolist() == [[[10], [200], [30]]] * 2


@pytest.mark.parametrize(
    ("name", "mode", "options"),
    [
        ("x.jpg", "RGB", {"quality": 100, "subsampling": 0}),
        ("x.JPEG", "L", {"quality": 100}),
        ("x.webp", "RGB", {"lossless": True}),
        ("x.bmp", "RGB", {}),
        ("x.gif", "P", {}),
        ("x.tiff", "CMYK", {}),
        ("x.ppm", "RGB", {}),
        ("x.PNG", "RGBA", {}),
        ("x.png", "P", {"transparency": bytes(range(256))}),
        ("x.png", "LA", {}),
        ("x.png", "1", {}),
    ],
)
def test_formats_and_modes(tmp_path, name, mode, options):
    for label in ("a", "b"):
        save(tmp_path / "train" / label / name, (255, 255, 255), mode=mode, **options)
    images = read_folder(tmp_path, "train", size=4).images
    assert images.shape == (2, 3, 4, 4)
    assert images.min() >= 254


@pytest.mark.parametrize("kind", ["folder", "stream"])
@pytest.mark.parametrize("size", [None, 8])
def test_a_description_says_what_the_images_say_and_reads_none(tmp_path, kind, size):
    make(tmp_path, {"red": 3, "green": 3})
    own = load(f"{kind}:{tmp_path}", size=size).test
    expected = Description(own.shape, own.classes, own.mean, own.std)
    for file in tmp_path.rglob("*.png"):
        file.write_bytes(b"no image")
    assert describe(f"{kind}:{tmp_path}", size=size) == expected


@pytest.mark.parametrize("kind", ["png", "tif", "webp"])
def test_every_orientation_is_turned_as_pillow_does(tmp_path, kind):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (3, 5, 3), np.uint8).astype(np.uint8))
    for orientation in range(10):
        exif = Image.Exif()
        exif[0x0112] = orientation
        image.save(tmp_path / "reference.png", exif=exif)
        with Image.open(tmp_path / "reference.png") as saved:
            expected = np.array(ImageOps.exif_transpose(saved))
        file = tmp_path / f"x.{kind}"
        image.save(file, exif=exif, **({"lossless": True} if kind == "webp" else {}))
        np.testing.assert_array_equal(np.array(open_rgb(file)), expected)


def test_an_odd_tag_costs_no_image(tmp_path):
    """A resolution that is no number: Pillow's own turning would rewrite it, and can't."""
    save(tmp_path / "x.jpg", size=(8, 4))
    plain = (tmp_path / "x.jpg").read_bytes()
    tags = struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0) + struct.pack("<HHI", 0x011A, 2, 1) + bytes(8)
    block = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", 2) + tags
    (tmp_path / "x.jpg").write_bytes(plain[:2] + b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block + plain[2:])
    assert open_rgb(tmp_path / "x.jpg").size == (4, 8)


def test_photographs_are_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: the first row is the right-hand side
    image = np.zeros((8, 8, 3), np.uint8)
    image[:4] = 255
    for name in ("a", "b"):
        (tmp_path / "train" / name).mkdir(parents=True)
        Image.fromarray(image).save(tmp_path / "train" / name / "x.png", exif=exif)
    got = read_folder(tmp_path, "train", size=8).images[0, 0]
    assert got[:, 4:].min() == 255
    assert got[:, :4].max() == 0


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1), (3, 1000)])
def test_odd_shapes(tmp_path, size):
    for name in ("a", "b"):
        save(tmp_path / "train" / name / "x.png", (7, 8, 9), size)
    images = read_folder(tmp_path, "train", size=5).images
    assert images.flatten(2).unique(dim=2).tolist() == [[[7], [8], [9]]] * 2


def broken(path):
    path.write_bytes(b"not a picture")


def truncated(path):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:4000])


def empty(path):
    path.write_bytes(b"")


def nonsense_header(path):
    path.write_bytes(b"P6 4 x4 255\n" + bytes(48))  # a PPM: its decoder raises ValueError


def deep(path):
    Image.fromarray(np.full((4, 4), 40_000, np.uint16)).save(path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (broken, "not a readable image"),
        (truncated, "not a readable image.*repair or remove"),
        (empty, "not a readable image"),
        (nonsense_header, "not a readable image"),
        (deep, "more than 8 bits"),
    ],
)
def test_a_bad_file_names_itself(tmp_path, spoil, message):
    make(tmp_path / "train", {"red": 2, "green": 2})
    spoil(tmp_path / "train" / "red" / "culprit.png")
    with pytest.raises(DataError, match=rf"red/culprit\.png .*{message}"):
        read_folder(tmp_path, "train")


def test_structure_errors(tmp_path):
    def check(message, path=tmp_path, split="train"):
        with pytest.raises(DataError, match=message):
            read_folder(path, split)

    check("missing is no folder", tmp_path / "missing")
    check("no images in the sub-folders of")
    (tmp_path / "red").mkdir()
    check("no images in the sub-folders of")
    make(tmp_path, {"green": 3})
    check("class folder .*red holds no images")
    (tmp_path / "red").rmdir()
    check("only one class, 'green'")
    make(tmp_path, {"blue": 1})
    check("blue holds one image")
    save(tmp_path / "file.png")
    check("file.png is no folder", tmp_path / "file.png")


def test_train_and_test_must_have_the_same_classes(tmp_path):
    make(tmp_path / "train", {"red": 1, "green": 1})
    make(tmp_path / "test", {"red": 1, "blue": 1})
    with pytest.raises(DataError, match="class 'blue' is in only one of"):
        load(f"folder:{tmp_path}")


def test_memory_is_bounded_before_anything_is_read(tmp_path):
    make(tmp_path / "train", {"red": 2, "green": 2})
    broken(tmp_path / "train" / "red" / "0.png")
    with pytest.raises(
        DataError, match=r"4 images of 1000x1000 pixels .* need 11 MiB .* limit of 1 MiB: choose a smaller"
    ):
        read_folder(tmp_path, "train", size=1000, max_bytes=1 << 20)


@pytest.mark.parametrize("size", [0, -5])
def test_bad_size(tmp_path, size):
    with pytest.raises(ValueError, match=f"size .*not {size}"):
        read_folder(tmp_path, "train", size=size)
