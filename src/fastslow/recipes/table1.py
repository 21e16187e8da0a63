"""Table 1: CIFAR-10, ResNet-20, 32 and 44, SGD and Adam; and the variants without which its rows mislead."""

from __future__ import annotations

import dataclasses

from .base import FSG_VARIANTS, TABLE_METHODS, Setting, all_layers, paper_protocol

MODELS = ("resnet20", "resnet32", "resnet44")
OPTIMIZERS = ("adam", "sgd")

# Plain SGD at 1e-3 starves STE: a learned scalar k can grow into a larger step size, a fixed one can't. The recipe
# lr-sweep tries these rates on held-out training images, and chose the two below.
SWEPT = {"sgd": (1e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0), "momentum": (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)}
TUNED_LR = 0.1
TUNED_MOMENTUM_LR = 0.03


def settings() -> list[Setting]:
    """The paper's rows, MultiFC which it leaves out, and the other readings of FSG."""
    found = []
    for model in MODELS:
        for optimizer in OPTIMIZERS:
            seeds = 5 if model == "resnet20" and optimizer == "adam" else 3
            methods = (*TABLE_METHODS, *FSG_VARIANTS) if model == "resnet20" else TABLE_METHODS
            for method in methods:
                config = paper_protocol(model, "cifar10", method, optimizer)
                found.append(Setting(f"{model}/{optimizer}/{method}", config, seeds))
    return found


def variants() -> list[Setting]:
    """All layers binary as in MetaQuant's logs (``-all``), with the authors' BatchNorm (``-code``), tuned SGD."""
    found = []
    for model in MODELS:
        for optimizer in OPTIMIZERS:
            for method in (*TABLE_METHODS, "fsg-code"):
                config = paper_protocol(model, "cifar10", method, optimizer)
                found.append(Setting(f"{model}/{optimizer}-all/{method}", all_layers(config)))
        for optimizer in OPTIMIZERS:
            for method in ("ste", "fsg-code", "fsg", "multifc"):
                config = all_layers(paper_protocol(model, "cifar10", method, optimizer), bn_before_fc=True)
                found.append(Setting(f"{model}/{optimizer}-code/{method}", config))
        for method in TABLE_METHODS:
            plain = paper_protocol(model, "cifar10", method, "sgd")
            found.append(Setting(f"{model}/sgd-tuned/{method}", dataclasses.replace(plain, lr=TUNED_LR)))
            momentum = dataclasses.replace(plain, optimizer="momentum", lr=TUNED_MOMENTUM_LR)
            found.append(Setting(f"{model}/momentum/{method}", momentum))
    return found


def lr_sweep() -> list[Setting]:
    """STE with plain SGD and with momentum at many learning rates, on the last 5,000 training images."""
    found = []
    for optimizer, rates in SWEPT.items():
        for lr in rates:
            config = paper_protocol(
                "resnet20", "cifar10", "ste", optimizer, lr=lr, holdout=5000, epochs=30, step_epochs=9
            )
            found.append(Setting(f"resnet20/{optimizer}/lr{lr:g}", config, 1))
    return found
