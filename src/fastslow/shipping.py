"""From the folder of a run to a packed file that knows where it comes from."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from torch import nn

from .deploy.pack import Packed, pack
from .report.load import images_of, load_trained
from .training.build import build_model
from .training.config import NONE, RunConfig, published
from .training.run import RunFolder
from .weights import load_strictly, load_weights


def pack_run(run: Path, out: Path, *, dtype: str = "float32") -> Packed:
    """Pack the network of a run, with its normalisation, class names and result."""
    if not run.is_dir():
        raise ValueError(f"{run} is no folder; give the folder of a run")
    network, config = load_trained(run)
    if config.method is None:
        raise ValueError(f"{run} trained a float network: there are no bits to pack; train it with --method")
    folder = RunFolder.open(run)
    images = images_of(folder)
    found = folder.result() or {}
    if found:
        found["config"] = published(found["config"])
    keys = ("test_accuracy", "best_test_accuracy", "metric", "n_test", "seconds", "key", "config", "conditions")
    return pack(
        network,
        out,
        input_shape=images.shape,
        dtype=dtype,
        mean=images.mean,
        std=images.std,
        classes=images.classes,
        result={key: found[key] for key in keys if key in found},
    )


def load_shipped(config_file: Path, weights_file: Path, classes: int) -> nn.Module:
    """The binary torch network of a run that was shipped as these two files; it needs no data set."""
    try:
        values = json.loads(config_file.read_text())
        if not isinstance(values, dict):
            raise ValueError("it holds no JSON object")
        config = RunConfig.from_dict(values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{config_file.name} is no config of a run: {error}") from error
    network = build_model(dataclasses.replace(config, weights=NONE), classes)
    load_strictly(network, load_weights(weights_file), weights_file.name)
    return network.eval()
