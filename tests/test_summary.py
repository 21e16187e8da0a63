"""The summary's numbers against counts made in another way."""

from __future__ import annotations

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import fastslow as fs
from fastslow.models import get_model
from fastslow.report.summary import Summary, format_summary, summarize


def products(model: nn.Module, *shape: int) -> int:
    """Multiply-accumulates as torch counts them, operator by operator."""
    training = model.training
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.eval()(torch.zeros(1, *shape))
    model.train(training)
    return counter.get_total_flops() // 2


class Unbatched(nn.Module):
    """Feeds its layer one sample without the batch dimension."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[0])


# Expected by hand: outputs x products an output.
LAYERS = {
    "conv2d": (nn.Conv2d(3, 8, 3, padding=1), (3, 5, 7), 8 * 5 * 7 * 3 * 9),
    "conv2d, stride": (nn.Conv2d(3, 8, 3, stride=2), (3, 9, 8), 8 * 4 * 3 * 3 * 9),
    "conv2d, dilation": (nn.Conv2d(2, 4, 3, dilation=2), (2, 8, 8), 4 * 4 * 4 * 2 * 9),
    "conv2d, groups": (nn.Conv2d(4, 8, (3, 1), groups=2), (4, 6, 6), 8 * 4 * 6 * 2 * 3),
    "conv2d, depthwise": (nn.Conv2d(6, 6, 3, groups=6, bias=False), (6, 5, 5), 6 * 3 * 3 * 9),
    "conv2d, circular": (nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 4, 4), 3 * 16 * 2 * 9),
    "conv1d": (nn.Conv1d(3, 5, 4, stride=3), (3, 20), 5 * 6 * 3 * 4),
    "conv1d, groups": (nn.Conv1d(4, 4, 3, groups=4, dilation=3), (4, 10), 4 * 4 * 3),
    "conv3d": (nn.Conv3d(2, 3, 2), (2, 4, 4, 4), 3 * 27 * 2 * 8),
    "transposed": (nn.ConvTranspose2d(3, 4, 3, stride=2, groups=1), (3, 5, 5), 25 * 3 * 4 * 9),
    "transposed, groups": (nn.ConvTranspose1d(4, 6, 3, groups=2), (4, 5), 4 * 5 * 3 * 3),
    "linear": (nn.Linear(7, 5), (7,), 35),
    "linear on a sequence": (nn.Linear(7, 5), (11, 7), 11 * 35),
    "linear on a map": (nn.Linear(7, 5, bias=False), (2, 3, 7), 6 * 35),
    "linear, unbatched": (Unbatched(nn.Linear(7, 5)), (7,), 35),
    "conv2d, unbatched": (Unbatched(nn.Conv2d(3, 8, 3)), (3, 5, 5), 8 * 9 * 27),
    "conv1d, unbatched": (Unbatched(nn.Conv1d(3, 5, 4)), (3, 20), 5 * 17 * 12),
}


@pytest.mark.parametrize("name", LAYERS)
def test_operations_of_one_layer(name):
    layer, shape, expected = LAYERS[name]
    found = summarize(layer, shape)
    assert found.macs() == expected
    assert products(layer, *shape) == expected
    assert found.parameters == sum(p.numel() for p in layer.parameters())
    assert found.float_bytes == found.packed_bytes == 4 * found.parameters


@pytest.mark.parametrize("method", ["ste", "irnet"])
@pytest.mark.parametrize("name", ["conv2d, stride", "conv2d, groups", "conv1d, groups", "linear on a sequence"])
def test_binary_layers_have_the_same_operations(name, method):
    layer, shape, expected = LAYERS[name]
    model = nn.Sequential(copy.deepcopy(layer))
    float_bytes = summarize(model, shape).float_bytes
    fs.binarize_(model, method)
    found = summarize(model, shape)
    assert (found.macs(1), found.macs(32), found.macs()) == (expected, 0, expected)
    assert found.float_bytes == float_bytes


def test_resnet20_in_full():
    model = get_model("resnet20")
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        nn.init.uniform_(norm.weight)  # as after training: an equal scale for all outputs is stored once
    fs.binarize_(model, "ste", skip=fs.first_and_last(model))
    found = summarize(model, (3, 32, 32))
    assert found.parameters == sum(p.numel() for p in model.parameters()) == 272_474
    assert found.macs() == products(model, 3, 32, 32) == 40_813_184
    first_and_last = 16 * 3 * 9 * 32 * 32 + 640
    assert (found.macs(32), found.macs(1)) == (first_and_last, 40_813_184 - first_and_last)
    floats = 432 + 650 + sum(4 * m.num_features for m in norms)  # weight, bias, mean, variance
    binary = sum(m.weight.numel() for m in layers[1:-1])
    assert found.float_bytes == 4 * (floats + binary)
    outputs = sum(len(m.weight) for m in layers[1:-1])
    folded = 432 + 16 + 650 + 2 * outputs  # the stem and its offsets, fc, a scale and an offset for each binary output
    assert found.packed_bytes == 4 * folded + binary // 8  # every row is a multiple of 8 long
    assert found.compression == found.float_bytes / found.packed_bytes
    # Nothing was changed by looking.
    assert model.training
    assert all(not m._forward_hooks for m in model.modules())


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("resnet20", {}),
        ("resnet8", {"bn_before_fc": True}),
        ("vgg_small", {}),
        ("resnet20_bireal", {}),
    ],
)
@pytest.mark.parametrize("binarizer", ["dorefa", "scaled-sign-filter"])
def test_the_total_is_the_payload_of_the_packed_file(name, fields, binarizer, tmp_path):
    model = get_model(name, **fields)
    fs.binarize_(model, "ste", binarizer=binarizer, skip=fs.first_and_last(model))
    found = summarize(model, (3, 32, 32))
    assert found.note is None
    assert found.packed_bytes == fs.pack(model, tmp_path / "packed.safetensors").payload_bytes


def test_a_model_that_cannot_be_packed_is_counted_without_folding():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(15, 4)

        def forward(self, x):
            return torch.fft.fft(self.fc(x)).real

    model = Odd()
    fs.binarize_(model, "ste")
    found = summarize(model, (15,))
    (only,) = found.layers
    assert only.packed_bytes == 4 * 2 + 4 * 4  # rows of 15 bits in whole bytes, and the bias
    assert found.note is not None
    assert found.note in format_summary(found)


class Shared(nn.Module):
    """One layer used twice, one under two names, one weight in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(4, 4)
        self.alias = self.twice
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.twice.weight
        self.unused = nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.tied(self.twice(F.relu(self.twice(x))))


