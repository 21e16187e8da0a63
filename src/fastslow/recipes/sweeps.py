"""The sweeps of beta, the weight of the slow gradient, and of l, the length of the history."""

from __future__ import annotations

from typing import Any

from ..methods.fsg import FSG
from .base import Setting, paper_protocol

BETAS = (0.1, 0.3, 0.5, 0.7, 0.9)
LENGTHS = (3, 4, 5, 6, 7)
# The paper's is ResNet-56 on CIFAR-100; ResNet-20 is a variant that costs a tenth.
NETWORKS = (("resnet20", "cifar10"), ("resnet56", "cifar100"))


def _fsg(model: str, data: str, field: str, value: Any) -> Setting:
    # The default isn't written out, so that the run is the one of Table 1 or 2.
    fields = {} if getattr(FSG(), field) == value else {field: value}
    return Setting(f"{model}/{field}/{value}", paper_protocol(model, data, "fsg", method_fields=fields), 1)


def beta() -> list[Setting]:
    return [_fsg(model, data, "beta", value) for model, data in NETWORKS for value in BETAS]


def length() -> list[Setting]:
    return [_fsg(model, data, "length", value) for model, data in NETWORKS for value in LENGTHS]
