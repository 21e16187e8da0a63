import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastslow.data import Batches, ImageSet, gather, normalize


def make_set(n=23, height=7, width=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return ImageSet(
        images=torch.randint(1, 256, (n, 3, height, width), generator=generator, dtype=torch.uint8),
        labels=torch.arange(n),  # the label tells which image it is
        classes=tuple(map(str, range(n))),
        mean=(0.1, 0.5, 0.9),
        std=(0.2, 0.3, 0.4),
    )


def slow_gather(images, indices, shifts, flips):
    """The obvious twin of `gather`: pad by as much as it takes, cut, mirror."""
    crops = []
    for index, (down, right), flip in zip(indices.tolist(), shifts.tolist(), flips.tolist(), strict=True):
        _, height, width = images[index].shape
        pad = max(abs(down), abs(right))
        padded = torch.nn.functional.pad(images[index], (pad, pad, pad, pad))
        crop = padded[:, pad + down : pad + down + height, pad + right : pad + right + width]
        crops.append(crop.flip(2) if flip else crop)
    return torch.stack(crops)


@settings(deadline=None, max_examples=60)
@given(data=st.data(), n=st.integers(1, 6), height=st.integers(1, 9), width=st.integers(1, 9), batch=st.integers(1, 7))
def test_gather_equals_its_slow_twin(data, n, height, width, batch):
    images = make_set(n, height, width).images
    draw = lambda low, high, count: torch.tensor(  # noqa: E731
        data.draw(st.lists(st.integers(low, high), min_size=count, max_size=count))
    )
    indices, shifts, flips = draw(0, n - 1, batch), draw(-11, 11, 2 * batch).view(-1, 2), draw(0, 1, batch) == 1
    got = gather(images, indices, shifts, flips)
    assert got.dtype == torch.uint8
    assert torch.equal(got, slow_gather(images, indices, shifts, flips))


def test_gather_table():
    image = torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8).expand(1, 3, 2, 2)
    table = [
        ((0, 0), False, [[1, 2], [3, 4]]),
        ((0, 0), True, [[2, 1], [4, 3]]),
        ((1, 0), False, [[3, 4], [0, 0]]),
        ((0, -1), False, [[0, 1], [0, 3]]),
        ((0, -1), True, [[1, 0], [3, 0]]),  # the crop is mirrored, not the image before it
        ((-1, 1), False, [[0, 0], [2, 0]]),
        ((2, 0), False, [[0, 0], [0, 0]]),
    ]
    for shift, flip, expected in table:
        got = gather(image, torch.tensor([0]), torch.tensor([shift]), torch.tensor([flip]))
        assert got[0].tolist() == [expected] * 3, (shift, flip)


def test_normalize_is_the_textbook_formula_and_changes_nothing():
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1)
    got = normalize(images, torch.tensor([0.5, 0.1, 0.0]), torch.tensor([0.5, 0.1, 2.0]))
    torch.testing.assert_close(got.flatten(), torch.tensor([-1.0, 1.0, 0.5]))
    floats = torch.full((1, 3, 1, 1), 255.0)
    normalize(floats, torch.zeros(3), torch.ones(3))
    assert floats.eq(255).all()


def test_padding_is_black_before_normalisation():
    image_set = make_set()
    batches = Batches(image_set, 4, augment=True)
    x = batches.gather(torch.tensor([0]), torch.tensor([[4, 0]]), torch.tensor([False]))
    black = -torch.tensor(image_set.mean) / torch.tensor(image_set.std)
    torch.testing.assert_close(x[0, :, -4:], black[:, None, None].expand(3, 4, 5))


def test_evaluation_pass_is_every_image_in_order():
    image_set = make_set()
    batches = Batches(image_set, 10, augment=False, shuffle=False)
    parts = list(batches.epoch())
    assert [len(y) for _, y in parts] == [10, 10, 3]
    assert len(batches) == 3
    x, y = torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
    assert torch.equal(y, image_set.labels)
    mean, std = torch.tensor(image_set.mean).view(3, 1, 1), torch.tensor(image_set.std).view(3, 1, 1)
    torch.testing.assert_close(x, (image_set.images / 255 - mean) / std)
    assert x.dtype == torch.float32


def test_a_training_epoch_is_the_twin_applied_to_its_plan():
    image_set = make_set()
    batches = Batches(image_set, 8, seed=5, augment=True, shuffle=True)
    indices, shifts, flips = batches.plan(2)
    expected = normalize(
        slow_gather(image_set.images, indices, shifts, flips),
        torch.tensor(image_set.mean),
        torch.tensor(image_set.std),
    )
    x, y = (torch.cat(parts) for parts in zip(*batches.epoch(2), strict=True))
    assert torch.equal(x, expected)
    assert torch.equal(y, indices)


