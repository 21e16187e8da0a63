"""A grid of four tiny runs on the embedded images: shows that a machine can run grids. Its numbers mean nothing."""

from __future__ import annotations

from ..training.config import RunConfig
from .base import Setting


def settings() -> list[Setting]:
    """ResNet-8 from scratch, two epochs of 1,000 images, measured on the rest of the training images."""
    return [
        Setting(
            f"resnet8/adam/{method}",
            RunConfig(
                model="resnet8",
                data="mini",
                holdout=3000,
                method=method,
                method_fields=fields,
                epochs=2,
                step_epochs=1,
            ),
            2,
        )
        for method, fields in (("ste", {}), ("fsg-weight", {"expand": 2, "d_state": 1, "length": 2}))
    ]
