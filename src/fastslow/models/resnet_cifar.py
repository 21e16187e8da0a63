"""The residual networks for 32x32 images of He et al. 2016, section 4.2 (https://arxiv.org/abs/1512.03385).

Depth is `6n + 2`: a 3x3 stem without max-pooling, three stages of `n` basic blocks with 16, 32 and 64 channels, a
global average pool and one linear layer. Where the shape changes the shortcut is a 1x1 convolution with BatchNorm
("option B").
"""

from __future__ import annotations

from torch import Tensor, nn

from ..ops import norm_act

WIDTHS = (16, 32, 64)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with the activation after the sum."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        # Without a change of shape there is no module at all, so that the keys are those of the published weights.
        self.downsample = None
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        if self.downsample is not None:
            conv, bn = self.downsample
            shortcut = norm_act(bn, conv(x), relu=False)  # pyright: ignore[reportArgumentType]
        x = norm_act(self.bn1, self.conv1(x))
        return norm_act(self.bn2, self.conv2(x), shortcut)


class ResNet(nn.Module):
    """`blocks` basic blocks in each of three stages; any image size, because the pool is global."""

    def __init__(self, blocks: int, num_classes: int = 10, bn_before_fc: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTHS[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.layer1 = stage(WIDTHS[0], WIDTHS[0], blocks, stride=1)
        self.layer2 = stage(WIDTHS[0], WIDTHS[1], blocks, stride=2)
        self.layer3 = stage(WIDTHS[1], WIDTHS[2], blocks, stride=2)
        # The public code of FSG normalises the pooled features and names the layer so; MetaQuant's networks do not.
        self.bn2 = nn.BatchNorm1d(WIDTHS[2]) if bn_before_fc else None
        self.fc = nn.Linear(WIDTHS[2], num_classes)
        kaiming_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = norm_act(self.bn1, self.conv1(x))
        x = self.layer3(self.layer2(self.layer1(x)))
        x = x.mean((2, 3))
        if self.bn2 is not None:
            x = self.bn2(x)
        return self.fc(x)


def stage(in_channels: int, out_channels: int, blocks: int, stride: int) -> nn.Sequential:
    """Basic blocks one after the other; the first one changes the shape."""
    first = BasicBlock(in_channels, out_channels, stride)
    return nn.Sequential(first, *(BasicBlock(out_channels, out_channels, 1) for _ in range(blocks - 1)))


def kaiming_(model: nn.Module) -> None:
    """He initialisation of every convolution, in place.

    PyTorch's default is a third of the variance that a ReLU needs. The linear layer, which no ReLU follows, keeps it.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def resnet8(num_classes: int = 10, bn_before_fc: bool = False) -> ResNet:
    """ResNet-8, 0.08 M parameters: for tests and first tries."""
    return ResNet(1, num_classes, bn_before_fc)


def resnet20(num_classes: int = 10, bn_before_fc: bool = False) -> ResNet:
    """ResNet-20, 0.27 M parameters."""
    return ResNet(3, num_classes, bn_before_fc)


def resnet32(num_classes: int = 10, bn_before_fc: bool = False) -> ResNet:
    """ResNet-32, 0.47 M parameters."""
    return ResNet(5, num_classes, bn_before_fc)


def resnet44(num_classes: int = 10, bn_before_fc: bool = False) -> ResNet:
    """ResNet-44, 0.66 M parameters."""
    return ResNet(7, num_classes, bn_before_fc)


def resnet56(num_classes: int = 10, bn_before_fc: bool = False) -> ResNet:
    """ResNet-56, 0.86 M parameters."""
    return ResNet(9, num_classes, bn_before_fc)


def resnet110(num_classes: int = 10, bn_before_fc: bool = False) -> ResNet:
    """ResNet-110, 1.73 M parameters."""
    return ResNet(18, num_classes, bn_before_fc)
