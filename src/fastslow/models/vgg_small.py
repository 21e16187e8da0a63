"""VGG-small, the plain network that papers on binary networks compare on: 2x(128C3)-MP-2x(256C3)-MP-2x(512C3)-MP-FC.

It descends from the network of BinaryConnect (https://arxiv.org/abs/1511.00363), with one linear layer for its three.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ..ops import norm_act
from .resnet_cifar import kaiming_


class VGGSmall(nn.Module):
    """Six 3x3 convolutions, pooled after every second one; images of `image_size` pixels square."""

    def __init__(self, num_classes: int = 10, image_size: int = 32) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(3, 128)
        self.conv2, self.bn2 = _conv(128, 128)
        self.conv3, self.bn3 = _conv(128, 256)
        self.conv4, self.bn4 = _conv(256, 256)
        self.conv5, self.bn5 = _conv(256, 512)
        self.conv6, self.bn6 = _conv(512, 512)
        self.fc = nn.Linear(512 * (image_size // 8) ** 2, num_classes)
        kaiming_(self)

    def forward(self, x: Tensor) -> Tensor:
        # The pool comes before BatchNorm and activation: after a binary activation nearly every maximum would be +1.
        x = norm_act(self.bn1, self.conv1(x))
        x = norm_act(self.bn2, F.max_pool2d(self.conv2(x), 2))
        x = norm_act(self.bn3, self.conv3(x))
        x = norm_act(self.bn4, F.max_pool2d(self.conv4(x), 2))
        x = norm_act(self.bn5, self.conv5(x))
        x = norm_act(self.bn6, F.max_pool2d(self.conv6(x), 2))
        return self.fc(x.flatten(1))


def _conv(in_channels: int, out_channels: int) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    return nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False), nn.BatchNorm2d(out_channels)


def vgg_small(num_classes: int = 10, image_size: int = 32) -> VGGSmall:
    """VGG-small, 4.66 M parameters."""
    return VGGSmall(num_classes, image_size)
