"""Trained networks back from disk, for the commands that look at them."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from .. import data as datasets
from ..data import Description
from ..files import how_to_resume
from ..training.build import build_model
from ..training.config import FIRST_AND_LAST, NONE, RunConfig
from ..training.run import WEIGHTS, RunError, RunFolder
from ..weights import load_strictly, load_weights, read_metadata

log = logging.getLogger("fastslow")


def images_of(run: RunFolder) -> Description:
    """The images that a run was trained on, which needn't be there any more."""
    config = run.config()
    return run.images() or datasets.describe(config.data, size=config.image_size or None)


def load_trained(what: Path, *, model: str | None = None, data: str | None = None) -> tuple[nn.Module, RunConfig]:
    """The network of a run at its newest state, or of a weights file, and the config it belongs to."""
    if what.is_dir():
        run = RunFolder.open(what)
        config = run.config()
        if model is not None and model != config.model:
            raise ValueError(f"--model {model}: the run in {what} trained {config.model}; leave it out")
        network = build_model(dataclasses.replace(config, weights=NONE), len(images_of(run).classes))
        weights = what / WEIGHTS
        if weights.is_file():
            _check_method(weights, config)
            load_strictly(network, load_weights(weights), weights)
        elif run.checkpoints.paths():
            path, state = run.checkpoints.load_newest()
            load_strictly(network, state.get("average", state["model"]), path)
            after = f"{state['done']} steps, {len(state['rows'])} of {config.epochs} epochs"
            log.warning("%s isn't finished: this is its network after %s", what, after)
        else:
            raise RunError(f"{what} has no weights yet; continue it with {how_to_resume(what)}")
    else:
        weights = load_weights(what)
        if model is None:
            raise ValueError(f"{what} holds weights only; name its network with --model")
        method = read_metadata(what).get("method")
        if method is not None:
            raise ValueError(
                f"{what} holds the latent weights of a network trained with {method}: give the folder of its run"
            )
        config = RunConfig(model=model, data=data or "cifar10", method=None)
        network = build_model(config, len(datasets.describe(config.data).classes))
        load_strictly(network, weights, what)
    if data is not None:
        config = dataclasses.replace(config, data=data, holdout=0)
    return network, config


def _check_method(weights: Path, config: RunConfig) -> None:
    metadata = read_metadata(weights)
    if "key" in metadata and metadata.get("method") != config.method:
        was = metadata.get("method", "no method, in float")
        raise RunError(
            f"{weights} was trained with {was}, and config.json says {config.method or 'none'}: put that back"
        )


def load_for_summary(
    what: Path | None,
    *,
    model: str | None,
    method: str,
    skip: list[str] | None,
    classes: int | None = None,
    image_size: int | None = None,
) -> tuple[nn.Module, tuple[int, ...]]:
    """A network, binarized if it isn't, and the shape of one input."""
    if what is not None and what.is_dir():
        if classes is not None or image_size is not None:
            raise ValueError("--classes and --image-size: a run knows its own; leave them out")
        network, config = load_trained(what, model=model)
        side = config.image_size or (224 if config.data.startswith("stream:") else 32)
        return network, (3, side, side)
    if model is None:
        raise ValueError("give the folder of a run, or name a network with --model")
    skips = (FIRST_AND_LAST,) if skip is None else tuple(entry for entry in skip if entry != "none")
    of_imagenet = model in ("resnet18", "resnet34")
    network = build_model(RunConfig(model=model, method=method, skip=skips), classes or (1000 if of_imagenet else 10))
    if what is not None:
        load_strictly(network, load_weights(what), what)
    else:
        _as_trained(network)
    side = image_size or (224 if of_imagenet else 32)
    return network, (3, side, side)


def _as_trained(network: nn.Module) -> None:
    """Statistics and scales that differ: equal ones, as at the start, would be packed as a single number."""
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                if tensor is not None:
                    nn.init.uniform_(tensor, 0.5, 1.5)
