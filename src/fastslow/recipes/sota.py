"""Published training recipes of the methods the paper compares with: from scratch, and four to ten times as long.

``fastslow train --recipe irnet-resnet20`` runs one, with any other option overriding it. Everything is CIFAR-10; real
first and last layer unless said; ``w1a1`` has 1-bit activations. Where we depart from all of them alike: images are
normalised by CIFAR's own mean and deviation (theirs: ImageNet's), the cosine falls step by step (theirs: by epoch), and
the last epoch counts (theirs: the best on test images).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

from ..methods import METHODS
from ..registry import Registry
from ..training.config import RunConfig
from ..training.named_weights import PREFIX
from .base import Setting

COMMON_EPOCHS = 400


def from_scratch(method: str, model: str, **changes: Any) -> RunConfig:
    """What these recipes share: SGD with momentum, lr 0.1 falling by a cosine, weight decay 1e-4, 400 epochs of 128."""
    values: dict[str, Any] = {
        "model": model,
        "data": "cifar10",
        "method": method,
        "optimizer": "momentum",
        "lr": 0.1,
        "momentum": 0.9,
        "weight_decay": 1e-4,
        "schedule": "cosine",
        "epochs": COMMON_EPOCHS,
        "batch_size": 128,
        "precision": "tf32",
    }
    return RunConfig(**(values | changes))


def common(method: str, binary_inputs: bool = False) -> RunConfig:
    """One recipe for all, so that methods differ and nothing else: 400 epochs on IR-Net's or the Bi-Real network."""
    model, activations = ("resnet20_bireal", "sign") if binary_inputs else ("resnet20_irnet", None)
    # AdaBin with hardtanh was seen to fail at this learning rate: the learned shift of its inputs runs away.
    fields = {"activation": "maxout"} if method == "adabin" and binary_inputs else {}
    return from_scratch(method, model, model_fields=fields, activations=activations)


def irnet_resnet20() -> RunConfig:
    """IR-Net, real activations. Published: 90.8."""
    return from_scratch("irnet", "resnet20_irnet", activations=None)


def irnet_resnet20_w1a1() -> RunConfig:
    """IR-Net, 1-bit activations. Published: 86.5."""
    return from_scratch("irnet", "resnet20_bireal", activations="sign", method_fields={"t_min": 1e-3})


def rbnn_resnet20_w1a1() -> RunConfig:
    """RBNN, 1-bit activations, Bi-Real blocks. Published: 87.8 (86.5 without). Their BatchNorm starts near zero."""
    return from_scratch("rbnn", "resnet20_bireal", activations="sign", epochs=1000, batch_size=256, warmup_epochs=5)


def reste_resnet20() -> RunConfig:
    """ReSTE, real activations. Published: 91.32."""
    return from_scratch("reste", "resnet20_reste", activations=None, epochs=1000, batch_size=256, warmup_epochs=5)


def reste_resnet20_w1a1() -> RunConfig:
    """ReSTE, 1-bit activations, Bi-Real blocks. Published: 87.92."""
    return from_scratch(
        "reste",
        "resnet20_reste",
        model_fields={"bireal": True},
        activations="sign",
        epochs=1000,
        batch_size=256,
        warmup_epochs=5,
    )


def fda_resnet20_w1a1() -> RunConfig:
    """FDA-BNN, 1-bit activations; its own recipe isn't public, so this is the common one. Published: 86.61."""
    return common("fda", binary_inputs=True)


def recu_resnet20_w1a1() -> RunConfig:
    """ReCU, 1-bit activations. Published: 87.5."""
    return from_scratch("recu", "resnet20_bireal", activations="sign", epochs=600, batch_size=256, weight_decay=5e-4)


def adabin_resnet20_w1a1() -> RunConfig:
    """AdaBin, 1-bit activations with Maxout. Published: 88.1."""
    return from_scratch("adabin", "resnet20_bireal", activations="sign", model_fields={"activation": "maxout"})


def surge_resnet20_w1a1() -> RunConfig:
    """SURGE on ReCU's recipe, as its authors do. Published: 88.0."""
    return from_scratch("surge", "resnet20_bireal", activations="sign", epochs=600, batch_size=256, weight_decay=5e-4)


