"""fsg-plus against STE on the test set: the candidate and the recipe that docs/research.md wrote down before.

The recipe is the strongest found on validation images: cosine, the float network as a teacher, cutout. It is the same
for both methods. Beside it stand the recipe without cutout, which may suit STE better, the protocol of Table 1, the
recipe with a larger teacher, and the recipe in 30 epochs, to see what a third of the time is worth.
"""

from __future__ import annotations

from typing import Any

from ..training.named_weights import PREFIX
from .base import Setting, paper_protocol

CANDIDATE = {"strength": 0.5, "secant": True}
# Rounding is part of a recipe, the same for both methods; Table 1's protocol keeps its own.
EASIER: dict[str, Any] = {"schedule": "cosine", "distill": 0.5, "precision": "bf16"}
RECIPE = {**EASIER, "cutout": 16}
LARGER = {**RECIPE, "teacher": f"{PREFIX}resnet44_cifar10", "teacher_model": "resnet44"}
SHORT = {**RECIPE, "epochs": 30}
OPTIMIZERS: dict[str, dict[str, Any]] = {"adam": {}, "momentum": {"lr": 0.01, "weight_decay": 5e-4}}

# What decides the claim comes first.
NETWORKS: tuple[tuple[str, str, int], ...] = (
    ("resnet20", "cifar10", 5),
    ("resnet44", "cifar10", 3),
    ("resnet56", "cifar100", 3),
    ("resnet32", "cifar10", 3),
)
SHORTENED = NETWORKS[:3]


def settings() -> list[Setting]:
    """The strong recipe on all networks, its short form on three, and three other recipes on the smallest."""
    strong, tuned = ([(f"{name}-strong", {**RECIPE, **OPTIMIZERS[name]}, n) for n in NETWORKS] for name in OPTIMIZERS)
    short = [("adam-short", SHORT, n) for n in SHORTENED]
    smallest = NETWORKS[0]
    found = []
    others = (("adam-distill", EASIER, smallest), ("adam", {}, smallest), ("adam-teacher", LARGER, smallest))
    for protocol, changes, (model, data, seeds) in (*strong, *short, *others, *tuned):
        for method, fields in (("ste", {}), ("fsg-plus", CANDIDATE)):
            optimizer = protocol.partition("-")[0]
            config = paper_protocol(model, data, method, optimizer, method_fields=fields, **changes)
            found.append(Setting(f"{model}/{protocol}/{method}", config, seeds))
    return found
