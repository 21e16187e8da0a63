"""What a method is: how a gradient passes the binarizer, and what happens around the optimizer's step.

Three objects are kept apart. A *method* is a frozen dataclass of hyper-parameters with the mathematics; it is shared by
the layers it was given to. A *driver* is what a method owns while it trains: hypernetworks, their optimizers, history.
The *task state*, the latent weights and the base optimizer, stays the user's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from ..binarize import straight_through

if TYPE_CHECKING:
    from ..layers import BinaryLayer


@dataclass(frozen=True, kw_only=True)
class Method:
    """A gradient for binary weights. The defaults below are those of the straight-through estimator."""

    name: ClassVar[str] = ""
    default_binarizer: ClassVar[str] = "dorefa"
    looks_ahead: ClassVar[bool] = False  # the forward pass uses W~ = W - shift, and W.grad receives dL/dWb unchanged
    needs_wrapper: ClassVar[bool] = False  # training without fs.optimizer would be wrong
    scheduled: ClassVar[bool] = False  # something follows the share of the training done: total_steps is needed

    def setup(self, layer: BinaryLayer) -> None:
        """Called once when a layer becomes binary: register parameters of the method's own here."""

    def teardown(self, layer: BinaryLayer) -> None:
        """Called on a copy that becomes plain: remove what setup added."""

    def check_layers(self, layers: Mapping[str, nn.Module]) -> None:
        """Refuse, with a sentence, layers that the method can't train."""

    def forward_weight(self, layer: BinaryLayer) -> Tensor:
        """The binary weight of a forward pass, differentiable in the latent weight."""
        w = layer.weight
        value = layer.binarizer.values(w.detach())
        if not torch.is_grad_enabled():
            return value
        return straight_through(value, w, layer.binarizer.calibration(w.detach()))

    def evaluation_weight(self, layer: BinaryLayer) -> Tensor:
        """The binary weight of the committed latent weight, Q(A(W))."""
        return layer.binarizer.values(layer.weight.detach())

    def driver(self, slots: list[Slot]) -> Driver:
        """What the method owns while these layers train."""
        return Driver()


class Slot:
    """A binary layer in training: its name, the layer, and where the base optimizer keeps its learning rate."""

    def __init__(self, name: str, layer: BinaryLayer, base: torch.optim.Optimizer, group: int) -> None:
        self.name = name
        self.layer = layer
        self._base = base
        self._group = group

    @property
    def lr(self) -> float | Tensor:
        """eta: the learning rate of the weight's own parameter group, now."""
        return self._base.param_groups[self._group]["lr"]


class Driver:
    """Acts before and after the base optimizer's step. The base class does nothing, which is all STE needs."""

    def before_step(self) -> bool:
        """Prepare ``.grad`` for the base optimizer. False: it must not step in this iteration."""
        return True

    def after_step(self, stepped: bool) -> None:
        """Called when the base optimizer has stepped, or (``stepped`` False) has been held back."""

    def metrics(self) -> dict[str, float]:
        """What the last step looked like."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise ValueError(f"the saved state holds {sorted(state)} of a learned method; this method keeps none")
