"""``binarize_``, ``freeze`` and friends: between plain models and binary ones, keys unchanged."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from .binarize import Binarizer, get_binarizer
from .layers import BINARY_OF, PLAIN_OF, BinaryLayer
from .methods import Method, get_method

log = logging.getLogger("fastslow")

Choice = str | Iterable[str] | Callable[[str, nn.Module], bool]
# By type: a model of the user's own may have a child called "module" and compute more than it. torch.compile's is known
# by the name that it gives its child, since importing it takes a second.
_WRAPPERS = (DistributedDataParallel, DataParallel, AveragedModel)
_COMPILED = "_orig_mod"


@dataclass(frozen=True)
class Conversion:
    """What :func:`binarize_` did: names of the layers it made binary, and of those it left, with the reason."""

    converted: tuple[str, ...]
    left: dict[str, str]

    def __str__(self) -> str:
        left = "; ".join(f"{name or '(the model)'}: {why}" for name, why in self.left.items())
        return f"binarized {len(self.converted)} layers" + (f", left in float: {left}" if left else "")


def _wrapped(module: nn.Module | None) -> str | None:
    """The name of the child that a wrapper wraps; None for every other module."""
    if isinstance(module, _WRAPPERS):
        return "module"
    return _COMPILED if module is not None and _COMPILED in module._modules else None


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own model inside DistributedDataParallel, DataParallel, AveragedModel or torch.compile."""
    while (key := _wrapped(model)) is not None:
        model = model.get_submodule(key)
    return model


def plain_name(model: nn.Module, name: str) -> str:
    """The dotted name of a module, parameter or buffer without the ``module.`` and ``_orig_mod.`` of wrappers."""
    parts: list[str] = []
    module: nn.Module | None = model
    for part in name.split("."):
        if part != _wrapped(module):
            parts.append(part)
        module = None if module is None else module._modules.get(part)
    return ".".join(parts)


def _named_layers(model: nn.Module) -> dict[str, nn.Module]:
    """By plain names: all layers that could be, or are, binary, and convolutions of other kinds, which are left."""
    kinds = (*BINARY_OF, *PLAIN_OF, _ConvNd)
    return {plain_name(model, name): module for name, module in model.named_modules() if isinstance(module, kinds)}


def binary_layers(model: nn.Module) -> dict[str, BinaryLayer]:
    """The model's binary layers by their dotted names, in order of registration."""
    return {name: layer for name, layer in _named_layers(model).items() if isinstance(layer, BinaryLayer)}


def first_and_last(model: nn.Module) -> list[str]:
    """Names of the first and the last convertible layer (in order of registration): the two the paper leaves in float.

    Examples:
        >>> import fastslow as fs
        >>> fs.first_and_last(fs.models.resnet20())
        ['conv1', 'fc']
    """
    names = [
        name
        for name, layer in _named_layers(model).items()
        if type(layer) in BINARY_OF or isinstance(layer, BinaryLayer)
    ]
    return list(dict.fromkeys([*names[:1], *names[-1:]]))


def _chooser(choice: Choice | None, argument: str, names: Iterable[str]) -> Callable[[str, nn.Module], bool]:
    """A predicate from patterns; each pattern must match at least one of the names."""
    if choice is None:
        return lambda name, module: False
    if callable(choice):
        return choice
    patterns = [choice] if isinstance(choice, str) else list(choice)
    known = list(names)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(f"{argument}: {pattern!r} is no pattern; give strings on the dotted name, or a predicate")
        if not any(name == pattern or fnmatchcase(name, pattern) for name in known):
            raise ValueError(
                f"{argument}: the pattern {pattern!r} matches no layer; patterns apply to the full dotted name, "
                f"for example {', '.join(map(repr, known[:3]))}"
            )
    return lambda name, _: any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def _why_not(layer: nn.Module) -> str | None:
    """Why a layer can't be converted, or None if it can."""
    if isinstance(layer, BinaryLayer):
        return f"binary already ({layer.method.name})"
    if isinstance(layer, LazyModuleMixin):
        return None  # if it is chosen, it has to have its weight first
    if not isinstance(layer, tuple(BINARY_OF)):
        return f"there is no binary {type(layer).__name__}"
    if type(layer) not in BINARY_OF:
        return f"{type(layer).__name__} is a subclass with behaviour of its own"
    weight = layer._parameters.get("weight")
    if weight is None:
        return "its weight is made of other parameters (weight_norm, pruning)"
    if not weight.numel():
        return "it has no weights"
    return None


