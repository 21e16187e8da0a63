"""The network that a run reports and keeps, where that isn't the one in training: averaged, or normalised anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..methods.flat import copy_all
from .config import RunConfig


class Shown:
    """What evaluation and the weights file of a run get to see; the training never does.

    With ``config.ema`` they see the moving average of the network, with ``config.reestimate`` at the end of the run
    BatchNorm statistics of that many training batches. With neither it is the network in training.
    """

    def __init__(self, config: RunConfig, model: nn.Module) -> None:
        self.model = model
        self.average = Average(model, config.ema) if config.ema else None
        self.statistics = Statistics(model, config.reestimate) if config.reestimate else None

    def follow(self) -> None:
        """Called after every step."""
        if self.average is not None:
            self.average.follow()

    def measure(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Recompute BatchNorm's statistics, called at the end of the run."""
        if self.statistics is not None:
            with self.network(last=False):
                self.statistics.measure(self.model, batches)

    def differs(self, last: bool) -> bool:
        """Whether it is another network than the one in training; ``last``: at the end of the run."""
        return self.average is not None or (last and self.statistics is not None)

    @contextmanager
    def network(self, last: bool) -> Iterator[None]:
        """While entered, the model holds what is shown."""
        with ExitStack() as stack:
            if self.average is not None:
                stack.enter_context(_holding(self.average.live, self.average.kept))
            if last and self.statistics is not None:
                stack.enter_context(_holding(self.statistics.live, self.statistics.kept))
            yield

    def describe(self) -> str:
        """In what a result differs from that of the network in training, to be said after its metric."""
        average = "" if self.average is None else f", weights averaged with {self.average.decay:g}"
        statistics = "" if self.statistics is None else f", BatchNorm statistics of {self.statistics.count} batches"
        return average + statistics

    def broken(self) -> str | None:
        """The first number of the average that is not finite."""
        kept = {} if self.average is None else self.average.kept
        return next((f"the average of {k}" for k, v in kept.items() if not bool(torch.isfinite(v).all())), None)

    def state_dict(self) -> dict[str, Any]:
        """Nothing for a run that shows the network in training."""
        parts = {"average": self.average, "statistics": self.statistics}
        return {name: dict(part.kept) for name, part in parts.items() if part is not None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, own in self.state_dict().items():
            copy_all(list(own.values()), [state[name][key].to(value.device) for key, value in own.items()])


class Average:
    """``kept <- kept + (1 - decay) (network - kept)`` after every step, from the network at the start of the run.

    Averaged are all parameters, latent weights among them, and BatchNorm's statistics. Any other buffer (a count, the
    rotations of RBNN) is no quantity to average and is taken as it is. Bits come from the averaged latent weights.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.live = {key: value for key, value in model.state_dict().items() if isinstance(value, Tensor)}
        self.kept = {key: value.clone() for key, value in self.live.items()}
        of_mean = dict(model.named_parameters(remove_duplicate=False)).keys() | _statistics(model).keys()
        moving = [key for key, value in self.live.items() if key in of_mean and value.is_floating_point()]
        self._averaged = [self.kept[key] for key in moving], [self.live[key] for key in moving]
        rest = [key for key in self.live if key not in set(moving)]
        self._copied = [self.kept[key] for key in rest], [self.live[key] for key in rest]

    @torch.no_grad()
    def follow(self) -> None:
        """In place and in a handful of operations: part of a captured step."""
        torch._foreach_lerp_(*self._averaged, 1 - self.decay)  # pyright: ignore[reportPrivateImportUsage]
        if self._copied[0]:
            copy_all(*self._copied)


class Statistics:
    """Mean and variance of BatchNorm as the means over ``count`` batches, each normalised by its own.

    Running averages lag behind weights that still move, and behind averaged weights altogether.
    """

    def __init__(self, model: nn.Module, count: int) -> None:
        self.count = count
        self.live = _statistics(model)
        if not self.live:
            raise ValueError(f"reestimate={count}: the network has no BatchNorm statistics; leave it at 0")
        self.kept = {key: value.clone() for key, value in self.live.items()}

    @torch.no_grad()
    def measure(self, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Only BatchNorm works as in training: nothing random, and no look-ahead. Modes and buffers come back."""
        norms = list(_norms(model).values())
        before = [(module, module.training) for module in model.modules()], [norm.momentum for norm in norms]
        try:
            with _holding(self.live, self.live):  # whatever happens to them meanwhile
                model.eval()
                for norm in norms:
                    norm.train()
                    norm.momentum = None  # torch's word for a plain mean
                    norm.reset_running_stats()
                for _, (x, _) in zip(range(self.count), batches, strict=False):
                    model(x)
                copy_all(list(self.kept.values()), list(self.live.values()))
        finally:
            for module, mode in before[0]:
                module.training = mode
            for norm, momentum in zip(norms, before[1], strict=True):
                norm.momentum = momentum


def _norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """The layers that keep running statistics."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    return {name: norm for name, norm in found.items() if norm.running_mean is not None}


def _statistics(model: nn.Module) -> dict[str, Tensor]:
    """Means, variances and counts of BatchNorm by their keys in the model's ``state_dict``."""
    state = model.state_dict()
    norms = _norms(model).items()
    keys = [f"{name}.{key}".lstrip(".") for name, norm in norms for key, _ in norm.named_buffers(recurse=False)]
    return {key: state[key] for key in keys}


@contextmanager
def _holding(live: dict[str, Tensor], shown: dict[str, Tensor]) -> Iterator[None]:
    """While entered, ``live`` hold the values of ``shown``, in their own memory, which a captured step reads."""
    before = [tensor.clone() for tensor in live.values()]
    try:
        copy_all(list(live.values()), list(shown.values()))
        yield
    finally:
        copy_all(list(live.values()), before)
