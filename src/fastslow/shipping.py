"""From the folder of a run to a packed file that knows where it comes from."""

from __future__ import annotations

from pathlib import Path

from . import data as datasets
from .deploy.pack import Packed, pack
from .report.load import load_trained
from .training.run import RunFolder


def pack_run(run: Path, out: Path, *, dtype: str = "float32") -> Packed:
    """Pack the network of a run, with its normalisation, class names and result."""
    if not run.is_dir():
        raise ValueError(f"{run} is no folder; give the folder of a run")
    network, config = load_trained(run)
    if config.method is None:
        raise ValueError(f"{run} trained a float network: there are no bits to pack; train it with --method")
    images = datasets.load(config.data).test
    found = RunFolder.open(run).result() or {}
    keys = ("test_accuracy", "best_test_accuracy", "metric", "n_test", "seconds", "key", "config", "conditions")
    return pack(
        network,
        out,
        input_shape=tuple(images.images.shape[1:]),
        dtype=dtype,
        mean=images.mean,
        std=images.std,
        classes=images.classes,
        result={key: found[key] for key in keys if key in found},
    )
