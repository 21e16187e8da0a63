"""Table 2: CIFAR-100, ResNet-56 and 110, SGD and Adam."""

from __future__ import annotations

import dataclasses

from .base import TABLE_METHODS, Setting, all_layers, paper_protocol
from .table1 import TUNED_MOMENTUM_LR

MODELS = ("resnet56", "resnet110")
OPTIMIZERS = ("adam", "sgd")
APPENDIX_LR = 0.1  # the appendix states 1e-1 for CIFAR-100, the authors' commands say 1e-3


def settings() -> list[Setting]:
    """The rows with lr 1e-3, as the authors' commands have it."""
    return [
        Setting(
            f"{model}/{optimizer}/{method}",
            paper_protocol(model, "cifar100", method, optimizer),
            3 if model == "resnet56" else 1,
        )
        for model in MODELS
        for optimizer in OPTIMIZERS
        for method in TABLE_METHODS
    ]


def variants() -> list[Setting]:
    """The appendix's rate (``-lr0.1``), all layers binary (``-all``, ``-code`` with BatchNorm before fc), momentum."""
    found = []
    for model in MODELS:
        for optimizer in OPTIMIZERS:
            for method in TABLE_METHODS:
                config = paper_protocol(model, "cifar100", method, optimizer)
                other = paper_protocol(model, "cifar100", method, optimizer, lr=APPENDIX_LR)
                name = f"{model}/{optimizer}"
                found.append(Setting(f"{name}-lr{APPENDIX_LR:g}/{method}", other, 1))
                found.append(Setting(f"{name}-all/{method}", all_layers(config), 1))
                found.append(Setting(f"{name}-code/{method}", all_layers(config, bn_before_fc=True), 1))
        for method in TABLE_METHODS:
            plain = paper_protocol(model, "cifar100", method, "sgd")
            momentum = dataclasses.replace(plain, optimizer="momentum", lr=TUNED_MOMENTUM_LR)
            found.append(Setting(f"{model}/momentum/{method}", momentum, 1))
    return found
