"""Names and numbers as the tables print them."""

from __future__ import annotations

from ..recipes.research import Idea
from ..recipes.table1 import TUNED_LR, TUNED_MOMENTUM_LR
from .document import NOT_RUN
from .results import Group
from .statistics import Paired

NONE = "–"

_METHODS = {
    "ste": "STE",
    "fcgrad": "FCGrad",
    "multifc": "MultiFC",
    "lstmfc": "LSTMFC",
    "fsg": "FSG",
    "fsg-code": "FSG, authors' code",
    "fsg-weight": "FSG, per weight",
    "fsg-lstm": "FSG, LSTM",
    "fsg-plus": "FSG-plus",
    "mamba": "Mamba",
    "lstm": "LSTM",
    "lstm-raw": "LSTM on raw gradients",
    "lstm-what": "LSTM on the weights, no history",
    "reste": "ReSTE",
    "irnet": "IR-Net",
    "rbnn": "RBNN",
    "float": "float",
}
_PROTOCOLS = {
    "adam": "Adam",
    "sgd": "SGD",
    "adam-all": "Adam, all layers",
    "sgd-all": "SGD, all layers",
    "adam-code": "Adam, all layers, BatchNorm before fc",
    "sgd-code": "SGD, all layers, BatchNorm before fc",
    "sgd-tuned": f"SGD, tuned lr {TUNED_LR:g}",
    "momentum": f"SGD, tuned lr {TUNED_MOMENTUM_LR:g}, momentum 0.9",
    "adam-lr0.1": "Adam, lr 0.1",
    "sgd-lr0.1": "SGD, lr 0.1",
    "adam-distill": "Adam, cosine, teacher",
    "adam-teacher": "Adam, cosine, ResNet-44 as teacher, cutout",
    "adam-strong": "Adam, cosine, teacher, cutout",
    "adam-short": "Adam, cosine, teacher, cutout, 30 epochs",
    "momentum-strong": "SGD, momentum 0.9, cosine, teacher, cutout",
}
METHOD_ORDER = tuple(_METHODS)


def method_name(method: str) -> str:
    return _METHODS.get(method, method)


def gradient_name(idea: Idea) -> str:
    return " ".join(filter(None, (method_name(idea.method), idea.variant)))


def protocol_name(protocol: str) -> str:
    return _PROTOCOLS.get(protocol, protocol)


def model_name(model: str) -> str:
    return f"ResNet-{model.removeprefix('resnet')}" if model.startswith("resnet") else model


def data_name(data: str) -> str:
    return {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "mini": "4,000 images of CIFAR-10"}.get(data, data)


def signed(value: float, digits: int = 2) -> str:
    """With its sign, and a real minus; a rounded zero has none."""
    text = f"{abs(value):.{digits}f}"
    if float(text) == 0:
        return text
    return f"{'−' if value < 0 else '+'}{text}"


def spread(value: float, deviation: float | None, digits: int = 2) -> str:
    return f"{value:.{digits}f}" if deviation is None else f"{value:.{digits}f} ± {deviation:.{digits}f}"


def group_value(group: Group, name: str = "test_accuracy", digits: int = 2) -> str:
    """Mean and deviation over the seeds, or why there is none."""
    if not group.n:
        return f"diverged ({group.diverged} of {group.diverged})" if group.diverged else NOT_RUN
    text = spread(group.mean(name), group.deviation(name), digits)
    return f"{text}; {group.diverged} diverged" if group.diverged and name == "test_accuracy" else text


def p_value(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def difference(found: Paired | None) -> str:
    """``−0.30 [−0.52, −0.08]``: the mean difference and its 95 % confidence interval."""
    if found is None:
        return NONE
    text = signed(found.difference)
    return text if found.interval is None else f"{text} [{signed(found.interval[0])}, {signed(found.interval[1])}]"


def pair_words(found: Paired | None) -> str:
    """``p = 0.021, d = −1.9, n = 5``."""
    if found is None:
        return NONE
    parts = []
    if found.p is not None and found.effect is not None:
        parts += [p_value(found.p), f"d = {signed(found.effect, 1)}"]
    if found.wilcoxon is not None:
        parts.append(f"Wilcoxon {p_value(found.wilcoxon)}")
    return ", ".join([*parts, f"n = {found.n}"])
