"""Hugging Face accelerate: the wrapped optimizer goes through ``prepare`` like any other.

pip install accelerate
python examples/accelerate_loop.py --epochs 4           # or: accelerate launch examples/accelerate_loop.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fastslow as fs
from fastslow.data import ImageSet


def network() -> nn.Module:
    """Binary but for its first and last layer, once it is binarized below."""
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(32 * 8 * 8, 10)),
    )


def train(
    method: str, epochs: int, training: ImageSet, batch_size: int = 64, accumulate: int = 2, state: Path | None = None
) -> tuple[nn.Module, list[float]]:
    """The trained network, and the loss of every batch; ``state`` receives accelerate's own checkpoint."""
    accelerator = Accelerator(gradient_accumulation_steps=accumulate)
    model = network()
    fs.binarize_(model, method, skip=fs.first_and_last(model))
    ((x, y),) = fs.data.Batches(training, len(training)).epoch()  # all images, normalised
    loader = DataLoader(TensorDataset(x, y), batch_size, shuffle=True, drop_last=True)
    batches = len(loader) // accelerator.num_processes  # that one process sees
    steps = epochs * -(-batches // accumulate)
    optimizer = fs.optimizer(model, torch.optim.Adam(model.parameters(), lr=1e-3), total_steps=steps, epochs=epochs)
    # accelerate steps a schedule once for every process.
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps * accelerator.num_processes)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    losses = []
    for _ in range(epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 5.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        accelerator.print(f"loss {losses[-1]:.4f}")
    if state is not None:
        accelerator.save_state(str(state))
        accelerator.load_state(str(state))
    return accelerator.unwrap_model(model), losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="fsg-weight", help="see `fastslow methods`; rbnn and xnor can't be packed")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    model, _ = train(options.method, options.epochs, fs.data.load("mini").train)
    print(fs.pack(model, "accelerate_loop.safetensors"))


if __name__ == "__main__":
    main()
