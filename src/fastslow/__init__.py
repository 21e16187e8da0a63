"""fastslow: binary neural networks trained with learned fast and slow gradients.

>>> import torch
>>> import fastslow as fs
>>> model = fs.models.resnet8(num_classes=10)
>>> print(fs.binarize_(model, "fsg", skip=fs.first_and_last(model)))
binarized 8 layers, left in float: conv1: skipped; fc: skipped
>>> optimizer = fs.optimizer(model, torch.optim.Adam(model.parameters(), lr=1e-3))

The names below are loaded on first use, so that ``import fastslow.deploy`` needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from . import data as data
    from . import indicators as indicators
    from . import models as models
    from . import ops as ops
    from .binarize import Binarizer as Binarizer
    from .convert import Conversion as Conversion
    from .convert import binarize_ as binarize_
    from .convert import binary_layers as binary_layers
    from .convert import first_and_last as first_and_last
    from .convert import freeze as freeze
    from .deploy.engine import Engine as Engine
    from .deploy.engine import load_packed as load_packed
    from .deploy.pack import Packed as Packed
    from .deploy.pack import pack as pack
    from .hub import from_pretrained as from_pretrained
    from .hub import push_to_hub as push_to_hub
    from .methods import Method as Method
    from .methods import get_method as get_method
    from .methods import list_methods as list_methods
    from .methods import register_method as register_method
    from .training.config import RunConfig as RunConfig
    from .training.loop import Trainer as Trainer
    from .training.teacher import distillation_loss as distillation_loss
    from .weights import load_weights as load_weights
    from .weights import save_weights as save_weights
    from .wrapper import BinaryOptimizer as BinaryOptimizer
    from .wrapper import optimizer as optimizer

_HOME = {
    "binarize": ("Binarizer",),
    "convert": ("Conversion", "binarize_", "binary_layers", "first_and_last", "freeze"),
    "deploy.engine": ("Engine", "load_packed"),
    "deploy.pack": ("Packed", "pack"),
    "hub": ("from_pretrained", "push_to_hub"),
    "methods": ("Method", "get_method", "list_methods", "register_method"),
    "training.config": ("RunConfig",),
    "training.loop": ("Trainer",),
    "training.teacher": ("distillation_loss",),
    "weights": ("load_weights", "save_weights"),
    "wrapper": ("BinaryOptimizer", "optimizer"),
}
_MODULES = ("data", "indicators", "models", "ops")
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
__all__ = [*_MODULE_OF, *_MODULES, "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
