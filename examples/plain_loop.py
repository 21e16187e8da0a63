"""A plain PyTorch loop: a scheduler and gradient clipping act on the wrapped optimizer as on any other.

python examples/plain_loop.py --method fsg-weight --epochs 8
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import nn

import fastslow as fs
from fastslow.data import ImageSet


def train(
    method: str, epochs: int, training: ImageSet, batch_size: int = 64, lr: float = 1e-3
) -> tuple[nn.Module, list[float]]:
    """The trained network, and the mean loss of each epoch."""
    batches = fs.data.Batches(training, batch_size, augment=True, shuffle=True, drop_last=True)

    model = fs.models.resnet20(num_classes=10)
    fs.binarize_(model, method, skip=fs.first_and_last(model))
    steps = epochs * len(batches)
    optimizer = fs.optimizer(model, torch.optim.Adam(model.parameters(), lr=lr), total_steps=steps, epochs=epochs)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    means = []
    for epoch in range(epochs):
        losses = []
        for x, y in batches.epoch(epoch):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            scheduler.step()
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
    print(fs.pack(model, "plain_loop.safetensors"))


if __name__ == "__main__":
    main()
