"""What a gradient estimator does to training, in numbers that mean the same for every method.

Two are ReSTE's (Wu et al., ICCV 2023): *estimating error*, how far the function whose derivative is used lies from the
sign, and *gradient stability*, how much the gradient's size varies over the weights. The others say what the bits do.
All are pure functions of a model (and, where said, of its gradients), with one number for the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .binarize import sign
from .convert import binary_layers
from .layers import BinaryLayer


@torch.no_grad()
def estimating_error(model: nn.Module) -> float:
    """``e = sum over layers of || sign(z) - f(z) ||_2``: z of which the bits are the sign, f the method's estimator.

    Smaller is sharper. (ReSTE's own code takes f at the end of its schedule; here it is the one in use.)
    """
    total = 0.0
    for layer in binary_layers(model).values():
        z = layer.method.latent(layer, layer.weight)
        total += float((_quantized(layer, z) - layer.method.estimator(layer, z)).norm())
    return total


def _quantized(layer: BinaryLayer, z: Tensor) -> Tensor:
    return sign(z) if layer.bits == 1 else layer.binarizer.values(layer.weight)


@torch.no_grad()
def gradient_stability(model: nn.Module) -> float | None:
    """``s = sum over layers of Var |dL/dW|`` of the gradients that lie in ``.grad``; None where there are none.

    Smaller is steadier. After ``optimizer.step()`` these are the gradients that the optimizer was given.
    """
    gradients = [layer.weight.grad for layer in binary_layers(model).values()]
    variances = [g.float().abs().var(correction=0) for g in gradients if g is not None]
    return float(torch.stack(variances).sum()) if variances else None


@torch.no_grad()
def signs(model: nn.Module) -> dict[str, Tensor]:
    """Which bits are +1, by layer: what :func:`flip_ratio` compares."""
    return {name: sign_bits(layer) for name, layer in binary_layers(model).items()}


def sign_bits(layer: BinaryLayer) -> Tensor:
    """The bits of a layer as booleans, whatever two values they stand for."""
    return layer.method.latent(layer, layer.weight.detach()) > 0


def flip_ratio(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> float:
    """The share of the bits that differ between two looks at a model.

    Examples:
        >>> before, after = torch.tensor([True, True, False, False]), torch.tensor([True, False, False, False])
        >>> flip_ratio({"fc": before}, {"fc": after})
        0.25
    """
    if before.keys() != after.keys():
        raise ValueError("the two looks are at different models: their layers' names differ")
    total = sum(bits.numel() for bits in after.values())
    flips = sum(int((before[name] != bits).sum()) for name, bits in after.items())
    return flips / total if total else 0.0


def sign_entropy(model: nn.Module) -> float:
    """Mean over layers of ``-p log2 p - (1-p) log2 (1-p)``, p the share of +1: 1 when balanced, 0 when all agree."""
    shares = torch.stack([bits.float().mean() for bits in signs(model).values()]).clamp(1e-12, 1 - 1e-7)
    return float(-(shares * shares.log2() + (1 - shares) * (1 - shares).log2()).mean())


@contextmanager
def float_weights(model: nn.Module) -> Iterator[None]:
    """Inside, binary layers compute with their latent float weights and real inputs, as the plain network would."""
    layers = list(binary_layers(model).values())

    def plain_forward(layer: BinaryLayer) -> Callable[[Tensor], Tensor]:
        return lambda input: layer.product(input, layer.weight, layer.bias)

    try:
        for layer in layers:
            layer.__dict__["forward"] = plain_forward(layer)
        yield
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)


def float_gradients(model: nn.Module, closure: Callable[[], Tensor]) -> dict[str, Tensor]:
    """dL/dW of the float network with the same latent weights. ``closure`` computes the loss, without backward.

    The model, its gradients and its BatchNorm statistics stay as they are.
    """
    layers = {name: layer for name, layer in binary_layers(model).items() if layer.weight.requires_grad}
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with float_weights(model), torch.enable_grad():
            gradients = torch.autograd.grad(closure(), [layer.weight for layer in layers.values()], allow_unused=True)
    finally:
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
    return {name: g for name, g in zip(layers, gradients, strict=True) if g is not None}


def cosine_to_float(model: nn.Module, closure: Callable[[], Tensor]) -> float | None:
    """Mean over layers of the cosine between the gradient in ``.grad`` and the float network's on the same loss.

    1 says that the estimator points where float training would; None where there is no gradient.
    """
    layers = binary_layers(model)
    cosines = []
    for name, reference in float_gradients(model, closure).items():
        gradient = layers[name].weight.grad
        if gradient is not None:
            cosines.append(torch.cosine_similarity(gradient.flatten().float(), reference.flatten().float(), dim=0))
    return float(torch.stack(cosines).mean()) if cosines else None


def indicators(
    model: nn.Module, closure: Callable[[], Tensor] | None = None, before: Mapping[str, Tensor] | None = None
) -> dict[str, float]:
    """All of them by name: those that need gradients if there are any, the cosine if ``closure`` is given, the flip
    ratio if ``before``, an earlier :func:`signs`, is."""
    found: dict[str, Any] = {
        "estimating_error": estimating_error(model),
        "gradient_stability": gradient_stability(model),
        "sign_entropy": sign_entropy(model),
        "cosine_to_float": None if closure is None else cosine_to_float(model, closure),
        "flip_ratio": None if before is None else flip_ratio(before, signs(model)),
    }
    return {name: value for name, value in found.items() if value is not None}
