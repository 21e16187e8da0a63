"""A Transformer encoder whose feed-forward layers are binary, on a task that needs attention.

The network reads 16 symbols and names the one that occurs twice.

python examples/transformer.py --steps 1000
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastslow as fs

SYMBOLS, LENGTH = 20, 16


class Reader(nn.Module):
    """Embedding, encoder, one logit a symbol."""

    def __init__(self, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, width)
        layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, SYMBOLS)

    def forward(self, symbols: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(symbols)).amax(1))


def batch(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sequences of different symbols, but for one that is there twice; and that one."""
    symbols = torch.rand(size, SYMBOLS, generator=generator).argsort(1)[:, :LENGTH]
    places = torch.rand(size, LENGTH, generator=generator).argsort(1)
    rows = torch.arange(size)
    symbols[rows, places[:, 1]] = symbols[rows, places[:, 0]]
    return symbols, symbols[rows, places[:, 0]]


def train(method: str, steps: int, batch_size: int = 64, lr: float = 2e-3) -> tuple[nn.Module, list[float]]:
    """The trained network, and the loss of every step."""
    generator = torch.Generator().manual_seed(0)
    model = Reader()
    # Attention reads its projections' weights itself, past their layers: they stay float.
    fs.binarize_(model, method, only=["encoder.layers.*.linear1", "encoder.layers.*.linear2"])
    optimizer = fs.optimizer(model, torch.optim.AdamW(model.parameters(), lr=lr), total_steps=steps, epochs=1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = []
    for step in range(steps):
        symbols, twice = batch(batch_size, generator)
        loss = F.cross_entropy(model(symbols), twice)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: loss {losses[-1]:.4f}")
    return model, losses


@torch.no_grad()
def accuracy(model: nn.Module, n: int = 1000) -> float:
    """On sequences that were not trained on."""
    symbols, twice = batch(n, torch.Generator().manual_seed(1))
    return (model.eval()(symbols).argmax(1) == twice).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="ste", help="any name that `fastslow methods` lists")
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    model, _ = train(options.method, options.steps)
    print(f"accuracy {accuracy(model):.1%}")


if __name__ == "__main__":
    main()
