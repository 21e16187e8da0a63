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

from . import ops
from .autocast import full_precision
from .binarize import Binarizer, sign

if TYPE_CHECKING:
    from .methods.base import Method

# What training writes into a layer. Plain attributes, not buffers, which DistributedDataParallel would broadcast. A
# copy or a pickle of the layer starts without them.
_RUN_TIME = ("_shift", "_bias_shift", "_owner", "_trained")


class BinaryLayer(nn.Module):
    """What all binary layers share. Mixed in before a torch layer class."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    method: Method
    binarizer: Binarizer
    activations: str | None  # how the method quantizes the layer's input; None leaves it real
    input_bits: int = 32  # 1: the layer computes with sign(input), +1 where x > 0, else -1

    # Look-ahead W - W~ (None: none yet), likewise for the bias; share of the training done; which wrapper drives the
    # layer; whether a differentiable forward ran in training mode since the last step.
    _shift: Tensor | None
    _bias_shift: Tensor | None
    _progress: Tensor
    _owner: object | None
    _trained: bool
    _dimensions: int  # of the whole weight
    _own: tuple[str, ...]  # names of the method's own parameters and buffers

    def start_binary(self, method: Method, binarizer: Binarizer, activations: str | None = None) -> None:
        """Finish a change of class: attach the method, the binarizer and the method's own parameters."""
        self.method = method
        self.binarizer = binarizer
        self.activations = activations
        self.input_bits = method.input_bits(activations)
        self._dimensions = self.weight.ndim
        self._keep_progress(torch.zeros((), device=self.weight.device))
        self._reset_run_time()
        own = self._fresh_state(self.weight.detach())
        self._own = tuple(own)
        for name, value in own.items():
            if isinstance(value, nn.Parameter):
                value.requires_grad_(self.weight.requires_grad)
                self.register_parameter(name, value)
            else:
                self.register_buffer(name, value)

    def stop_binary(self) -> None:
        """Become the plain torch layer again, holding the binary values as a weight that no longer trains."""
        if self.deploy_note is not None:
            raise ValueError(f"a plain layer can't hold what {self.method.name} computes: {self.deploy_note}")
        values = self.binary_weight
        if self.input_bits == 1:
            self.register_forward_pre_hook(_sign_of_input)
        for name in (*self._own, "_progress"):
            delattr(self, name)
        for name in (
            "method",
            "binarizer",
            "activations",
            "input_bits",
            "_dimensions",
            "_own",
            *_RUN_TIME,
        ):
            self.__dict__.pop(name, None)
        self.__class__ = PLAIN_OF[type(self)]  # pyright: ignore[reportAttributeAccessIssue]
        self.weight = nn.Parameter(values, requires_grad=False)

    def own(self, name: str) -> Tensor:
        """A parameter or buffer of the method's own, by its short name."""
        return getattr(self, self._full_name(name))

    def _full_name(self, name: str) -> str:
        return f"{self.method.name.replace('-', '_')}_{name}"

    def _fresh_state(self, w: Tensor) -> dict[str, Tensor]:
        """The method's own parameters and buffers for this latent weight, under their full names."""
        with full_precision(w.device):
            return {self._full_name(name): value for name, value in self.method.own_state(self, w).items()}

    def forget_lookahead(self) -> None:
        """As before the first step."""
        self._shift = torch.zeros_like(self.weight, requires_grad=False) if self.method.looks_ahead else None
        self._bias_shift = None
        self._place_progress(self._progress)

    def _keep_progress(self, progress: Tensor) -> None:
        """A buffer where a schedule reads it: who copies buffers (an averaged model, a stack) takes it along."""
        if self.method.scheduled:
            self.register_buffer("_progress", progress, persistent=False)
        else:
            self._progress = progress

    def _place_progress(self, progress: Tensor) -> None:
        """Beside the weight, never in half precision: schedules read it. On the meta device it has no value to keep."""
        device = self.weight.device
        self._progress = torch.zeros((), device=device) if progress.is_meta else progress.to(device)

    def _reset_run_time(self) -> None:
        self.forget_lookahead()
        self._owner = None
        self._trained = False

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Float weights load strictly: what they lack of the method's own is made anew from the loaded weight."""
        absent = [name for name in self._own if prefix + name not in state_dict]
        loaded = state_dict.get(prefix + "weight")
        if absent and loaded is not None and loaded.shape == self.weight.shape:
            fresh = self._fresh_state(loaded.detach().to(self.weight))
            state_dict.update({prefix + name: fresh[name].detach() for name in absent})
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    @property
    def bits(self) -> int:
        """Bits of a weight."""
        return self.binarizer.bits

    @property
    def deploy_note(self) -> str | None:
        """What evaluation does beyond ``product(sign(input) or input, binary_weight)``; None: nothing."""
        return self.method.deploy_note(self)

    @property
    def binary_weight(self) -> Tensor:
        """The weight that evaluation computes with, detached: Q(A(W)) of the committed latent weight."""
        return self.method.evaluation_weight(self).detach()

    @property
    def shift(self) -> Tensor | None:
        """``eta U`` where this pass looks ahead: in training, unless the weight is frozen and no step follows."""
        return self._shift if self.training and self.weight.requires_grad else None

    def lookahead_weight(self) -> Tensor:
        """``W~ = W - eta U`` in training (Eq. 12), ``W`` in evaluation and for methods that don't look ahead."""
        shift = self.shift
        return self.weight if shift is None else self.weight - shift

    def forward_parameters(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias as this forward pass uses them."""
        if torch.is_grad_enabled() and self.training:
            self._trained = True
        bias = self.bias
        if bias is not None and self._bias_shift is not None and self.shift is not None:
            bias = bias - self._bias_shift
        weight = self.method.forward_weight(self)
        needs_owner = self.method.needs_wrapper or self.method.scheduled
        if needs_owner and not torch.compiler.is_compiling() and self._owner is None and weight.requires_grad:
            weight.register_hook(_refuse_undriven)
        return weight, bias

    def product(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer's own convolution or multiplication, with any weight."""
        raise NotImplementedError

    def forward(self, input: Tensor) -> Tensor:
        return self.method.forward(self, input)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        was_meta, progress = self.weight.is_meta, self._progress
        super()._apply(fn, recurse)
        if was_meta:  # `to_empty` gives memory that holds anything
            self.forget_lookahead()
            return self
        for name in ("_shift", "_bias_shift"):
            tensor = self.__dict__[name]
            if tensor is not None:
                self.__dict__[name] = fn(tensor)
        self._place_progress(progress)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in _RUN_TIME}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_progress" in self.__dict__:  # copies of version 0.1.0
            self._keep_progress(self.__dict__.pop("_progress"))
        self._reset_run_time()

    def extra_repr(self) -> str:
        inputs = "" if self.activations is None else f", input_bits={self.input_bits}"
        names = f"method={self.method.name}, binarizer={self.binarizer.name}"
        return f"{super().extra_repr()}, bits={self.bits}{inputs}, {names}"


