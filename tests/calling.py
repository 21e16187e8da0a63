"""The command line called from a test: what it answers, and a run for it to be called on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

import tiny
from fastslow import data
from fastslow.training.config import RunConfig
from fastslow.training.loop import Trainer
from fastslow.training.run import RunFolder

QUICK = ["--model", "tiny", "--method", "ste", "--epochs", 1, "--batch-size", 9]


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out.splitlines()[-1])


def write_pictures(folder: Path, count: int = 40) -> str:
    """A data set of two classes of pictures of 32 x 32 pixels, a tenth of them for the test; returns its name."""
    made = tiny.images(count, 3, size=32, classes=2)
    for i, image in enumerate(made.images):
        path = folder / ("cats", "dogs")[i % 2] / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    return f"folder:{folder}"


def finish_run(path: Path, pictures: str) -> Path:
    config = RunConfig(model="tiny", data=pictures, method="ste", epochs=2, batch_size=9)
    Trainer(config, data.load(pictures), run=RunFolder.create(path, config)).fit()
    return path
