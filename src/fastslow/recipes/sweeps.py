"""The sweeps of beta, the weight of the slow gradient, and of l, the length of the history."""

from __future__ import annotations

from typing import Any

from ..methods.fsg import FSG
from ..training.config import RunConfig
from .base import Setting, paper_protocol

BETAS = (0.1, 0.3, 0.5, 0.7, 0.9)
LENGTHS = (3, 4, 5, 6, 7)
# The paper's is ResNet-56 on CIFAR-100; ResNet-20 is a variant that costs a tenth.
NETWORKS = (("resnet20", "cifar10"), ("resnet56", "cifar100"))


def _settings(field: str, values: tuple[Any, ...]) -> list[Setting]:
    return [
        *(
            Setting(f"{model}/{field}/{v}", paper_protocol(model, data, "fsg", method_fields=_fields(field, v)), 1)
            for model, data in NETWORKS
            for v in values
        ),
        *(Setting(f"resnet8/{field}/{v}", small("fsg", _fields(field, v))) for v in values),
    ]


def _fields(field: str, value: Any) -> dict[str, Any]:
    """The default isn't written out, so that the run is the one of Table 1 or 2."""
    return {} if getattr(FSG(), field) == value else {field: value}


def small(method: str, fields: dict[str, Any]) -> RunConfig:
    """ResNet-8 from scratch on the embedded images: `fsg` takes five minutes on a core, three seeds cost little."""
    return RunConfig(model="resnet8", data="mini", method=method, method_fields=fields, epochs=12, step_epochs=4)


def beta() -> list[Setting]:
    return _settings("beta", BETAS)


def length() -> list[Setting]:
    return _settings("length", LENGTHS)
