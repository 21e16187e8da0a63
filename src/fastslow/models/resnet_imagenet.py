"""The residual networks for large images of He et al. 2016, table 1 (https://arxiv.org/abs/1512.03385).

A 7x7 stem with stride 2 and a max-pool take the image to a quarter of its side; four stages of basic blocks with 64,
128, 256 and 512 channels follow. Parameters are named as in the weights that are usually published for them.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ..ops import norm_act
from .resnet_cifar import kaiming_, stage


class ImageNetResNet(nn.Module):
    """`blocks` basic blocks in each of four stages; any image size, because the pool is global."""

    def __init__(self, blocks: tuple[int, int, int, int], num_classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = stage(64, 64, blocks[0], stride=1)
        self.layer2 = stage(64, 128, blocks[1], stride=2)
        self.layer3 = stage(128, 256, blocks[2], stride=2)
        self.layer4 = stage(256, 512, blocks[3], stride=2)
        self.fc = nn.Linear(512, num_classes)
        kaiming_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(norm_act(self.bn1, self.conv1(x)), 3, stride=2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def resnet18(num_classes: int = 1000) -> ImageNetResNet:
    """ResNet-18 for 224x224 images, 11.7 M parameters."""
    return ImageNetResNet((2, 2, 2, 2), num_classes)


def resnet34(num_classes: int = 1000) -> ImageNetResNet:
    """ResNet-34 for 224x224 images, 21.8 M parameters."""
    return ImageNetResNet((3, 4, 6, 3), num_classes)
