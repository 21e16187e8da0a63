"""Float baselines of our own, and the only start for ResNet-110, of which no weights are published."""

from __future__ import annotations

from typing import Any

from ..training.config import RunConfig
from .base import Setting

NETWORKS = (
    ("resnet110", "cifar100"),
    ("resnet20", "cifar10"),
    ("resnet32", "cifar10"),
    ("resnet44", "cifar10"),
    ("resnet56", "cifar100"),
)


def pretrained(model: str, data: str, **changes: Any) -> RunConfig:
    """What ``fastslow pretrain`` does by default."""
    return RunConfig(
        model=model,
        data=data,
        method=None,
        optimizer="momentum",
        lr=0.1,
        weight_decay=5e-4,
        schedule="cosine",
        warmup_epochs=5,
        epochs=200,
        precision="tf32",
        **changes,
    )


def settings() -> list[Setting]:
    return [Setting(f"{model}/{data}/float", pretrained(model, data), 1) for model, data in NETWORKS]
