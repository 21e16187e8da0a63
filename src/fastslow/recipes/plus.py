"""fsg-plus against STE on the test set: the candidate and the recipe that docs/research.md wrote down before.

The recipe is the strongest found on validation images: cosine, the float network as a teacher, cutout. It is the same
for both methods.
"""

from __future__ import annotations

from typing import Any

from .base import Setting, paper_protocol

CANDIDATE = {"strength": 0.5, "secant": True}
RECIPE = {"schedule": "cosine", "distill": 0.5, "cutout": 16}
OPTIMIZERS: dict[str, dict[str, Any]] = {"adam": {}, "momentum": {"lr": 0.01, "weight_decay": 5e-4}}

# What decides the claim comes first.
NETWORKS = (
    ("resnet20", "cifar10", 5),
    ("resnet44", "cifar10", 3),
    ("resnet56", "cifar100", 3),
    ("resnet32", "cifar10", 3),
)


def settings() -> list[Setting]:
    found = []
    for optimizer, values in OPTIMIZERS.items():
        for model, data, seeds in NETWORKS:
            for method, fields in (("ste", {}), ("fsg-plus", CANDIDATE)):
                changes = {**RECIPE, **values, "method_fields": fields}
                config = paper_protocol(model, data, method, optimizer, **changes)
                found.append(Setting(f"{model}/{optimizer}-strong/{method}", config, seeds))
    return found
