"""The networks that papers on binary weights and activations use."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fastslow as fs
from fastslow.models import get_model
from fastslow.models.resnet_bireal import Maxout, OptionA


@pytest.mark.parametrize(
    ("name", "fields", "parameters", "layers"),
    [
        ("resnet20_bireal", {}, 269_850, 20),
        ("resnet20_bireal", {"activation": "maxout"}, 269_850 + 2 * (16 + 6 * (16 + 32 + 64)), 20),
        ("resnet20_irnet", {}, 269_850, 20),
        ("resnet20_reste", {}, 269_850, 20),
        ("resnet20_reste", {"bireal": True}, 269_850, 20),
        ("resnet18_bireal", {}, 11_001_162, 18),
        ("wide_resnet20", {}, 4_280_518, 20),
        ("wide_resnet20", {"width": 1, "affine": True}, 269_738, 20),
    ],
)
def test_size(name, fields, parameters, layers):
    with torch.device("meta"):
        model = get_model(name, **fields)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert sum(isinstance(m, nn.Conv2d | nn.Linear) for m in model.modules()) == layers


@pytest.mark.parametrize("name", ["resnet20_bireal", "resnet20_irnet", "resnet20_reste", "wide_resnet20"])
def test_forward_gradient_and_one_graph(name):
    torch.manual_seed(0)
    model = get_model(name, num_classes=7, **({"width": 1} if name == "wide_resnet20" else {}))
    x = torch.randn(4, 3, 15, 16)
    logits = model(x)
    assert logits.shape == (4, 7)
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="eager")(x), model(x))


def test_option_a():
    x = torch.randn(2, 3, 5, 5)
    out = OptionA(3, 8, 2)(x)
    assert out.shape == (2, 8, 3, 3)
    assert torch.equal(out[:, 2:5], x[:, :, ::2, ::2])
    assert not out[:, :2].any()
    assert not out[:, 5:].any()


def test_maxout_is_a_leaky_relu_at_first():
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(Maxout(3)(x), nn.functional.leaky_relu(x, 0.25))
    with pytest.raises(ValueError, match="activation='tanh'"):
        get_model("resnet20_bireal", activation="tanh")


@pytest.mark.parametrize("method", ["bnn", "recu", "adabin"])
def test_first_and_last_stay_real(method):
    model = get_model("resnet20_bireal")
    conversion = fs.binarize_(model, method, skip=fs.first_and_last(model), activations="sign")
    assert list(conversion.left) == ["conv1", "fc"]
    assert len(conversion.converted) == 18
    assert all(layer.input_bits == 1 for layer in fs.binary_layers(model).values())
    seen = []
    first = model.stages[0][0].conv1
    handle = first.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    model.eval()(torch.randn(2, 3, 8, 8))
    handle.remove()
    assert seen[0].unique().numel() > 2, "the block's input stays real: only the convolution sees signs"
