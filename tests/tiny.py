"""A network, data and configs small enough to train in a moment, for this process and for others.

``python tests/tiny.py cli ARGUMENTS`` is the command line with the tiny network registered (``TINY_KILL=RANK:STEP``
lets that rank of a torchrun kill itself before that step, once);
``python tests/tiny.py finish FOLDER...`` resumes these runs and writes their last state beside them.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastslow import models
from fastslow.data import Dataset, ImageSet
from fastslow.training import checkpoint
from fastslow.training.config import RunConfig
from fastslow.training.loop import Trainer
from fastslow.training.run import RunFolder

SMALL = {"expand": 4, "d_state": 2, "length": 3, "fast_hidden": 5, "slow_hidden": 4}
METHODS: dict[str, dict[str, Any]] = {
    "ste": {},
    "fcgrad": {"hidden": 5},
    "multifc": {"hidden": 5},
    "lstmfc": {"hidden": 3},
    "fsg": SMALL,
    "fsg-code": SMALL,
    "fsg-lstm": SMALL,
    "fsg-weight": SMALL,
    "fsg-plus": {"band": 1.0},
}


class Tiny(nn.Module):
    """Binary: c2 and c3, 864 weights and a bias. The dropout draws from torch's global generator in training."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(3, 4, 3, padding=1)
        self.c2 = nn.Conv2d(4, 8, 3, stride=2, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.c3 = nn.Conv2d(8, 8, 3, padding=1)
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(8, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.c2(F.relu(self.c1(x)))))
        return self.fc(self.drop(F.relu(self.c3(x))).mean((2, 3)))


def bare(num_classes: int = 10) -> nn.Module:
    """Nothing random in training and no BatchNorm: what a batch is split into makes no difference."""
    return nn.Sequential(
        *(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, num_classes)),
    )


def small(num_classes: int = 10) -> nn.Module:
    """3,456 binary weights; for images of 16 x 16 pixels."""
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(256, num_classes)),
    )


if "tiny" not in models.list_models():
    models._MODELS.add("tiny", Tiny)
    models._MODELS.add("small", small)
    models._MODELS.add("bare", bare)


def images(n: int, seed: int, size: int = 8, classes: int = 10) -> ImageSet:
    """Noise around one random picture a class: learnable, and made in no time."""
    pictures = torch.randint(0, 200, (classes, 3, size, size), generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (n,), generator=generator)
    noise = torch.randint(0, 56, (n, 3, size, size), generator=generator)
    return ImageSet(
        images=(pictures[labels] + noise).to(torch.uint8), labels=labels, classes=tuple(map(str, range(classes)))
    )


def dataset() -> Dataset:
    return Dataset(name="tiny", train=images(44, 1), test=images(20, 2))


def config(method: str | None = "ste", **fields: Any) -> RunConfig:
    """Five steps an epoch, the rest of the 44 images is dropped."""
    known = METHODS.get(method or "", {})
    defaults: dict[str, Any] = {"epochs": 3, "batch_size": 8, "lr": 1e-2, "schedule": "cosine", "method_fields": known}
    return RunConfig(method=method, **{"model": "tiny", "data": "tiny", **defaults, **fields})


def trainer(config: RunConfig, run: Path | None = None, **fields: Any) -> Trainer:
    """A trainer of a new run, or without a folder."""
    return Trainer(config, dataset(), run=None if run is None else RunFolder.create(run, config), **fields)


def resumed(run: Path) -> Trainer:
    folder = RunFolder.open(run)
    trainer = Trainer(folder.config(), dataset(), run=folder)
    trainer.resume()
    return trainer


def step(trainer: Trainer, count: int) -> None:
    """Train like ``fit``, but stop after so many steps of the first epochs."""
    for _ in range(count):
        epoch, start = divmod(trainer.done, len(trainer.train_batches))
        if epoch > len(trainer.rows):
            trainer._end_epoch(len(trainer.rows))
        trainer.train_step(*next(iter(trainer.train_batches.epoch(epoch, start))))


def assert_same_state(one: Any, other: Any, where: str = "state") -> None:
    """Bit for bit, but for what a clock says."""
    assert isinstance(other, dict) if isinstance(one, dict) else type(one) is type(other), where
    if isinstance(one, Tensor):
        assert one.dtype == other.dtype, where
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert list(one) == list(other), where
        for key in one:
            if key not in ("seconds", "epoch_seconds"):
                assert_same_state(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same_state(a, b, f"{where}[{i}]")
    else:
        assert one == other, where


def _kill_before(step: int) -> None:
    train_step = Trainer.train_step

    def deadly(trainer: Trainer, x: Tensor, y: Tensor) -> float | None:
        if trainer.done == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return train_step(trainer, x, y)

    Trainer.train_step = deadly


def main() -> None:
    command, *arguments = sys.argv[1:]
    if command == "cli":
        from fastslow.cli import main as command_line

        rank, _, step = os.environ.get("TINY_KILL", "").partition(":")
        if rank and rank == os.environ["RANK"] and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            _kill_before(int(step))
        sys.argv = ["fastslow", *arguments]
        command_line()
    for folder in map(Path, arguments):
        trainer = resumed(folder)
        trainer.fit()
        checkpoint.save(folder / "last.safetensors", trainer.state_dict())


if __name__ == "__main__":
    main()
