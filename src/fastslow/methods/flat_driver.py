"""What learned methods share: hypernetworks for all layers, and numbers per weight in flat vectors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from . import flat
from .base import Driver, Method, Slot


@dataclass(frozen=True, kw_only=True)
class RememberingMethod(Method):
    """A method whose driver keeps numbers for every weight."""

    needs_wrapper: ClassVar[bool] = True
    descends: ClassVar[bool] = True

    def check_layers(self, layers: Mapping[str, nn.Module]) -> None:
        first: dict[int, str] = {}
        for name, layer in layers.items():
            other = first.setdefault(id(layer.weight), name)
            if other != name:
                raise ValueError(
                    f"{name!r} and {other!r} share one weight; {self.name} keeps numbers of each layer's own: untie "
                    "them, or choose a method that keeps none, such as ste"
                )


@dataclass(frozen=True, kw_only=True)
class LearnedMethod(RememberingMethod):
    """A method with hypernetworks, which learn during training. ``seed`` initialises them, the same on every rank."""

    seed: int = 0


class FlatDriver(Driver):
    """A driver whose numbers per weight are flat over all layers, in the order of the slots."""

    def __init__(self, method: RememberingMethod, slots: list[Slot]) -> None:
        self.slots = slots
        weights = [slot.layer.weight for slot in slots]
        devices = {weight.device for weight in weights}
        if len(devices) > 1:
            raise ValueError(f"{method.name} needs all binary layers on one device, found {sorted(map(str, devices))}")
        self.device = weights[0].device
        self.dtype = torch.float64 if weights[0].dtype == torch.float64 else torch.float32
        self.sizes = [weight.numel() for weight in weights]
        self._method_name = method.name

    @property
    def graph_safe(self) -> bool:
        return True  # all that a step writes and a later one reads has its place for good

    # -- flat vectors ---------------------------------------------------------------------------------------------

    def zeros(self, *rows: int) -> Tensor:
        """A number for each weight, or several rows of them."""
        return torch.zeros(*rows, sum(self.sizes), dtype=self.dtype, device=self.device)

    def columns(self, layers: Sequence[int]) -> slice | Tensor:
        """Where these layers lie in a flat vector."""
        if len(layers) == len(self.sizes):
            return slice(None)
        starts = [sum(self.sizes[:i]) for i in layers]
        return torch.cat(
            [torch.arange(s, s + self.sizes[i], device=self.device) for s, i in zip(starts, layers, strict=True)]
        )

    def join(self, tensors: Sequence[Tensor]) -> Tensor:
        return flat.join([tensor.detach() for tensor in tensors]).to(self.dtype)

    # -- where the weights are, and whether all is well -----------------------------------------------------------

    def follow_weights(self) -> None:
        """If the model was moved after the wrapper was built, go where its weights are."""
        device = self.slots[0].layer.weight.device
        if device != self.device:
            self.device = device
            self.move(device)

    @abstractmethod
    def move(self, device: torch.device) -> None:
        """Move everything that is kept."""

    @abstractmethod
    def hypernetworks(self) -> Iterable[tuple[str, Tensor]]:
        """The hypernetworks' parameters, by their names."""

    @abstractmethod
    def kept(self) -> dict[str, Tensor]:
        """What is remembered of every weight, in words; the weights lie along the last dimension."""

    def broken(self) -> str | None:
        for name, parameter in self.hypernetworks():
            if not torch.isfinite(parameter).all():
                return f"the hypernetwork {name} of {self._method_name}"
        for what, values in self.kept().items():
            if not (finite := torch.isfinite(values)).all():
                position = int((~finite.reshape(-1, finite.shape[-1]).all(0)).nonzero()[0])
                layer = next(i for i in range(len(self.sizes)) if position < sum(self.sizes[: i + 1]))
                return f"{what} of {self.slots[layer].name}"
        return None


def gradient(slot: Slot) -> Tensor:
    """The gradient of a layer that takes part in the step."""
    assert slot.layer.weight.grad is not None
    return slot.layer.weight.grad
