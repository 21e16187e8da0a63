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

from .. import ops
from ..binarize import Binarizer, DoReFa, Own, Sign, sign, straight_through

if TYPE_CHECKING:
    from ..layers import BinaryLayer


@dataclass(frozen=True, kw_only=True)
class Method:
    """A gradient for binary weights. The defaults below are those of the straight-through estimator."""

    name: ClassVar[str] = ""
    default_binarizer: ClassVar[str] = "dorefa"
    binarizers: ClassVar[type[Binarizer]] = Binarizer  # the kind of binarizer that the method can train
    activations: ClassVar[tuple[str, ...]] = ("sign",)  # ways to quantize a layer's input, besides None
    default_activations: ClassVar[str | None] = None
    looks_ahead: ClassVar[bool] = False  # the forward pass uses W~ = W - shift, and W.grad receives dL/dWb unchanged
    needs_wrapper: ClassVar[bool] = False  # training without fs.optimizer would be wrong
    descends: ClassVar[bool] = False  # reads gradients as uphill by itself, whatever the base optimizer does with them
    scheduled: ClassVar[bool] = False  # something follows the share of the training done: total_steps is needed
    per_epoch: ClassVar[bool] = False  # the published schedule stands still within an epoch
    needs_epochs: ClassVar[bool] = False  # some work is done once an epoch, so the number of epochs is needed

    # -- what a layer keeps ---------------------------------------------------------------------------------------

    def own_state(self, layer: BinaryLayer, w: Tensor) -> dict[str, Tensor]:
        """Parameters and buffers of the method's own for a layer with latent weight ``w``, by their short names.

        The layer registers them as ``<method>_<name>`` when it becomes binary, and makes them anew when a plain float
        ``state_dict`` is loaded.
        """
        return {}

    def check_layers(self, layers: Mapping[str, nn.Module]) -> None:
        """Refuse, with a sentence, layers that the method can't train."""

    def check_binarizer(self, binarizer: Binarizer) -> None:
        """Refuse a binarizer that the method can't train."""
        own = issubclass(self.binarizers, Own)
        if not isinstance(binarizer, self.binarizers) or (isinstance(binarizer, Own) and not own):
            fix = "leave binarizer and bits out" if own else f"for example binarizer={self.default_binarizer!r}"
            raise ValueError(f"{self.name} can't train the binarizer {binarizer.name!r}; {fix}")

    def check_activations(self, activations: str | None) -> str | None:
        """The activations to use: ``"auto"`` is the method's own choice. Refuses what the method doesn't define."""
        if activations == "auto":
            return self.default_activations
        if activations is not None and activations not in self.activations:
            known = " or ".join(map(repr, self.activations))
            fix = (
                f"choose {known}, or None (on the command line: real)"
                if known
                else "its inputs stay real: leave activations out"
            )
            raise ValueError(f"{self.name} defines no activations={activations!r}; {fix}")
        return activations

    # -- the forward pass -----------------------------------------------------------------------------------------

    def forward(self, layer: BinaryLayer, x: Tensor) -> Tensor:
        """A layer's forward pass: its input as the method wants it, times the binary weight."""
        weight, bias = layer.forward_parameters()
        return layer.product(self.forward_input(layer, x), weight, bias)

    def forward_input(self, layer: BinaryLayer, x: Tensor) -> Tensor:
        """The input that the product sees, differentiable."""
        return x if layer.activations is None else self.binary_input(layer, x)

    def binary_input(self, layer: BinaryLayer, x: Tensor) -> Tensor:
        """``sign(x)`` with the method's own backward."""
        value = sign(x.detach())
        if not torch.is_grad_enabled():
            return value
        return straight_through(value, x, self.input_derivative(x.detach(), layer._progress))

    def input_derivative(self, x: Tensor, progress: Tensor) -> Tensor:
        """What stands for d sign(x) / dx at a 1-bit input: 1 where |x| <= 1, else 0."""
        return (x.abs() <= 1).to(x.dtype)

    def forward_weight(self, layer: BinaryLayer) -> Tensor:
        """The binary weight of a forward pass, differentiable in the latent weight."""
        w = layer.weight
        fused = ops.binary_weight(layer.binarizer, w)
        if fused is not None:
            return fused
        value = layer.binarizer.values(w.detach())
        if not torch.is_grad_enabled():
            return value
        return straight_through(value, w, layer.binarizer.calibration(w.detach()))

    # -- evaluation -----------------------------------------------------------------------------------------------

    def evaluation_weight(self, layer: BinaryLayer) -> Tensor:
        """The binary weight of the committed latent weight, Q(A(W))."""
        return layer.binarizer.values(layer.weight.detach())

    def input_bits(self, activations: str | None) -> int:
        """Bits of an input of the product; 1 promises ``sign(x)`` and nothing else, or a ``deploy_note``."""
        return 32 if activations is None else 1

    def deploy_note(self, layer: BinaryLayer) -> str | None:
        """What evaluation does to the input or the output besides sign and product; None: nothing."""
        return None

    # -- what the indicators look at ------------------------------------------------------------------------------

    def latent(self, layer: BinaryLayer, w: Tensor) -> Tensor:
        """``z``, of which the binary weight is the sign (times a scale)."""
        hat = layer.binarizer.hat(w)
        return 2 * hat - 1 if isinstance(layer.binarizer, DoReFa) and hat is not w else hat

    def estimator(self, layer: BinaryLayer, z: Tensor) -> Tensor:
        """The function ``f(z)`` whose derivative the backward pass uses in place of the sign's."""
        return z.clamp(-1, 1) if isinstance(layer.binarizer, Sign) else z

    # -- training -------------------------------------------------------------------------------------------------

    def driver(self, slots: list[Slot]) -> Driver:
        """What the method owns while these layers train."""
        return Driver()


