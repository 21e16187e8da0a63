"""Binary layers: subclasses of torch's own, with the same parameters under the same names.

A layer is made binary by changing its class in place (:func:`fastslow.convert.make_binary`), so hooks, references held
by an optimizer, and every key of ``state_dict`` stay what they were. ``weight`` remains the *latent* float weight that
training moves; the network computes with ``binary_weight``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .binarize import Binarizer, sign

if TYPE_CHECKING:
    from .methods.base import Method

# What training writes into a layer. Plain attributes, not buffers: keys must not change, and DistributedDataParallel
# would broadcast buffers. A copy or a pickle of the layer starts without them.
_RUN_TIME = ("_shift", "_bias_shift", "_progress", "_owner", "_trained")


class BinaryLayer(nn.Module):
    """What all binary layers share. Mixed in before a torch layer class."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    method: Method
    binarizer: Binarizer
    input_bits: int = 32

    # Look-ahead W - W~ (None: none yet), likewise for the bias; share of the training done; which wrapper drives the
    # layer; whether the last differentiable forward ran in training mode.
    _shift: Tensor | None
    _bias_shift: Tensor | None
    _progress: Tensor
    _owner: object | None
    _trained: bool

    def start_binary(self, method: Method, binarizer: Binarizer) -> None:
        """Finish a change of class: attach the method and the binarizer."""
        self.method = method
        self.binarizer = binarizer
        self._reset_run_time()
        method.setup(self)

    def stop_binary(self) -> None:
        """Become the plain torch layer again, holding the binary values as a weight that no longer trains."""
        values = self.binary_weight
        self.method.teardown(self)
        for name in ("method", "binarizer", "input_bits", *_RUN_TIME):
            self.__dict__.pop(name, None)
        self.__class__ = PLAIN_OF[type(self)]  # pyright: ignore[reportAttributeAccessIssue]
        self.weight = nn.Parameter(values, requires_grad=False)

    def _reset_run_time(self) -> None:
        self._shift = torch.zeros_like(self.weight, requires_grad=False) if self.method.looks_ahead else None
        self._bias_shift = None
        self._progress = torch.zeros((), device=self.weight.device)
        self._owner = None
        self._trained = False

    @property
    def bits(self) -> int:
        """Bits of a weight."""
        return self.binarizer.bits

    @property
    def binary_weight(self) -> Tensor:
        """The weight that evaluation computes with, detached: Q(A(W)) of the committed latent weight."""
        return self.method.evaluation_weight(self).detach()

    def lookahead_weight(self) -> Tensor:
        """``W~ = W - eta U`` in training (Eq. 12), ``W`` in evaluation and for methods that don't look ahead."""
        return self.weight - self._shift if self.training and self._shift is not None else self.weight

    def forward_parameters(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias as this forward pass uses them."""
        if torch.is_grad_enabled():
            self._trained = self.training
        bias = self.bias
        if self.training and bias is not None and self._bias_shift is not None:
            bias = bias - self._bias_shift
        return self.method.forward_weight(self), bias

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        for name in ("_shift", "_bias_shift", "_progress"):
            tensor = self.__dict__[name]
            if tensor is not None:
                self.__dict__[name] = fn(tensor)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in _RUN_TIME}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._reset_run_time()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, bits={self.bits}, method={self.method.name}, binarizer={self.binarizer.name}"


class BinaryConv1d(BinaryLayer, nn.Conv1d):  # pyright: ignore[reportIncompatibleVariableOverride]
    """``nn.Conv1d`` that convolves with the binary weight."""

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, *self.forward_parameters())


class BinaryConv2d(BinaryLayer, nn.Conv2d):  # pyright: ignore[reportIncompatibleVariableOverride]
    """``nn.Conv2d`` that convolves with the binary weight."""

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, *self.forward_parameters())


class BinaryLinear(BinaryLayer, nn.Linear):  # pyright: ignore[reportIncompatibleVariableOverride]
    """``nn.Linear`` that multiplies by the binary weight."""

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, *self.forward_parameters())


BINARY_OF: dict[type[nn.Module], type[BinaryLayer]] = {
    nn.Conv1d: BinaryConv1d,
    nn.Conv2d: BinaryConv2d,
    nn.Linear: BinaryLinear,
}
PLAIN_OF = {binary: plain for plain, binary in BINARY_OF.items()}


class Sign(nn.Module):
    """Binary activation as a layer of its own: +1 where x > 0, else -1; the gradient passes where |x| <= 1."""

    def forward(self, input: Tensor) -> Tensor:
        clipped = input.clamp(-1, 1)
        return sign(input).detach() + clipped - clipped.detach()
