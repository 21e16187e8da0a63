"""A Lightning module: the wrapped optimizer is what ``configure_optimizers`` returns.

pip install pytorch-lightning
python examples/lightning_module.py --method fsg-weight --epochs 4
"""

from __future__ import annotations

import argparse
from typing import Any

import pytorch_lightning as lightning
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fastslow as fs
from fastslow.data import ImageSet


class BinaryClassifier(lightning.LightningModule):
    """A small convolutional network, binary but for its first and last layer."""

    def __init__(self, method: str = "fsg-weight", lr: float = 1e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = nn.Sequential(
            *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
            *(nn.Conv2d(32, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
        )
        fs.binarize_(self.network, method, skip=fs.first_and_last(self.network))

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_index: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> dict[str, Any]:
        steps = int(self.trainer.estimated_stepping_batches)
        base = torch.optim.Adam(self.parameters(), lr=self.hparams["lr"])
        optimizer = fs.optimizer(self, base, total_steps=steps, epochs=self.trainer.max_epochs)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def loader(training: ImageSet, batch_size: int = 64) -> DataLoader[tuple[Tensor, ...]]:
    """Shuffled batches of normalised images."""
    ((x, y),) = fs.data.Batches(training, len(training)).epoch()
    return DataLoader(TensorDataset(x, y), batch_size, shuffle=True, drop_last=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="fsg-weight", help="see `fastslow methods`; rbnn and xnor can't be packed")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    module = BinaryClassifier(options.method)
    trainer = lightning.Trainer(max_epochs=options.epochs, gradient_clip_val=5.0)
    trainer.fit(module, loader(fs.data.load("mini").train))
    print(fs.pack(module.network, "lightning_module.safetensors"))


if __name__ == "__main__":
    main()