def _refuse_undriven(gradient: Tensor) -> None:
    raise RuntimeError(
        "a binary layer is trained without its optimizer wrapper, and would silently get another gradient or schedule "
        "than its method's; write optimizer = fs.optimizer(model, optimizer) once, after fs.binarize_. (For gradients "
        "of inputs alone, on a copy say, call requires_grad_(False) on it.)"
    )


def _sign_of_input(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (sign(args[0]), *args[1:])


class BinaryConv1d(BinaryLayer, nn.Conv1d):  # pyright: ignore[reportIncompatibleVariableOverride]
    """``nn.Conv1d`` that convolves with the binary weight."""

    def product(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self._conv_forward(input, weight, bias)


class BinaryConv2d(BinaryLayer, nn.Conv2d):  # pyright: ignore[reportIncompatibleVariableOverride]
    """``nn.Conv2d`` that convolves with the binary weight."""

    def product(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.padding_mode != "zeros":
            return self._conv_forward(input, weight, bias)
        return ops.conv2d(input, weight, bias, self.stride, self.padding, self.dilation, self.groups)


class BinaryLinear(BinaryLayer, nn.Linear):  # pyright: ignore[reportIncompatibleVariableOverride]
    """``nn.Linear`` that multiplies by the binary weight."""

    def product(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(input, weight, bias)


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
        return sign(input).detach() + (clipped - clipped.detach())  # in this order: +-1 and an exact zero
