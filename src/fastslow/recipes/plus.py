"""fsg-plus against STE on the test set: the candidate and the recipe that docs/research.md wrote down before.

The recipe is the strongest found on validation images: cosine, the float network as a teacher, cutout. It is the same
for both methods. Beside it stand the recipe without cutout, which may suit STE better, the protocol of Table 1, and the
recipe with a larger teacher.
"""

from __future__ import annotations

from typing import Any

from ..training.named_weights import PREFIX
from .base import Setting, paper_protocol

CANDIDATE = {"strength": 0.5, "secant": True}
EASIER = {"schedule": "cosine", "distill": 0.5}
RECIPE = {**EASIER, "cutout": 16}
LARGER = {**RECIPE, "teacher": f"{PREFIX}resnet44_cifar10", "teacher_model": "resnet44"}
OPTIMIZERS: dict[str, dict[str, Any]] = {"adam": {}, "momentum": {"lr": 0.01, "weight_decay": 5e-4}}

# What decides the claim comes first.
NETWORKS: tuple[tuple[str, str, int], ...] = (
    ("resnet20", "cifar10", 5),
    ("resnet44", "cifar10", 3),
    ("resnet56", "cifar100", 3),
    ("resnet32", "cifar10", 3),
)


def settings() -> list[Setting]:
    """The strong recipe on all networks, and three others on the smallest."""
    strong, tuned = ([(f"{name}-strong", {**RECIPE, **OPTIMIZERS[name]}, n) for n in NETWORKS] for name in OPTIMIZERS)
    smallest = NETWORKS[0]
    found = []
    others = (("adam-distill", EASIER, smallest), ("adam", {}, smallest), ("adam-teacher", LARGER, smallest))
    for protocol, changes, (model, data, seeds) in (*strong, *others, *tuned):
        for method, fields in (("ste", {}), ("fsg-plus", CANDIDATE)):
            optimizer = protocol.partition("-")[0]
            config = paper_protocol(model, data, method, optimizer, method_fields=fields, **changes)
            found.append(Setting(f"{model}/{protocol}/{method}", config, seeds))
    return found