@settings(deadline=None, max_examples=30)
@given(
    n=st.integers(1, 40),
    batch_size=st.integers(1, 45),
    start=st.integers(0, 50),
    epoch=st.integers(0, 3),
    drop_last=st.booleans(),
)
def test_resume_gives_the_remaining_batches(n, batch_size, start, epoch, drop_last):
    batches = Batches(make_set(n), batch_size, seed=1, augment=True, shuffle=True, drop_last=drop_last)
    whole = list(batches.epoch(epoch))
    assert len(whole) == len(batches)
    if start > len(batches):
        with pytest.raises(ValueError, match=f"start .*not {start}"):
            batches.epoch(epoch, start)
        return
    rest = list(batches.epoch(epoch, start))
    assert len(rest) == len(whole) - start
    for (x, y), (x0, y0) in zip(rest, whole[start:], strict=True):
        assert torch.equal(x, x0)
        assert torch.equal(y, y0)


def test_epoch_is_a_pure_function_of_seed_and_epoch():
    image_set = make_set(200)
    plan = lambda seed, epoch, **kw: Batches(image_set, 16, seed=seed, augment=True, shuffle=True, **kw).plan(epoch)  # noqa: E731
    torch.manual_seed(0)
    first = plan(7, 3)
    torch.manual_seed(1)  # the global generator plays no part
    torch.rand(5)
    assert all(map(torch.equal, first, plan(7, 3)))
    for other in (plan(7, 4), plan(8, 3), plan(3, 7)):
        assert not any(map(torch.equal, first, other))
    assert sorted(first[0].tolist()) == list(range(200))
    # The same order for every batch size, and with or without augmentation.
    plain = Batches(image_set, 3, seed=7, shuffle=True).plan(3)
    assert torch.equal(plain[0], first[0])
    assert not plain[1].any()
    assert not plain[2].any()


@pytest.mark.parametrize("side", [1, 2, 5, 40])
def test_cutout_blanks_a_square_of_every_image(side):
    plain = Batches(make_set(30), 8, seed=5, augment=True, shuffle=True)
    holed = Batches(make_set(30), 8, seed=5, augment=True, shuffle=True, cutout=side)
    *same, centres = holed.plan(2)
    assert all(map(torch.equal, plain.plan(2), same)), "order, shifts and flips are those without it"
    assert not torch.equal(centres, holed.plan(3)[-1])
    images = torch.cat([x for x, _ in plain.epoch(2)])
    expected = images.clone()
    for image, (row, column) in zip(expected, centres.tolist(), strict=True):
        for y in range(row - side // 2, row - side // 2 + side):
            for x in range(column - side // 2, column - side // 2 + side):
                if 0 <= y < image.shape[1] and 0 <= x < image.shape[2]:
                    image[:, y, x] = 0
    assert torch.equal(torch.cat([x for x, _ in holed.epoch(2)]), expected)
    assert (expected != images).any()


def test_augmentation_uses_all_shifts_and_both_sides_evenly():
    _, shifts, flips = Batches(make_set(20_000, 1, 1), 1, augment=True).plan(0)
    counts = torch.stack([shifts[:, axis].add(4).bincount(minlength=9) for axis in (0, 1)])
    assert counts.shape == (2, 9)
    assert (counts / 20_000 - 1 / 9).abs().max() < 0.01
    assert abs(flips.float().mean() - 0.5) < 0.02
    # Vertical shift, horizontal shift and flip are independent.
    table = torch.corrcoef(torch.stack([shifts[:, 0], shifts[:, 1], flips]).float())
    assert (table - torch.eye(3)).abs().max() < 0.03


@pytest.mark.parametrize("augment", [True, False])
@pytest.mark.parametrize("channels_last", [True, False])
def test_memory_format(augment, channels_last):
    batches = Batches(make_set(), 8, augment=augment, channels_last=channels_last)
    x, _ = next(batches.epoch(0))
    wanted = torch.channels_last if channels_last else torch.contiguous_format
    assert x.is_contiguous(memory_format=wanted)
    plain, _ = next(Batches(make_set(), 8, augment=augment).epoch(0))
    assert torch.equal(x, plain)


def test_drop_last():
    batches = Batches(make_set(23), 10, drop_last=True)
    assert [len(y) for _, y in batches.epoch()] == [10, 10]
    assert len(batches) == 2
    assert len(Batches(make_set(3), 10, drop_last=True)) == 0
    assert len(Batches(make_set(20), 10)) == len(Batches(make_set(20), 10, drop_last=True)) == 2


def test_sets_on_the_device_are_shared():
    image_set = make_set()
    batches = Batches(image_set, 4, augment=True)
    assert batches.image_set.images.data_ptr() == image_set.images.data_ptr()


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"batch_size .*not 0"):
        Batches(make_set(), 0)
    with pytest.raises(ValueError, match=r"seed .*not -1"):
        Batches(make_set(), 1, seed=-1)
    with pytest.raises(ValueError, match=r"start .*not -1"):
        Batches(make_set(), 1).epoch(0, -1)


@pytest.mark.gpu
def test_the_same_batches_on_a_gpu():
    image_set = make_set(50, 32, 32)
    arguments = {"batch_size": 16, "seed": 2, "augment": True, "shuffle": True}
    here, there = Batches(image_set, **arguments), Batches(image_set, **arguments, device="cuda")
    for (x, y), (x_gpu, y_gpu) in zip(here.epoch(1), there.epoch(1), strict=True):
        assert x_gpu.is_cuda
        torch.testing.assert_close(x_gpu.cpu(), x, rtol=1e-6, atol=1e-6)
        assert torch.equal(y_gpu.cpu(), y)