def binarize_(
    model: nn.Module,
    method: str | Method = "fsg",
    *,
    binarizer: str | Binarizer | None = None,
    bits: int = 1,
    activations: str | None = "auto",
    skip: Choice | None = (),
    only: Choice | None = None,
    **fields: object,
) -> Conversion:
    """Make the model's ``Conv1d``, ``Conv2d`` and ``Linear`` layers binary, in place.

    Args:
        model: any ``nn.Module``; names, parameters and ``state_dict`` keys stay as they are. (``rbnn``, ``fda``,
            ``recu``, ``surge``, ``quantnet`` and, with 1-bit inputs, ``adabin`` add keys of their own; float weights
            load without them.)
        method: how gradients pass the binarizer: a name from :func:`fastslow.list_methods`, or a method object.
        binarizer: ``"dorefa"``, ``"sign"``, ``"scaled-sign"``, ``"scaled-sign-filter"``; None takes the method's own.
        bits: bits of a weight (more than one with ``"dorefa"`` only, and with the method ``dorefa``).
        activations: ``"sign"`` makes the inputs of the converted layers 1-bit with the method's own backward; None
            leaves them real; ``"auto"`` is the method's own: 1-bit for ``bnn`` and ``xnor``, real for the others.
        skip, only: fnmatch patterns on the full dotted name (``"conv1"`` doesn't match ``"layer1.0.conv1"``), or a
            predicate ``(name, module) -> bool``. Layers that ``skip`` chooses, or that ``only`` doesn't, stay float.
        **fields: the method's hyper-parameters, for example ``beta=0.3, length=6``.

    Returns:
        what was converted and what was left, which is also logged.

    Examples:
        >>> from torch import nn
        >>> import fastslow as fs
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
        >>> fs.binarize_(model, "ste", skip=["0", "4"])
        Conversion(converted=('2',), left={'0': 'skipped', '4': 'skipped'})
        >>> sorted(set(model[2].binary_weight.flatten().tolist()))
        [-1.0, 1.0]
        >>> fs.binarize_(model, "st")
        Traceback (most recent call last):
        ValueError: unknown method 'st'; did you mean 'ste' or 'reste' or 'lstmfc'?
    """
    method = get_method(method, **fields)
    chosen_binarizer = get_binarizer(method.default_binarizer if binarizer is None else binarizer, bits)
    method.check_binarizer(chosen_binarizer)
    chosen_activations = method.check_activations(activations)
    layers = _named_layers(model)
    skips = _chooser(skip, "skip", layers)
    wanted = _chooser(only, "only", layers) if only is not None else (lambda name, module: True)

    convert: dict[str, nn.Module] = {}
    left: dict[str, str] = {}
    for name, layer in layers.items():
        reason = _why_not(layer)
        if reason is None and skips(name, layer):
            reason = "skipped"
        if reason is None and not wanted(name, layer):
            reason = "not chosen by only"
        if reason is not None:
            left[name] = reason
        elif isinstance(layer, LazyModuleMixin):
            raise ValueError(
                f"{type(layer).__name__} has no weight yet; run one batch through the model, then call binarize_"
            )
        else:
            convert[name] = layer
    if not convert:
        found = "; ".join(f"{name}: {why}" for name, why in left.items())
        raise ValueError(
            f"nothing to binarize in {type(model).__name__}: "
            + (found if found else "it has no Conv1d, Conv2d or Linear layer")
        )
    method.check_layers(convert)
    for name, layer in convert.items():
        weight = layer.weight
        assert isinstance(weight, Tensor)
        if not weight.is_meta and not torch.isfinite(weight).all():
            raise ValueError(f"{name}.weight isn't finite, so it has no signs; binarize a network that computes")
    with _all_or_none(convert.values()):
        for layer in convert.values():
            make_binary(layer, method, chosen_binarizer, chosen_activations)
    _disable_fused_inference(model)
    conversion = Conversion(tuple(convert), left)
    log.info("%s: %s", method.name, conversion)
    return conversion


@contextmanager
def _all_or_none(layers: Iterable[nn.Module]) -> Iterator[None]:
    """A conversion that fails, for want of memory say, leaves the layers as they were."""
    holders = ("_parameters", "_buffers", "_non_persistent_buffers_set")
    before = []
    for layer in layers:
        held = {holder: copy.copy(vars(layer)[holder]) for holder in holders}
        before.append((layer, type(layer), {**vars(layer), **held}))
    try:
        yield
    except BaseException:
        for layer, kind, attributes in before:
            layer.__class__ = kind
            vars(layer).clear()
            vars(layer).update(attributes)
        raise


def make_binary(layer: nn.Module, method: Method, binarizer: Binarizer, activations: str | None = None) -> None:
    """Change the class of one Conv1d, Conv2d or Linear in place."""
    layer.__class__ = BINARY_OF[type(layer)]
    assert isinstance(layer, BinaryLayer)
    layer.start_binary(method, binarizer, activations)


def _disable_fused_inference(model: nn.Module) -> None:
    """``nn.TransformerEncoderLayer`` reads ``linear1.weight`` itself on its fused inference path: switch that off."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer) and binary_layers(module):
            module.activation_relu_or_gelu = 0
        if isinstance(module, nn.TransformerEncoder) and binary_layers(module):
            module.use_nested_tensor = False  # only that path can read nested tensors


def freeze(model: nn.Module) -> nn.Module:
    """A plain copy of the model whose weights are the exact values it computes with, +-1 or +-scale, as constants.

    (More of them with more bits, two free ones with ``adabin``. ``xnor``, ``rbnn`` and ``adabin`` with 1-bit inputs
    compute with more than weights and are refused.)

    The copy has ordinary ``nn.Conv2d`` / ``nn.Linear`` layers and computes what the binary model computes in evaluation
    mode. It depends on nothing of this library, unless inputs have 1 bit: those become a forward hook that takes their
    sign, and a pickle names it. Biases and other layers can still be trained.

    Examples:
        >>> from torch import nn
        >>> import fastslow as fs
        >>> model = nn.Sequential(nn.Linear(8, 4))
        >>> conversion = fs.binarize_(model, "ste")
        >>> frozen = fs.freeze(model)
        >>> type(frozen[0]).__name__, sorted(set(frozen[0].weight.flatten().tolist()))
        ('Linear', [-1.0, 1.0])
    """
    frozen = copy.deepcopy(unwrap(model))
    layers = binary_layers(frozen)
    if not layers:
        raise ValueError(f"{type(frozen).__name__} has no binary layer to freeze; call fs.binarize_ first")
    for name, layer in layers.items():
        if type(layer) not in PLAIN_OF:
            raise ValueError(
                f"{name} is a {type(layer).__name__}, changed after fs.binarize_ (a parametrization, a class of your "
                "own): remove that before freezing"
            )
        layer.stop_binary()
    return frozen