class Slot:
    """A binary layer in training: its name, the layer, and where the base optimizer keeps its learning rate."""

    def __init__(self, name: str, layer: BinaryLayer, base: torch.optim.Optimizer) -> None:
        self.name = name
        self.layer = layer
        self._base = base
        self._group: dict[str, Any] = {"params": []}
        self._place = 0  # of the weight in it

    @property
    def has_gradient(self) -> bool:
        """A frozen weight has none, also where one lies there still, zeroed but not removed."""
        return self.layer.weight.requires_grad and self.layer.weight.grad is not None

    @property
    def lr(self) -> float | Tensor:
        """eta: the learning rate of the weight's own parameter group, now."""
        groups, weight = self._base.param_groups, self.layer.weight
        held = self._group["params"][self._place : self._place + 1]
        # Loading a state makes new groups, and users remove some or move a weight from one to another.
        if not (held and held[0] is weight and any(group is self._group for group in groups)):
            places = [(group, i) for group in groups for i, p in enumerate(group["params"]) if p is weight]
            if not places:
                raise RuntimeError(f"the optimizer no longer holds the weight of {self.name}")
            self._group, self._place = places[0]
        if self._group.get("lr") is None:
            raise RuntimeError(
                f"the optimizer has no learning rate (lr) for the weight of {self.name}, and "
                f"{self.layer.method.name} computes with it: give one, or choose a method without, such as ste"
            )
        return self._group["lr"]


class Driver:
    """Acts before and after the base optimizer's step. The base class does nothing, which is all STE needs.

    ``graph_safe``: a step, once ``eager_steps`` have run, is the same kernels on the same memory every time, so that it
    can be captured in a CUDA graph. A subclass that keeps that promise says so.
    """

    eager_steps: int = 0

    @property
    def graph_safe(self) -> bool:
        return type(self) is Driver

    def prepare(self) -> None:
        """Called before a forward pass, where the loop does so: begin the step with what is known already."""

    def withdraw(self) -> None:
        """Forget what `prepare` did: the step does it anew."""

    def before_step(self) -> bool:
        """Prepare ``.grad`` for the base optimizer. False: it must not step in this iteration."""
        return True

    def after_step(self, stepped: bool) -> None:
        """Called when the base optimizer has stepped, or (``stepped`` False) has been held back."""

    def start_epoch(self, epoch: int) -> None:
        """Called at the end of the first step of ``epoch`` (1, 2, ...), where epochs are known.

        Not at the end of the epoch before: what a loop measures and saves there is the network that was trained.
        """

    def metrics(self) -> dict[str, float]:
        """What the last step looked like."""
        return {}

    def broken(self) -> str | None:
        """The first number that the driver keeps and that is not finite, in words."""
        return None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise ValueError(f"the saved state holds {sorted(state)} of a learned method; this method keeps none")
