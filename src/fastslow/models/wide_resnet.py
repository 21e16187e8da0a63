"""The wide residual network 20-k of McDonnell, *1 bit per weight* (ICLR 2018, https://arxiv.org/abs/1802.08530).

Twenty convolutions, BatchNorm and ReLU *before* each: a stem, nine blocks of two with 16k, 32k and 64k channels, and a
1x1 convolution to the classes, followed by BatchNorm and the global pool. There is no linear layer. Shortcuts average
3x3 pixels and pad channels with zeros. BatchNorm, but for the images', learns no scale and offset: networks as wide
overfit CIFAR.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ..ops import norm_act
from .resnet_cifar import WIDTHS, kaiming_


class PreactivationBlock(nn.Module):
    """BatchNorm, ReLU, 3x3 convolution, twice."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, affine: bool) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels, affine=affine)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels, affine=affine)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.stride = stride
        self.new_channels = out_channels - in_channels

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(norm_act(self.bn1, x))
        y = self.conv2(norm_act(self.bn2, y))
        if self.stride == 2:
            x = F.avg_pool2d(x, 3, 2, padding=1, count_include_pad=False)
        if self.new_channels:
            x = F.pad(x, (0, 0, 0, 0, 0, self.new_channels))
        return x + y


class WideResNet20(nn.Module):
    """Twenty convolutions, ``width`` times as wide as ResNet-20."""

    def __init__(self, num_classes: int = 10, width: int = 4, affine: bool = False) -> None:
        super().__init__()
        widths = [width * w for w in WIDTHS]
        self.bn0 = nn.BatchNorm2d(3)
        self.conv1 = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        blocks = []
        for before, after, stride in zip([widths[0], *widths], widths, (1, 2, 2), strict=False):
            blocks.append(PreactivationBlock(before, after, stride, affine))
            blocks += [PreactivationBlock(after, after, 1, affine) for _ in range(2)]
        self.blocks = nn.Sequential(*blocks)
        self.bn1 = nn.BatchNorm2d(widths[2], affine=affine)
        self.classes = nn.Conv2d(widths[2], num_classes, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(num_classes, affine=affine)
        kaiming_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = norm_act(self.bn1, self.blocks(self.conv1(self.bn0(x))))
        return self.bn2(self.classes(x)).mean((2, 3))


def wide_resnet20(num_classes: int = 10, width: int = 4, affine: bool = False) -> WideResNet20:
    """Wide ResNet 20-k: 4.3 M parameters for width 4, 26.7 M for the paper's 10."""
    return WideResNet20(num_classes, width, affine)
