"""Residual networks for 32x32 images as papers on binary networks build them: parameter-free shortcuts.

Where the shape changes, the shortcut takes every second pixel and pads channels with zeros ("option A" of He et al.),
so that every convolution but the first can be binary. A BatchNorm precedes the linear layer. Three blocks:

    bireal   x = act(bn(conv(x)) + x), twice: a shortcut around *each* convolution (Liu et al., ECCV 2018); for 1-bit
             inputs, since real values bypass every sign; hardtanh, or AdaBin's Maxout
    single   one shortcut around two convolutions, ReLU: IR-Net's network for real inputs
    reste    conv, ReLU, BatchNorm, and nothing after the sum: ReSTE's, with one shortcut or, for 1-bit inputs, two
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops import norm_act
from .resnet_cifar import kaiming_

Activation = Literal["hardtanh", "maxout"]


class OptionA(nn.Module):
    """Every second pixel (for stride 2), and zeros for the channels that are new."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = (out_channels - in_channels) // 2
        self.after = out_channels - in_channels - self.before

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == 2:
            x = x[:, :, ::2, ::2]
        return F.pad(x, (0, 0, 0, 0, self.before, self.after))


class Maxout(nn.Module):
    """AdaBin's activation: learned slopes for positive (1 at first) and negative values (1/4), channel by channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.positive = nn.Parameter(torch.ones(channels, 1, 1))
        self.negative = nn.Parameter(torch.full((channels, 1, 1), 0.25))

    def forward(self, x: Tensor) -> Tensor:
        return self.positive * F.relu(x) - self.negative * F.relu(-x)


def _activation(name: Activation, channels: int) -> nn.Module:
    if name not in ("hardtanh", "maxout"):
        raise ValueError(f"activation={name!r}: choose 'hardtanh' or 'maxout'")
    return Maxout(channels) if name == "maxout" else nn.Hardtanh()


class Block(nn.Module):
    """Two 3x3 convolutions with their BatchNorms, and the parameter-free shortcut around the first or both."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        same = stride == 1 and in_channels == out_channels
        self.shortcut = nn.Identity() if same else OptionA(in_channels, out_channels, stride)


class BiRealBlock(Block):
    """A shortcut around each convolution, the activation after each sum."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, activation: Activation = "hardtanh") -> None:
        super().__init__(in_channels, out_channels, stride)
        self.act1 = _activation(activation, out_channels)
        self.act2 = _activation(activation, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act1(norm_act(self.bn1, self.conv1(x), self.shortcut(x), relu=False))
        return self.act2(norm_act(self.bn2, self.conv2(x), x, relu=False))


class SingleBlock(Block):
    """The block of He et al., with option A."""

    def forward(self, x: Tensor) -> Tensor:
        y = norm_act(self.bn1, self.conv1(x))
        return norm_act(self.bn2, self.conv2(y), self.shortcut(x))


class ReSTEBlock(Block):
    """Activation before BatchNorm, none after the sum."""

    def forward(self, x: Tensor) -> Tensor:
        y = norm_act(self.bn1, F.relu(self.conv1(x)), relu=False)
        return norm_act(self.bn2, F.relu(self.conv2(y)), self.shortcut(x), relu=False)


class ReSTEBiRealBlock(Block):
    """The same with a shortcut around each convolution."""

    def forward(self, x: Tensor) -> Tensor:
        x = norm_act(self.bn1, F.relu(self.conv1(x)), self.shortcut(x), relu=False)
        return norm_act(self.bn2, F.relu(self.conv2(x)), x, relu=False)


class OptionAResNet(nn.Module):
    """Stages of ``blocks`` blocks with ``widths`` channels; any image size, because the pool is global."""

    def __init__(
        self,
        block: type[Block] = BiRealBlock,
        blocks: int = 3,
        widths: tuple[int, ...] = (16, 32, 64),
        num_classes: int = 10,
        activation: Activation = "hardtanh",
    ) -> None:
        super().__init__()
        self.kind = block
        fields: dict[str, Any] = {"activation": activation} if block is BiRealBlock else {}
        self.conv1 = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.act1 = _activation(activation, widths[0]) if block is BiRealBlock else nn.Identity()
        stages = []
        for before, width in zip((widths[0], *widths), widths, strict=False):
            first = block(before, width, 1 if width == widths[0] else 2, **fields)
            stages.append(nn.Sequential(first, *(block(width, width, 1, **fields) for _ in range(blocks - 1))))
        self.stages = nn.Sequential(*stages)
        self.bn2 = nn.BatchNorm1d(widths[-1])
        self.fc = nn.Linear(widths[-1], num_classes)
        kaiming_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        before = F.relu(x) if self.kind in (ReSTEBlock, ReSTEBiRealBlock) else x
        x = self.act1(norm_act(self.bn1, before, relu=False))
        x = self.bn2(self.stages(x).mean((2, 3)))
        return self.fc(F.relu(x) if self.kind is SingleBlock else x)


def resnet20_bireal(num_classes: int = 10, activation: Activation = "hardtanh") -> OptionAResNet:
    """ResNet-20 with a shortcut around each convolution, for 1-bit inputs; 0.27 M parameters."""
    return OptionAResNet(BiRealBlock, 3, (16, 32, 64), num_classes, activation)


def resnet18_bireal(num_classes: int = 10, activation: Activation = "hardtanh") -> OptionAResNet:
    """ResNet-18 for 32x32 images with a shortcut around each convolution; 11.0 M parameters."""
    return OptionAResNet(BiRealBlock, 2, (64, 128, 256, 512), num_classes, activation)


def resnet20_irnet(num_classes: int = 10) -> OptionAResNet:
    """ResNet-20 as IR-Net trains it with real inputs: option A, ReLU, BatchNorm and ReLU before the linear layer."""
    return OptionAResNet(SingleBlock, 3, (16, 32, 64), num_classes)


def resnet20_reste(num_classes: int = 10, bireal: bool = False) -> OptionAResNet:
    """ResNet-20 as ReSTE trains it: option A, ReLU before BatchNorm, no activation after the sum."""
    return OptionAResNet(ReSTEBiRealBlock if bireal else ReSTEBlock, 3, (16, 32, 64), num_classes)