def mcdonnell_wide() -> RunConfig:
    """1 bit per weight: wide ResNet 20-10, all layers binary, 62 epochs with warm restarts. Published: 96.1.

    Their batches are of 125, the learning rate ends at 1e-5 and momentum starts anew with each restart; with 254 epochs
    they add cutout.
    """
    return from_scratch(
        "mcdonnell",
        "wide_resnet20",
        model_fields={"width": 10},
        skip=(),
        schedule="restarts",
        epochs=62,
        weight_decay=5e-4,
    )


def _from_float(method: str, **changes: Any) -> RunConfig:
    values: dict[str, Any] = {
        "weights": f"{PREFIX}resnet20_cifar10",
        "skip": (),
        "optimizer": "adam",
        "weight_decay": 0.0,
        "schedule": "step",
    }
    return from_scratch(method, "resnet20", **(values | changes))


def binaryconnect_resnet20() -> RunConfig:
    """BinaryConnect as ProxQuant's authors ran it: from a float network, all layers binary. Published: 90.46.

    Their learning rate drops after 81 and 122 of 300 epochs and then no more; here it drops every 81.
    """
    return _from_float("binaryconnect", lr=1e-2, step_epochs=81, epochs=300)


def proxquant_resnet20() -> RunConfig:
    """ProxQuant, from a float network, all layers binary. Published: 90.65. Drops as in the recipe above."""
    return _from_float("proxquant", lr=1e-2, step_epochs=81, epochs=300)


def mirror_resnet20() -> RunConfig:
    """MD-tanh-S: 100 thousand steps of Adam, lr times 0.3 every 30 thousand. Published on ResNet-18 and VGG only."""
    return _from_float("mirror", lr=1e-3, step_epochs=77, step_factor=0.3, epochs=256)


def bop_vgg_small() -> RunConfig:
    """Bop, 1-bit activations, 500 epochs of batches of 50. Published: 91.3, with two more linear layers, all binary."""
    return from_scratch(
        "bop",
        "vgg_small",
        activations="sign",
        optimizer="adam",
        lr=1e-2,
        weight_decay=0.0,
        epochs=500,
        batch_size=50,
    )


RUNS: Registry[Callable[[], RunConfig]] = Registry("published run")
for _run in (
    *(irnet_resnet20, irnet_resnet20_w1a1, rbnn_resnet20_w1a1, reste_resnet20, reste_resnet20_w1a1),
    *(fda_resnet20_w1a1, recu_resnet20_w1a1, adabin_resnet20_w1a1, surge_resnet20_w1a1, mcdonnell_wide),
    *(binaryconnect_resnet20, proxquant_resnet20, mirror_resnet20, bop_vgg_small),
):
    RUNS.add(_run.__name__.replace("_", "-"), _run)


def override(published: RunConfig, options: RunConfig, given: Collection[str]) -> RunConfig:
    """A published run with what was given on the command line in place of its own: ``given`` are option names."""
    names = {field.name for field in dataclasses.fields(RunConfig)} & set(given)
    changes: dict[str, Any] = {name: getattr(options, name) for name in names}
    if options.method == published.method:
        changes["method_fields"] = {**published.method_fields, **options.method_fields}
    else:
        changes["method_fields"] = options.method_fields
    if "model" in given:
        changes["model_fields"] = options.model_fields
    epochs = changes.get("epochs", published.epochs)
    return dataclasses.replace(published, **({"warmup_epochs": min(published.warmup_epochs, epochs - 1)} | changes))


_COMPARED = ("ste", "binaryconnect", "bwn", "dorefa", "irnet", "rbnn", "reste", "fda", "recu", "adabin", "mcdonnell")
_COMPARED_W1A1 = ("bnn", "xnor", "irnet", "rbnn", "reste", "fda", "recu", "adabin", "surge")


def published() -> list[Setting]:
    """Every method's own recipe, one seed each."""
    return [Setting(name, run(), 1) for name, run in RUNS.items()]


def compared() -> list[Setting]:
    """The same 400 epochs for all: real and 1-bit activations."""
    real = [Setting(f"resnet20/w1a32/{method}", common(method), 1) for method in _COMPARED]
    binary = [Setting(f"resnet20/w1a1/{method}", common(method, True), 1) for method in _COMPARED_W1A1]
    assert {*_COMPARED, *_COMPARED_W1A1} <= METHODS.keys()
    return [*real, *binary]
