"""A network of your own in timm's manner: pointwise convolutions become binary, depthwise ones stay float.

python examples/own_model.py --epochs 8
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastslow as fs
from fastslow.data import ImageSet


class Block(nn.Module):
    """Depthwise 3x3, then a pointwise expansion and projection, with a shortcut."""

    def __init__(self, width: int, expansion: int = 2) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.expand = nn.Conv2d(width, expansion * width, 1, bias=False)
        self.expand_norm = nn.BatchNorm2d(expansion * width)
        self.project = nn.Conv2d(expansion * width, width, 1, bias=False)
        self.project_norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x))
        y = F.relu(self.expand_norm(self.expand(y)))
        return F.relu(x + self.project_norm(self.project(y)))


class PatchNet(nn.Module):
    """A patch stem, blocks, a pooled head; ``forward_features`` and ``forward_head`` as timm's networks have them."""

    def __init__(self, num_classes: int = 10, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.num_features = width
        self.stem = nn.Sequential(nn.Conv2d(3, width, 4, stride=4), nn.BatchNorm2d(width))
        self.blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
        self.head = nn.Linear(width, num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        return self.blocks(self.stem(x))

    def forward_head(self, x: Tensor) -> Tensor:
        return self.head(x.mean((2, 3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def get_classifier(self) -> nn.Module:
        return self.head


def train(method: str, epochs: int, training: ImageSet, batch_size: int = 64) -> tuple[PatchNet, list[float]]:
    """The trained network, and the mean loss of each epoch."""
    batches = fs.data.Batches(training, batch_size, augment=True, shuffle=True, drop_last=True)

    model = PatchNet()
    print(fs.binarize_(model, method, skip=["stem.*", "head", "*.depthwise"]))
    # Weight decay for the projections alone, as is usual: the wrapper keeps the groups and their settings.
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 1e-4}, {"params": others, "weight_decay": 0.0}]
    steps = epochs * len(batches)
    optimizer = fs.optimizer(model, torch.optim.AdamW(groups, lr=2e-3), total_steps=steps, epochs=epochs)

    means = []
    for epoch in range(epochs):
        losses = []
        for x, y in batches.epoch(epoch):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        means.append(sum(losses) / len(losses))
        print(f"epoch {epoch + 1}: loss {means[-1]:.4f}")
    return model, means


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="fsg-weight", help="see `fastslow methods`; rbnn and xnor can't be packed")
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    model, _ = train(options.method, options.epochs, fs.data.load("mini").train)
    print(fs.pack(model, "own_model.safetensors"))


if __name__ == "__main__":
    main()
