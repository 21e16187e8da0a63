"""The published recipes: what they say, and a few steps of each on the embedded images."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import fastslow as fs
from fastslow import data
from fastslow.recipes.sota import RUNS, common, override
from fastslow.training.build import build_base_optimizer, build_model
from fastslow.training.config import RunConfig

# Epochs, batch, learning rate, weight decay, warm-up: as in each paper's public code, where it has one.
PUBLISHED = {
    "irnet-resnet20": (400, 128, 0.1, 1e-4, 0),
    "irnet-resnet20-w1a1": (400, 128, 0.1, 1e-4, 0),
    "rbnn-resnet20-w1a1": (1000, 256, 0.1, 1e-4, 5),
    "reste-resnet20": (1000, 256, 0.1, 1e-4, 5),
    "reste-resnet20-w1a1": (1000, 256, 0.1, 1e-4, 5),
    "fda-resnet20-w1a1": (400, 128, 0.1, 1e-4, 0),
    "recu-resnet20-w1a1": (600, 256, 0.1, 5e-4, 0),
    "adabin-resnet20-w1a1": (400, 128, 0.1, 1e-4, 0),
    "surge-resnet20-w1a1": (600, 256, 0.1, 5e-4, 0),
    "mcdonnell-wide": (62, 128, 0.1, 5e-4, 0),
    "binaryconnect-resnet20": (300, 128, 1e-2, 0.0, 0),
    "proxquant-resnet20": (300, 128, 1e-2, 0.0, 0),
    "mirror-resnet20": (256, 128, 1e-3, 0.0, 0),
    "bop-vgg-small": (500, 50, 1e-2, 0.0, 0),
}


def test_published_numbers():
    found = {name: run() for name, run in RUNS.items()}
    table = {n: (c.epochs, c.batch_size, c.lr, c.weight_decay, c.warmup_epochs) for n, c in found.items()}
    assert table == PUBLISHED
    assert found["irnet-resnet20-w1a1"].method_fields == {"t_min": 1e-3}
    assert all((config.activations == "sign") == name.endswith(("w1a1", "vgg-small")) for name, config in found.items())
    with pytest.raises(ValueError, match=r"unknown published run 'irnet'; did you mean .*irnet-resnet20"):
        RUNS["irnet"]


def few_steps(config: RunConfig) -> torch.nn.Module:
    """Two steps of batches of six small images, with the recipe's network, method, optimizer and schedule."""
    images = data.load("mini").train
    x = images.images[:12, :, 8:24, 8:24].float() / 255
    model = build_model(config, 10)
    base = build_base_optimizer(config, model)
    optimizer = fs.optimizer(model, base, total_steps=2, epochs=2)
    for step in range(2):
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate(step, 1)
        batch = slice(6 * step, 6 * step + 6)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[batch]), images.labels[batch].long())
        loss.backward()
        optimizer.step()
        assert math.isfinite(loss.item())
    return model


def small(config: RunConfig) -> RunConfig:
    """The same recipe from scratch, at a size for tests."""
    fields = {**config.model_fields}
    if config.model == "wide_resnet20":
        fields["width"] = 1
    if config.model == "vgg_small":
        fields["image_size"] = 16
    return override(
        config, RunConfig(model=config.model, model_fields=fields, method=config.method), {"weights", "model"}
    )


@pytest.mark.parametrize("name", list(RUNS))
def test_a_few_steps_of_each(name):
    config = small(RUNS[name]())
    model = few_steps(config)
    layers = fs.binary_layers(model)
    assert len(layers) == {"wide_resnet20": 20, "vgg_small": 5, "resnet20": 22}.get(config.model, 18)
    assert {layer.method.name for layer in layers.values()} == {config.method}
    assert all(layer.input_bits == (1 if config.activations == "sign" else 32) for layer in layers.values())


def test_options_override_a_recipe():
    published = RUNS["reste-resnet20"]()
    options = RunConfig(method="reste", epochs=3, lr=0.5, method_fields={"o_end": 2.0}, batch_size=64)
    changed = override(published, options, {"epochs", "lr", "recipe", "run"})
    assert (changed.epochs, changed.lr, changed.warmup_epochs, changed.batch_size) == (3, 0.5, 2, 256)
    assert changed.method_fields == {"o_end": 2.0}
    assert changed.model == "resnet20_reste"
    assert override(published, RunConfig(method="ste"), {"method"}).method == "ste"
    assert override(published, RunConfig(method="reste"), set()) == published


def test_warm_restarts():
    config = RunConfig(schedule="restarts", lr=1.0, epochs=14)
    rates = [config.learning_rate(step, 10) for step in range(140)]
    assert [step for step, rate in enumerate(rates) if rate == 1.0] == [0, 20, 60]
    assert rates[10] == pytest.approx(0.5)
    assert rates[40] == pytest.approx(0.5)
    assert max(rates[19], rates[59], rates[139]) < 0.01


def test_common_recipe_differs_in_the_method_alone():
    first, second = common("irnet"), common("reste")
    assert override(first, second, {"method"}) == second
    assert common("recu", binary_inputs=True).model == "resnet20_bireal"
