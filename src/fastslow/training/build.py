"""From a config to the parts of a run: model, batches, optimizer."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import models
from ..convert import binarize_, first_and_last
from ..data import AnyBatches, Dataset, batches_of, default_workers
from ..files import PRETRAINED
from ..methods import METHODS
from ..weights import load_strictly, load_weights
from .config import FIRST_AND_LAST, NONE, SHIPPED, RunConfig
from .evaluate import evaluation_batches
from .named_weights import PREFIX, find_weights
from .ranks import Ranks

log = logging.getLogger("fastslow")


def shipped_weights(model: str, data: str) -> Path:
    """The float network that comes with the package for this model and data set."""
    name = f"{model}_{'cifar10' if data == 'mini' else data}"  # the mini set is a part of CIFAR-10
    path = PRETRAINED / f"{name}.safetensors"
    if not path.is_file():
        there = ", ".join(sorted(p.stem for p in PRETRAINED.glob("*.safetensors"))) or "none"
        raise ValueError(
            f"no float weights are shipped for {model} on {data} (shipped: {there}); "
            "train them with `fastslow pretrain`, give a path, or start from scratch with --weights none"
        )
    return path


def weights_file(config: RunConfig) -> Path:
    """The file of the float weights that a config starts from."""
    if config.weights == SHIPPED:
        return shipped_weights(config.model, config.data)
    return find_weights(config.weights) if config.weights.startswith(PREFIX) else Path(config.weights)


def build_float_model(config: RunConfig, classes: int) -> nn.Module:
    """The float network of a config, its weights loaded."""
    torch.manual_seed(config.seed)
    fields = {"num_classes": classes, **config.model_fields}
    try:
        model = models.get_model(config.model, **fields)
    except TypeError as error:
        raise ValueError(f"model {config.model} doesn't take these fields: {error}") from error
    if config.weights != NONE:
        path = weights_file(config)
        weights = load_weights(path)
        # The authors' network has a BatchNorm before fc that float networks lack: it starts fresh, as in their code.
        if config.model_fields.get("bn_before_fc"):
            weights |= {key: value for key, value in model.state_dict().items() if key.startswith("bn2.")}
        load_strictly(model, weights, path)
    return model


def build_model(config: RunConfig, classes: int) -> nn.Module:
    """The model of a config, float weights loaded, binarized."""
    model = build_float_model(config, classes)
    if config.method is not None:
        skip = [name for entry in config.skip for name in _expand(model, entry)]
        binarize_(
            model,
            config.method,
            binarizer=config.binarizer,
            bits=config.bits,
            activations=config.activations,
            skip=skip,
            **method_fields(config),
        )
    return model


def method_fields(config: RunConfig) -> dict[str, Any]:
    """The method's fields; a method with hypernetworks gets the run's seed unless its own is given."""
    fields = dict(config.method_fields)
    if config.method is not None and "seed" in getattr(METHODS[config.method].cls, "__dataclass_fields__", {}):
        fields.setdefault("seed", config.seed)
    return fields


def _expand(model: nn.Module, entry: str) -> list[str]:
    return first_and_last(model) if entry == FIRST_AND_LAST else [entry]


def build_batches(
    config: RunConfig, dataset: Dataset, ranks: Ranks, device: torch.device, channels_last: bool
) -> tuple[AnyBatches, AnyBatches]:
    """What a run trains on, this rank's share of it, and what it is evaluated on."""
    if config.holdout != dataset.holdout:  # the result would name other images than it was measured on
        raise ValueError(
            f"the config holds out {config.holdout} training images and the data set {dataset.holdout}: load it with "
            f"fs.data.load({config.data!r}, holdout={config.holdout})"
        )
    if config.batch_size > len(dataset.train):
        log.warning(
            "batches of %d: there are %d training images, a batch has all", config.batch_size, len(dataset.train)
        )
    workers = default_workers(ranks.local_size) if config.workers < 0 else config.workers
    options: dict[str, Any] = {"device": device, "channels_last": channels_last, "workers": workers}
    train = batches_of(
        dataset.train,
        min(config.batch_size, len(dataset.train)),
        seed=config.seed,
        augment=config.augment,
        cutout=config.cutout,
        shuffle=True,
        drop_last=True,  # every step sees a whole batch: BatchNorm and the learned gradients assume it
        share=ranks.share,
        **options,
    )
    return train, evaluation_batches(dataset.test, **options)


def build_base_optimizer(config: RunConfig, model: nn.Module, capturable: bool = False) -> torch.optim.Optimizer:
    """The torch optimizer of a config; ``capturable`` in a CUDA graph: fused, the learning rate a tensor."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    common: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay}
    if capturable:
        common |= {"lr": torch.tensor(config.lr, device=parameters[0].device), "fused": True}
        if config.optimizer in ("adam", "adamw"):
            common["capturable"] = True
    if config.optimizer == "adam":
        return torch.optim.Adam(parameters, **common)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(parameters, **common)
    return torch.optim.SGD(parameters, momentum=config.momentum if config.optimizer == "momentum" else 0.0, **common)
