"""``fs.optimizer``: the wrapper that makes any torch optimizer train binary layers with any method."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from numbers import Real
from typing import Any

import torch
from torch import nn

from .autocast import full_precision
from .convert import binary_layers
from .methods import Driver, Slot
from .methods.flat_driver import RememberingMethod

_KEY = "fastslow"  # our part of the state_dict


class BinaryOptimizer(torch.optim.Optimizer):
    """A base optimizer, and what the model's methods do before and after its step.

    ``param_groups``, ``state`` and ``defaults`` are the base optimizer's own, so every learning-rate scheduler,
    gradient scaler and logger sees an ordinary optimizer. Build it with :func:`optimizer`.
    """

    def __init__(
        self,
        model: nn.Module,
        base: torch.optim.Optimizer,
        total_steps: int | None = None,
        epochs: int | None = None,
    ) -> None:
        # torch.optim.Optimizer.__init__ would build groups of its own; ours are views of the base's.
        self.base = base
        self.total_steps = total_steps
        self.epochs = epochs
        self.steps = 0
        self._layers = binary_layers(model)
        self._check()
        self._refuse_shared(model)
        slots = [Slot(name, layer, base) for name, layer in self._trained_layers()]
        self._frozen = tuple(
            name
            for name, layer in self._layers.items()
            if (layer.method.needs_wrapper or layer.method.needs_epochs) and not layer.weight.requires_grad
        )
        by_method: dict[Any, list[Slot]] = {}
        for layer in self._layers.values():
            layer.forget_lookahead()  # of an earlier wrapper: these drivers know nothing of it
        for slot in slots:
            by_method.setdefault(slot.layer.method, []).append(slot)
        self.drivers: list[Driver] = [method.driver(its_slots) for method, its_slots in by_method.items()]
        self._methods = tuple(method.name for method in by_method)
        self._attach()

    # -- the step -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def prepare(self) -> None:
        """Begin the next step, if you like: call it before the forward pass whose gradients the step will use.

        What the step computes without them (hypernetworks reading their history) then runs beside the model's own pass
        on a GPU. Nothing changes but the time it takes.
        """
        self._check_owner()
        with self._full_precision():
            for driver in self.drivers:
                driver.prepare()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One optimization step. A closure is evaluated once, before anything else."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_owner()
        with self._full_precision():
            # Every driver prepares, also when one of them holds the base optimizer back.
            may_step = False not in [driver.before_step() for driver in self.drivers]
            if may_step:
                self._stepping = True
                try:
                    self.base.step()
                finally:
                    self._stepping = False
            for driver in self.drivers:
                driver.after_step(may_step)
            if not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
                self.count_step()
        return loss

    def _full_precision(self) -> AbstractContextManager[Any]:
        return full_precision(next(iter(self._layers.values())).weight.device)

    def count_step(self) -> None:
        """What a step does to counters and schedules. The replay of a captured step leaves this to its caller."""
        epoch, last = self._epoch(self.steps), self._epoch(self.steps - 1)  # of this step, and of the one before
        self.steps += 1
        if self.total_steps is not None:
            self._show_progress()
        if 0 <= last < epoch < (self.epochs or 0):
            for driver in self.drivers:
                driver.start_epoch(epoch)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.base.zero_grad(set_to_none)

    def metrics(self) -> dict[str, float]:
        """What the methods say of the last step, for example the cosine of generated and straight-through gradient."""
        return {key: value for driver in self.drivers for key, value in driver.metrics().items()}

    # -- views of the base ----------------------------------------------------------------------------------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.base.param_groups

    @property
    def state(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.base.state

    @property
    def defaults(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.base.defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.base.add_param_group(param_group)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base!r})"

    # -- state ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """torch's layout, and one key of our own: hypernetworks, their optimizers, history, look-ahead, counters."""
        drivers = [driver.state_dict() for driver in self.drivers]
        own = {"steps": self.steps, "methods": list(self._methods), "drivers": drivers}
        return {**self.base.state_dict(), _KEY: own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if _KEY not in state_dict:
            raise ValueError(
                f"this optimizer state has no {_KEY!r} part: it was saved from a plain optimizer; "
                "save optimizer.state_dict() of the object that fs.optimizer returned"
            )
        own = state_dict[_KEY]
        saved_by = tuple(own.get("methods", self._methods))  # states of version 0.1.0 don't say
        if len(own["drivers"]) != len(self.drivers) or saved_by != self._methods:
            here = ", ".join(self._methods) or "no binary layer that trains"
            raise ValueError(
                f"the saved optimizer state belongs to a model with other methods: {', '.join(saved_by)}; here {here}"
            )
        self.base.load_state_dict({key: value for key, value in state_dict.items() if key != _KEY})
        for driver, saved in zip(self.drivers, own["drivers"], strict=True):
            driver.load_state_dict(saved)
        self.steps = int(own["steps"])
        if self.total_steps is not None:
            self._show_progress()

    def __getstate__(self) -> dict[str, Any]:
        keep = ("base", "total_steps", "epochs", "steps", "_layers", "_frozen", "_methods", "drivers")
        for driver in self.drivers:
            driver.withdraw()  # a prepared step holds a graph, which can't be copied
        # A copy of a layer has no look-ahead: it travels with us.
        shifts = {name: (layer._shift, layer._bias_shift, layer._trained) for name, layer in self._layers.items()}
        return {**{key: self.__dict__[key] for key in keep}, "shifts": shifts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        shifts = state.pop("shifts")
        methods = tuple(dict.fromkeys(layer.method.name for layer in state["_layers"].values()))
        self.__dict__.update({"_frozen": (), "_methods": methods, **state})  # copies of version 0.1.0 don't have these
        for name, layer in self._layers.items():
            layer._shift, layer._bias_shift, layer._trained = shifts[name]
        self._attach()

    # -- set-up and checks ----------------------------------------------------------------------------------------

    def _attach(self) -> None:
        self._optimizer_step_pre_hooks = OrderedDict()
        self._optimizer_step_post_hooks = OrderedDict()
        for kind in ("state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post"):
            setattr(self, f"_optimizer_{kind}_hooks", getattr(self.base, f"_optimizer_{kind}_hooks"))
        self._patch_step_function()  # lets step hooks and the profiler see this step as any other
        self._stepping = False
        self._warned = False
        self._token = object()
        for layer in self._layers.values():
            layer._owner = self._token
        previous = self.base.__dict__.get("_fastslow_guard")
        if previous is not None:  # a wrapper built again on the same base takes over
            previous.remove()
        self.base.__dict__["_fastslow_guard"] = self.base.register_step_pre_hook(self._refuse_direct_step)
        if self.total_steps is not None:
            self._show_progress()

    def _trained_layers(self) -> list[tuple[str, Any]]:
        return [(name, layer) for name, layer in self._layers.items() if layer.weight.requires_grad]

    def _check(self) -> None:
        if isinstance(self.base, BinaryOptimizer):
            raise ValueError("this optimizer is wrapped already; give fs.optimizer the torch optimizer itself")
        if not isinstance(self.base, torch.optim.Optimizer):
            raise TypeError(
                f"{type(self.base).__name__} is no torch optimizer; write fs.optimizer(model, torch.optim.Adam(...))"
            )
        if isinstance(self.base, torch.optim.LBFGS):
            raise ValueError(
                "LBFGS evaluates the loss several times a step, which no method here defines; use SGD or Adam"
            )
        descending = sorted({layer.method.name for layer in self._layers.values() if layer.method.descends})
        if descending and any(group.get("maximize") for group in self.base.param_groups):
            raise ValueError(f"maximize=True: {', '.join(descending)} goes downhill; negate the loss instead")
        if not self._layers:
            raise ValueError("the model has no binary layers; call fs.binarize_(model, ...) before fs.optimizer")
        self._refuse_shards()
        known = {id(p) for group in self.base.param_groups for p in group["params"]}
        missing = [name for name, layer in self._trained_layers() if id(layer.weight) not in known]
        if missing:
            raise ValueError(
                f"the optimizer doesn't hold the weight of {', '.join(missing)}; build it from model.parameters(), "
                "or set requires_grad_(False) on layers that shall not train"
            )
        own = [
            f"{name}.{key}"
            for name, layer in self._trained_layers()
            for key in layer._own
            if isinstance(parameter := getattr(layer, key), nn.Parameter) and id(parameter) not in known
        ]
        if own:
            raise ValueError(
                f"the optimizer doesn't hold {own[0]}, a parameter of the method: build it after fs.binarize_, from "
                "model.parameters()"
            )
        if self.total_steps is not None:
            if not _is_count(self.total_steps):
                raise ValueError(
                    f"total_steps={self.total_steps}: give the number of optimizer steps of the whole training"
                )
            self.total_steps = int(self.total_steps)
        if self.epochs is not None and not (self.total_steps and 1 <= self.epochs <= self.total_steps):
            raise ValueError(f"epochs={self.epochs}: give a whole number from 1 to total_steps={self.total_steps}")
        by_epoch = sorted({layer.method.name for layer in self._layers.values() if layer.method.needs_epochs})
        if by_epoch and self.epochs is None:
            raise ValueError(
                f"{', '.join(by_epoch)} does work once an epoch; write fs.optimizer(model, base, total_steps=..., "
                "epochs=...)"
            )
        if self.total_steps is None:
            scheduled = sorted({layer.method.name for layer in self._layers.values() if layer.method.scheduled})
            if scheduled:
                raise ValueError(
                    f"{', '.join(scheduled)} follows a schedule; write fs.optimizer(model, base, total_steps=...)"
                )

    def _refuse_shared(self, model: nn.Module) -> None:
        """A method that keeps numbers of a weight needs its whole gradient to be that of the weight's bits."""
        by_method: dict[Any, dict[str, nn.Module]] = {}
        for name, layer in self._layers.items():
            by_method.setdefault(layer.method, {})[name] = layer
        for method, layers in by_method.items():
            method.check_layers(layers)
        remembering = {n: layer for n, layer in self._layers.items() if isinstance(layer.method, RememberingMethod)}
        owners = {id(layer.weight): (name, layer) for name, layer in remembering.items()}
        for name, module in model.named_modules():
            for parameter in module._parameters.values():
                owner, layer = owners.get(id(parameter), (name, module))
                if layer is not module:
                    raise ValueError(
                        f"{name} has the weight of the binary layer {owner}, whose method takes the whole gradient for "
                        "that of the bits: untie them, or choose a method that keeps nothing, such as ste"
                    )

    def _check_owner(self) -> None:
        if any(layer._owner is not self._token for layer in self._layers.values()):
            raise RuntimeError("the model's binary layers are driven by a newer fs.optimizer; step that one instead")
        awake = [name for name in self._frozen if self._layers[name].weight.requires_grad]
        if awake:
            raise RuntimeError(
                f"{', '.join(awake)} didn't train when fs.optimizer was called, and its method isn't set up to; call "
                "fs.optimizer again after requires_grad_(True)"
            )
        self._refuse_shards()
        if not self._warned and hasattr(self.base.step, "_wrapped_by_lr_sched"):
            self._warned = True
            warnings.warn(
                "an lr scheduler was built on the inner optimizer; build it on what fs.optimizer returned "
                "(the learning rates are shared, so training goes on as intended)",
                stacklevel=4,
            )

    def _refuse_shards(self) -> None:
        """A piece of a weight has no largest value, no signs and no history of the whole: FSDP is refused.

        Weights that ``fully_shard`` split are DTensors, with placements; FullyShardedDataParallel leaves a flat piece,
        or no parameter at all.
        """
        for name, layer in self._layers.items():
            whole = isinstance(layer.weight, nn.Parameter) and layer.weight.ndim == layer._dimensions
            if not whole or hasattr(layer.weight, "placements"):
                if hasattr(layer, "parametrizations") or {"weight_orig", "weight_g"} & layer._parameters.keys():
                    raise ValueError(
                        f"the weight of {name} is made of other parameters (weight_norm, pruning, a parametrization), "
                        "and the methods move the weight itself: remove that before fs.binarize_"
                    )
                raise ValueError(
                    f"the weight of {name} is split over processes (FSDP), and the methods need each layer's whole: "
                    "train with DistributedDataParallel, or leave the binary layers out of the sharding"
                )

    def _refuse_direct_step(self, *_: Any) -> None:
        if not self._stepping:
            raise RuntimeError(
                "the inner optimizer was stepped directly, past the method of the binary layers; call step() on what "
                "fs.optimizer returned"
            )

    def _epoch(self, steps: int) -> int:
        """Epochs done after so many steps, as far as their number is known."""
        return 0 if self.epochs is None or self.total_steps is None else steps * self.epochs // self.total_steps

    def _show_progress(self) -> None:
        """The share of the training done, at the last full epoch where that is how the schedule was published."""
        assert self.total_steps is not None
        share = min(self.steps / self.total_steps, 1.0)
        by_epoch = share if self.epochs is None else min(self._epoch(self.steps) / self.epochs, 1.0)
        for layer in self._layers.values():
            if layer.method.scheduled:
                layer._progress.fill_(by_epoch if layer.method.per_epoch else share)


def _is_count(value: object) -> bool:
    """A whole number from 1 on, also as numpy or a division writes it."""
    return isinstance(value, Real) and not isinstance(value, bool) and float(value) >= 1 and float(value).is_integer()


def optimizer(
    model: nn.Module, base: torch.optim.Optimizer, total_steps: int | None = None, epochs: int | None = None
) -> BinaryOptimizer:
    """Wrap a torch optimizer so that it trains the model's binary layers by their methods.

    Use the result wherever the optimizer was used: ``zero_grad``, ``step``, schedulers, ``GradScaler``, ``state_dict``.

    Args:
        model: a model with binary layers (also inside DistributedDataParallel or torch.compile).
        base: any torch optimizer over ``model.parameters()`` that takes a step from ``.grad`` and goes downhill, so not
            LBFGS; its groups, rates and weight decay hold. (A penalty on the weights belongs there, as weight decay: in
            the loss its gradient would be taken for one of the bits.)
        total_steps: optimizer steps of the whole training; needed by methods with a schedule.
        epochs: epochs of the whole training. Schedules that were published per epoch then stand still within an epoch,
            and work that is done once an epoch (RBNN's rotations) is done here, between two steps.

    Examples:
        >>> import torch
        >>> import fastslow as fs
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 4))
        >>> conversion = fs.binarize_(model, "fsg-weight")
        >>> optimizer = fs.optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
        >>> scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30)
        >>> model(torch.ones(2, 8)).square().mean().backward()
        >>> optimizer.step()
    """
    return BinaryOptimizer(model, base, total_steps, epochs)