def test_shared_layers_count_once_as_numbers_and_each_time_as_work():
    model = Shared()
    found = summarize(model, (4,))
    assert found.parameters == sum(p.numel() for p in model.parameters()) == 4 * 4 + 4 + 2 * 2 + 2 + 3
    assert found.macs() == products(model, 4) == 3 * 16
    assert {row.name: (row.parameters, row.macs) for row in found.layers} == {
        "(the model)": (3, 0),
        "twice": (20, 32),
        "tied": (0, 16),
        "unused": (6, 0),
    }


def test_modes_are_put_back_also_after_an_error():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[1].eval()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        summarize(model, (5,))
    assert [m.training for m in model.modules()] == [True, True, False]
    assert not model[0]._forward_hooks
    before = model[1].running_mean.clone()
    summarize(model, (4,))
    assert [m.training for m in model.modules()] == [True, True, False]
    assert torch.equal(model[1].running_mean, before)


def test_a_model_with_nothing_to_count():
    found = summarize(nn.ReLU(), (3,))
    assert found == Summary((), (3,))
    assert (found.parameters, found.macs(), found.packed_bytes) == (0, 0, 0)
    assert "total" in format_summary(found)


def test_json_and_text_show_the_same_numbers():
    model = get_model("resnet8")
    fs.binarize_(model, "ste", skip=fs.first_and_last(model))
    found = summarize(model, (3, 32, 32))
    values = json.loads(json.dumps(found.to_dict()))
    assert values["parameters"] == sum(row["parameters"] for row in values["layers"]) == 78_042
    assert sum(values["macs"].values()) == sum(row["macs"] for row in values["layers"]) == found.macs()
    assert set(values["macs"]) == {"1", "32"}
    lines = format_summary(found).splitlines()
    assert lines[0].split()[:4] == ["layer", "type", "weight", "bits"]
    assert len(lines) == len(found.layers) + 5  # header, two rules, total, precisions
    for row, line in zip(found.layers, lines[2:], strict=False):
        assert line.startswith(row.name + " ")
        assert f"{row.packed_bytes:,}" in line.split()
    assert lines[-2].split() == [
        "total",
        f"{found.parameters:,}",
        f"{found.macs():,}",
        f"{found.float_bytes:,}",
        f"{found.packed_bytes:,}",
        f"{found.compression:.1f}",
    ]
    assert lines[-1].endswith(f"1-bit weights {found.macs(1):,}, 32-bit weights {found.macs(32):,}")
    assert not any(line != line.rstrip() for line in lines)
