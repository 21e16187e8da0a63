"""The loss curves of ResNet-44 on CIFAR-10, with SGD and with Adam: runs of Table 1."""

from __future__ import annotations

from . import table1
from .base import Setting

MODEL = "resnet44"


def settings() -> list[Setting]:
    return [setting for setting in table1.settings() if setting.name.startswith(f"{MODEL}/")]
