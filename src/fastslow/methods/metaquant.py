"""MetaQuant's meta networks: FCGrad, MultiFC and LSTMFC.

Chen, Wang, Pan, *MetaQuant: Learning to Quantize by Learning to Penetrate Non-differentiable Quantization* (NeurIPS
2019). A meta network M shared by all layers turns what the last iteration left into the gradient of this one:

    FCGrad   m = M(g)              two linear layers
    MultiFC  m = M(What) * g       three linear layers
    LSTMFC   m = M(What; h) * g    an LSTM step whose state h is carried through the whole run

``C * m`` is registered as the gradient. The forward pass looks ahead by the step that was *already applied*,
``W~ = W - eta r`` (r: the gradient as the optimizer refined it), while phi is trained through ``- eta C m``: the value
of the look-ahead and its graph differ. The bias looks ahead likewise.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..hypernets.coordinate import CoordinateLSTM
from ..hypernets.fast import FastNet
from .base import Slot
from .flat import copy_all, subtract_all
from .lookahead import LookaheadDriver, LookaheadMethod, Proposal, _shift


@dataclass(frozen=True, kw_only=True)
class MetaQuant(LookaheadMethod):
    """Fields shared by the three: hidden units of the meta network and the learning rate of its Adam."""

    hidden: int = 100
    meta_lr: float = 1e-3

    def __post_init__(self) -> None:
        if not isinstance(self.hidden, int) or self.hidden < 1:
            raise ValueError(f"hidden={self.hidden!r}: a meta network needs at least one hidden unit")
        if self.meta_lr < 0:
            raise ValueError(f"meta_lr={self.meta_lr}: a learning rate can't be negative")


@dataclass(frozen=True, kw_only=True)
class FCGrad(MetaQuant):
    """``m = M(g)``. Without bias or non-linearity M is one learned scalar: a learned learning rate with a sign."""

    name: ClassVar[str] = "fcgrad"

    def driver(self, slots: list[Slot]) -> FCGradDriver:
        return FCGradDriver(self, slots)


@dataclass(frozen=True, kw_only=True)
class MultiFC(MetaQuant):
    """``m = M(What) * g = k * What * g``."""

    name: ClassVar[str] = "multifc"

    def driver(self, slots: list[Slot]) -> MultiFCDriver:
        return MultiFCDriver(self, slots)


@dataclass(frozen=True, kw_only=True)
class LSTMFC(MetaQuant):
    """``m = M(What; h) * g`` with a recurrent M: it keeps 2 * hidden numbers a weight."""

    name: ClassVar[str] = "lstmfc"

    def driver(self, slots: list[Slot]) -> LSTMFCDriver:
        return LSTMFCDriver(self, slots)


class MetaQuantDriver(LookaheadDriver):
    method: MetaQuant

    def __init__(self, method: MetaQuant, slots: list[Slot]) -> None:
        super().__init__(method, slots)
        self.gradient = self.zeros()  # g of the last iteration
        self._before: list[Tensor] = []
        self._bias_before: list[Tensor | None] = []

    def build_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adam(self.nets.parameters(), lr=self.method.meta_lr)]

    @abstractmethod
    def meta_gradient(self, layers: Sequence[int]) -> Tensor:
        """``m``, flat, differentiable in phi."""

    def propose(self, layers: Sequence[int]) -> Proposal:
        registered = self.calibration(layers) * self.meta_gradient(layers)
        return Proposal(self.eta(layers) * registered, registered)

    def remember(self, layers: Sequence[int], gradients: Sequence[Tensor]) -> None:
        self.gradient[self.columns(layers)] = self.join(gradients)
        weights = [self.slots[i].layer.weight.detach() for i in layers]
        self._before = [torch.empty_like(weight) for weight in weights]
        copy_all(self._before, weights)
        biases = [self.slots[i].layer.bias for i in layers]
        self._bias_before = [None if b is None or b.grad is None else b.detach().clone() for b in biases]

    def look_ahead(self, layers: Sequence[int], stepped: bool) -> None:
        """By the step just applied; after the first iteration, in which nothing moves, by ``eta * C * g``."""
        moved = [k for k, i in enumerate(layers) if stepped and self.slots[i].layer.weight.grad is not None]
        if moved:
            weights = [self.slots[layers[k]].layer.weight.detach() for k in moved]
            steps = subtract_all([self._before[k] for k in moved], weights)
            copy_all([_shift(self.slots[layers[k]]) for k in moved], steps)
        straight = self.split(self.gradient[self.columns(layers)], layers)
        for k, (i, g, bias_before) in enumerate(zip(layers, straight, self._bias_before, strict=True)):
            layer, eta = self.slots[i].layer, self.etas[i]
            if k not in moved:
                _shift(self.slots[i]).copy_(eta * layer.binarizer.calibration(layer.weight) * g)
            if bias_before is not None:
                assert layer.bias is not None
                assert layer.bias.grad is not None
                shift = (bias_before - layer.bias if stepped else eta * layer.bias.grad).detach()
                if layer._bias_shift is None:
                    layer._bias_shift = shift
                else:
                    layer._bias_shift.copy_(shift)
            elif layer._bias_shift is not None:  # frozen since: it takes no step any more
                layer._bias_shift.zero_()
        self._before, self._bias_before = [], []

    def move(self, device: torch.device) -> None:
        super().move(device)
        self.gradient = self.gradient.to(device)

    def kept(self) -> dict[str, Tensor]:
        return {**super().kept(), "the last gradient": self.gradient}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "gradient": self.gradient}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.gradient.copy_(state["gradient"])


class FCGradDriver(MetaQuantDriver):
    def build(self) -> nn.ModuleDict:
        return nn.ModuleDict({"meta": FastNet(depth=2, hidden=self.method.hidden, init="default")})

    def meta_gradient(self, layers: Sequence[int]) -> Tensor:
        return self.nets["meta"](self.gradient[self.columns(layers)])


class MultiFCDriver(MetaQuantDriver):
    def build(self) -> nn.ModuleDict:
        return nn.ModuleDict({"meta": FastNet(depth=3, hidden=self.method.hidden, init="default")})

    def meta_gradient(self, layers: Sequence[int]) -> Tensor:
        columns = self.columns(layers)
        return self.nets["meta"](self.hat[columns]) * self.gradient[columns]


class LSTMFCDriver(MetaQuantDriver):
    def __init__(self, method: MetaQuant, slots: list[Slot]) -> None:
        super().__init__(method, slots)
        self.memory = CarriedMemory("meta", self)

    def build(self) -> nn.ModuleDict:
        return nn.ModuleDict({"meta": CoordinateLSTM(self.method.hidden)})

    def remember(self, layers: Sequence[int], gradients: Sequence[Tensor]) -> None:
        super().remember(layers, gradients)
        self.memory.commit()

    def meta_gradient(self, layers: Sequence[int]) -> Tensor:
        columns = self.columns(layers)
        return self.memory.advance(self.hat[columns], layers) * self.gradient[columns]

    def withdraw(self) -> None:
        super().withdraw()
        self.memory.forget()

    def move(self, device: torch.device) -> None:
        super().move(device)
        self.memory.move(device)

    def kept(self) -> dict[str, Tensor]:
        return {**super().kept(), **self.memory.kept()}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), **self.memory.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.memory.load_state_dict(state)


class CarriedMemory:
    """The carried (h, c) of a :class:`CoordinateLSTM`, kept as it was *before* the newest proposal.

    A proposal is a pure function of what is stored, and may be computed twice: once to write the look-ahead, once more,
    with a graph, when the next gradient has arrived. Only the latter, under ``enable_grad``, moves the state on.
    """

    def __init__(self, net: str, driver: LookaheadDriver) -> None:
        lstm = driver.nets[net]
        assert isinstance(lstm, CoordinateLSTM)
        self.net = lstm
        self.driver = driver
        self._next: tuple[slice | Tensor, Tensor, Tensor] | None = None
        self.h, self.c = lstm.start(sum(driver.sizes), dtype=driver.dtype, device=driver.device)

    def advance(self, x: Tensor, layers: Sequence[int]) -> Tensor:
        columns = self.driver.columns(layers)
        output, (h, c) = self.net(x, (self.h[columns], self.c[columns]))
        if torch.is_grad_enabled():
            self._next = (columns, h, c)  # the graph still needs the state before
        return output

    def commit(self) -> None:
        """Move the state on, after the backward pass."""
        if self._next is not None:
            columns, self.h[columns], self.c[columns] = self._next
            self._next = None

    def forget(self) -> None:
        """Leave the state where it is."""
        self._next = None

    def move(self, device: torch.device) -> None:
        self.h, self.c = self.h.to(device), self.c.to(device)

    def kept(self) -> dict[str, Tensor]:
        """For :meth:`LookaheadDriver.kept`: the weights lie along the first dimension here."""
        return {"the memory": torch.cat([self.h, self.c], -1).movedim(0, -1)}

    def state_dict(self) -> dict[str, Tensor]:
        return {"h": self.h, "c": self.c}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.h.copy_(state["h"])
        self.c.copy_(state["c"])
