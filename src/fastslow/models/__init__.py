"""Plain float networks: nothing here knows that they will be binarized."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from ..registry import Registry
from .resnet_bireal import OptionAResNet as OptionAResNet
from .resnet_bireal import resnet18_bireal as resnet18_bireal
from .resnet_bireal import resnet20_bireal as resnet20_bireal
from .resnet_bireal import resnet20_irnet as resnet20_irnet
from .resnet_bireal import resnet20_reste as resnet20_reste
from .resnet_cifar import ResNet as ResNet
from .resnet_cifar import resnet8 as resnet8
from .resnet_cifar import resnet20 as resnet20
from .resnet_cifar import resnet32 as resnet32
from .resnet_cifar import resnet44 as resnet44
from .resnet_cifar import resnet56 as resnet56
from .resnet_cifar import resnet110 as resnet110
from .resnet_imagenet import ImageNetResNet as ImageNetResNet
from .resnet_imagenet import resnet18 as resnet18
from .resnet_imagenet import resnet34 as resnet34
from .vgg_small import VGGSmall as VGGSmall
from .vgg_small import vgg_small as vgg_small
from .wide_resnet import WideResNet20 as WideResNet20
from .wide_resnet import wide_resnet20 as wide_resnet20

_MODELS: Registry[Callable[..., nn.Module]] = Registry("model")
for _build in (
    *(resnet8, resnet20, resnet32, resnet44, resnet56, resnet110, vgg_small),
    *(resnet18, resnet34),
    *(resnet20_bireal, resnet18_bireal, resnet20_irnet, resnet20_reste, wide_resnet20),
):
    _MODELS.add(_build.__name__, _build)


def list_models() -> list[str]:
    """The names that `get_model` knows."""
    return list(_MODELS)


def get_model(name: str, **kwargs: Any) -> nn.Module:
    """A freshly initialised network by name; `num_classes` and the network's other arguments go through."""
    return _MODELS[name](**kwargs)
