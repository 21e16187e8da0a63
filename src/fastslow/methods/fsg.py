"""FSG: fast and slow gradient generation.

Chen et al., *Fast and Slow Gradient Approximation for Binary Neural Network Optimization* (AAAI 2025). Two hyper-
networks shared by all layers: the fast-net scales the current gradient by a function of the weight, the slow-net reads
the layer's last l gradients behind a Layer Recognition Embedding and generates a momentum (Eq. 9-12):

    U = (1 - beta) C M_f(g, What) + beta M_s([LRE_i; h_i]),      W~ = W - eta U.

``U`` is registered as the gradient of W, the next forward pass runs at the look-ahead weight ``W~``, and its loss
trains both hypernetworks (:mod:`fastslow.methods.lookahead`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from ..hypernets.coordinate import CoordinateLSTM
from ..hypernets.fast import FastNet
from ..hypernets.history import History
from ..hypernets.layouts import SlowNet
from ..hypernets.segments import segment_mean
from ..hypernets.slow import LSTMSlowNet, MambaSlowNet
from .base import Slot
from .flat import write
from .lookahead import LookaheadDriver, LookaheadMethod, Proposal, _shift
from .metaquant import CarriedMemory

Layout = Literal["concat", "per_weight"]
Slow = Literal["mamba", "lstm", "lstm-what"]
Register = Literal["fsg", "fast"]
Mix = Literal["convex", "paper"]
HistoryOf = Literal["g", "fsg"]
Normalise = Literal["none", "rms"]
Discretization = Literal["zoh", "euler"]
FastInit = Literal["orthogonal", "default"]


@dataclass(frozen=True, kw_only=True)
class FSG(LookaheadMethod):
    """The paper's text. Every choice is a field, so an ablation is a flag."""

    name: ClassVar[str] = "fsg"

    beta: float = 0.3  # weight of the slow gradient
    length: int = 6  # l: gradients kept a layer
    layout: Layout = "concat"  # history as one sequence a layer (Eq. 8), or as one short sequence a weight
    slow: Slow = "mamba"  # "lstm-what": the public code's LSTM variant, which sees What and no history
    register: Register = "fsg"  # what W.grad receives: U, or its fast part alone
    mix: Mix = "convex"  # "paper" is Eq. 12 literally: W~ = W - eta C M_f + beta M_s
    history: HistoryOf = "g"  # what HGS stores: dL/dWb, or the generated gradient (the appendix)
    normalise: Normalise = "none"  # "rms": the slow-net sees the history in units of the layer's RMS
    patch: int = 1  # consecutive weights that form one token

    d_model: int = 1
    d_state: int = 16
    d_conv: int = 4
    expand: int = 100
    dt_rank: int = 1
    projections: bool = True  # W_a and W_b of Eq. 10, 11
    discretization: Discretization = "zoh"
    horizon_tol: float = 1e-7  # tokens that can't change an output by this share of the largest are left out; 0: none
    slow_hidden: int = 100  # of the LSTM slow-nets
    slow_lr: float = 1e-3

    fast_depth: int = 3
    fast_hidden: int = 100
    fast_nonlinearity: str | None = None
    fast_init: FastInit = "orthogonal"
    fast_lr: float = 1e-3

    def __post_init__(self) -> None:
        choices = {"layout": Layout, "slow": Slow, "register": Register, "mix": Mix, "history": HistoryOf}
        choices |= {"normalise": Normalise, "discretization": Discretization, "fast_init": FastInit}
        for name, literal in choices.items():
            if getattr(self, name) not in get_args(literal):
                raise ValueError(f"{name}={getattr(self, name)!r}: choose one of {', '.join(get_args(literal))}")
        if not isinstance(self.beta, int | float) or not 0 <= self.beta <= 1:
            raise ValueError(f"beta={self.beta}: the weight of the slow gradient lies between 0 and 1")
        whole = [f.name for f in fields(self) if f.type in ("int", int) and f.name != "seed"]
        for name in whole:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r}: give a whole number of at least 1")
        if not 0 <= self.horizon_tol < 1:
            raise ValueError(f"horizon_tol={self.horizon_tol}: give a share between 0 (read everything) and 1")
        for name in ("slow_lr", "fast_lr"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: a learning rate can't be negative")
        if not self.projections and self.d_model != self.patch:
            raise ValueError(
                f"projections=False feeds tokens directly: d_model={self.d_model} must equal patch={self.patch}"
            )

    def driver(self, slots: list[Slot]) -> FSGDriver:
        return FSGDriver(self, slots)


@dataclass(frozen=True, kw_only=True)
class FSGCode(FSG):
    """What the authors' public code does, where it differs from the text."""

    name: ClassVar[str] = "fsg-code"

    beta: float = 0.9
    length: int = 5
    register: Register = "fast"
    d_conv: int = 8
    projections: bool = False
    discretization: Discretization = "euler"
    fast_init: FastInit = "default"
    fast_lr: float = 1e-2


@dataclass(frozen=True, kw_only=True)
class FSGLstm(FSG):
    """FSG with an LSTM as slow-net (the paper's ablation), one short sequence a weight.

    Raw gradients are so small beside an LSTM's biases that its output would be one number a layer, which drives all
    weights the same way (docs/slow-net.md): this one reads and writes in units of the layer's RMS.
    """

    name: ClassVar[str] = "fsg-lstm"

    layout: Layout = "per_weight"
    slow: Slow = "lstm"
    normalise: Normalise = "rms"


@dataclass(frozen=True, kw_only=True)
class FSGWeight(FSG):
    """History along time, not along the weights: each weight's own l gradients, in units of the layer's RMS."""

    name: ClassVar[str] = "fsg-weight"

    layout: Layout = "per_weight"
    normalise: Normalise = "rms"
    d_state: int = 4
    expand: int = 16


class FSGDriver(LookaheadDriver):
    """HGS, fast-net and slow-net of one model in training."""

    method: FSG

    @property
    def eager_steps(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.method.length + 2  # until the history is full, a step has another shape every time

    def __init__(self, method: FSG, slots: list[Slot]) -> None:
        super().__init__(method, slots)
        self.gradient = self.zeros()  # g of the last iteration: the fast-net's input
        self.slow_value = self.zeros()  # M_s of the last look-ahead, and what it was made from
        self._slow_made_from: Any = None
        self.memory = CarriedMemory("slow", self) if method.slow == "lstm-what" else None
        self.stored = History(self.sizes, 1 if self.memory else method.length, dtype=self.dtype, device=self.device)

    def build(self) -> nn.ModuleDict:
        m, layers = self.method, len(self.slots)
        fast = FastNet(depth=m.fast_depth, hidden=m.fast_hidden, nonlinearity=m.fast_nonlinearity, init=m.fast_init)
        if m.slow == "mamba":
            slow = MambaSlowNet(
                layers,
                d_model=m.d_model,
                d_state=m.d_state,
                d_conv=m.d_conv,
                expand=m.expand,
                dt_rank=m.dt_rank,
                patch=m.patch,
                projections=m.projections,
                discretization=m.discretization,
                horizon_tol=m.horizon_tol,
            )
            slow.full_length = m.length
        elif m.slow == "lstm":
            slow = LSTMSlowNet(layers, hidden=m.slow_hidden, patch=m.patch)
        else:
            slow = CoordinateLSTM(m.slow_hidden)
        return nn.ModuleDict({"fast": fast, "slow": slow})

    def build_optimizers(self) -> list[torch.optim.Optimizer]:
        return [
            torch.optim.Adam(self.nets["fast"].parameters(), lr=self.method.fast_lr),
            torch.optim.Adam(self.nets["slow"].parameters(), lr=self.method.slow_lr),
        ]

    # -- generation -----------------------------------------------------------------------------------------------

    def propose(self, layers: Sequence[int]) -> Proposal:
        """Eq. 12: the look-ahead shift, and the gradient that is registered for it."""
        beta, eta = self.method.beta, self.eta(layers)
        fast = self.calibration(layers) * self.fast_gradient(layers)
        slow = self.slow_gradient(layers)
        if self.method.mix == "convex":
            # Deviation: the paper writes independent weights and adds the slow part outside the learning rate
            # (mix="paper"); its public code, and so the default here, is this convex mix under one learning rate.
            whole = (1 - beta) * fast + beta * slow
            shift = eta * whole
        else:
            # Deviation: G_FSG of the paper is a descent step; an optimizer takes its negative, over eta.
            shift = eta * fast - beta * slow
            whole = fast - _ratio(beta, eta) * slow
        return Proposal(shift, fast if self.method.register == "fast" else whole)

    def fast_gradient(self, layers: Sequence[int]) -> Tensor:
        """``M_f(g, What) = M(What) * g``, flat."""
        columns = self.columns(layers)
        return self.nets["fast"](self.hat[columns]) * self.gradient[columns]

    def slow_gradient(self, layers: Sequence[int]) -> Tensor:
        """``M_s([LRE_i; h_i])`` (Eq. 10, 11), flat."""
        if self.memory is not None:
            columns = self.columns(layers)
            return self.memory.advance(self.hat[columns], layers) * self.gradient[columns]
        if len({self.stored.counts[i] for i in layers}) == 1:
            return self._slow_gradient(layers)
        return torch.cat([self._slow_gradient([i]) for i in layers])

    def _slow_gradient(self, layers: Sequence[int]) -> Tensor:
        """The same of layers with equally long histories.

        A look-ahead generates with the parameters and the history that the next step trains on: what it found is kept,
        so that the step only has to differentiate it.
        """
        net = self.nets["slow"]
        assert isinstance(net, SlowNet)
        history = self.stored.ordered_together(layers)
        sizes = [self.sizes[i] for i in layers]
        scales = _rms(history, sizes) if self.method.normalise == "rms" else None
        read = net.concat if self.method.layout == "concat" else net.per_weight
        made_from = (tuple(layers), [p._version for p in (*net.parameters(), self.stored.buffer)])
        if torch.is_grad_enabled():
            columns = self.columns(layers)
            known = self.slow_value[columns] if self._slow_made_from == made_from else None
            return read(history, sizes, layers, scales=scales, known=known)
        value = read(history, sizes, layers, scales=scales)
        self.slow_value[self.columns(layers)] = value
        self._slow_made_from = made_from
        return value

    # -- what the step asks for -----------------------------------------------------------------------------------

    def remember(self, layers: Sequence[int], gradients: Sequence[Tensor]) -> None:
        g = self.join(gradients)
        self.gradient[self.columns(layers)] = g
        if self.memory is not None:
            self.memory.commit()
            return
        if self.method.history == "g":
            self.stored.push(layers, g)
            return
        # G_FSG of the pass just done, in the units of a gradient. In the first iteration the straight-through gradient
        # stands in for it, as everywhere in the paper.
        generated = []
        for i, straight in zip(layers, self.split(g * self.calibration(layers), layers), strict=True):
            eta = self.etas[i] if self.proposed[i] else 0.0
            generated.append(_shift(self.slots[i]) * _ratio(1.0, eta) + straight * (eta == 0))
        self.stored.push(layers, self.join(generated))

    def look_ahead(self, layers: Sequence[int], stepped: bool) -> None:
        write([_shift(self.slots[i]) for i in layers], self.propose(layers).shift)

    def withdraw(self) -> None:
        super().withdraw()
        if self.memory is not None:
            self.memory.forget()

    # -- state ----------------------------------------------------------------------------------------------------

    def move(self, device: torch.device) -> None:
        super().move(device)
        self.gradient, self.slow_value = self.gradient.to(device), self.slow_value.to(device)
        self._slow_made_from = None
        self.stored.to(device)
        if self.memory is not None:
            self.memory.move(device)

    def kept(self) -> dict[str, Tensor]:
        memory = {} if self.memory is None else self.memory.kept()
        return {**super().kept(), "the gradient history": self.stored.buffer, **memory}

    def state_dict(self) -> dict[str, Any]:
        memory = {} if self.memory is None else self.memory.state_dict()
        return {**super().state_dict(), "gradient": self.gradient, "history": self.stored.state_dict(), **memory}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.gradient.copy_(state["gradient"])
        self._slow_made_from = None
        self.stored.load_state_dict(state["history"])
        if self.memory is not None:
            self.memory.load_state_dict(state)


def _rms(history: Tensor, sizes: Sequence[int]) -> Tensor:
    """Root mean square of each layer's stored gradients."""
    rms = segment_mean(history.square().mean(0), sizes).sqrt()
    # A layer whose gradients are all zero keeps zeros: any positive unit will do.
    return torch.where(rms > 0, rms, torch.ones_like(rms))


def _ratio(a: float, eta: Tensor | float) -> Tensor | float:
    """``a / eta``, and 0 where eta is 0 and nothing looks ahead."""
    if isinstance(eta, Tensor):
        return torch.where(eta != 0, a / eta, torch.zeros_like(eta))
    return a / eta if eta != 0 else 0.0
