"""A small task for the common tests: images of four classes, and a network whose weights are nearly all binary."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastslow as fs

EPOCHS, BATCHES, BATCH = 10, 6, 32
STEPS = EPOCHS * BATCHES


class ToyNet(nn.Module):
    """Float stem, then convolution, hidden and output layer to be binarized."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.norm0 = nn.BatchNorm2d(4)
        self.conv = nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(6)
        self.hidden = nn.Linear(6 * 9, 12)
        self.norm2 = nn.BatchNorm1d(12)
        self.out = nn.Linear(12, 4)
        self.norm3 = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardtanh(self.norm0(self.stem(x)))
        x = F.hardtanh(self.norm1(self.conv(x)))
        x = F.hardtanh(self.norm2(self.hidden(x.flatten(1))))
        return self.norm3(self.out(x))


def toy_net(seed: int = 0) -> ToyNet:
    torch.manual_seed(seed)
    return ToyNet()


def toy_data(noise: float = 0.9) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    prototypes = torch.randn(8, 1, 6, 6, generator=generator)  # two a class: no single template will do
    kind = torch.arange(BATCHES * BATCH) % 8
    return prototypes[kind] + noise * torch.randn(len(kind), 1, 6, 6, generator=generator), kind % 4


def train(
    model: nn.Module, optimizer: fs.BinaryOptimizer, first: int, last: int, *, prepare: bool = False
) -> list[float]:
    """Steps ``first`` to ``last`` of the training; their losses."""
    x, y = toy_data()
    losses = []
    for step in range(first, last):
        batch = slice(step % BATCHES * BATCH, (step % BATCHES + 1) * BATCH)
        optimizer.zero_grad()
        if prepare:
            optimizer.prepare()
        loss = F.cross_entropy(model(x[batch]), y[batch])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    x, y = toy_data()
    model.eval()
    result = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return result
