"""The networks of ``fsg-plus``: for each weight, from what is known of it, how its update is reworked.

Fast-net and slow-net are perceptrons with one hidden layer, shared by all layers of the model:

    (a, b) = V_f tanh(U_f x_f) + V_s tanh((1 + scale_i) * (U_s x_s) + shift_i) + c,

where ``scale_i`` and ``shift_i`` are the Layer Recognition Embedding of the weight's layer ``i``. V_f, V_s, c and the
embedding start from zero, so that at first a = b = 0. All parameters are one vector ``theta``. Weights lie along the
last dimension, features and hidden units along the first: every operation is a large one, and the backward pass, which
is written out, keeps nothing of a graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .segments import repeated, segment_sum


class Pass(NamedTuple):
    """One network's forward pass: ``U x``, and the hidden units."""

    inner: Tensor
    hidden: Tensor


class PlusNets:
    """Where everything lies in ``theta``, and the forward and backward pass.

    ``inputs``: the rows of the features that each network sees, "fast", "slow" or both; ``sizes``: weights of each
    layer.
    """

    def __init__(self, inputs: Mapping[str, slice], hidden: int, sizes: Sequence[int]) -> None:
        self.inputs = dict(inputs)
        self.hidden = hidden
        self.sizes = sizes
        self.shapes: dict[str, tuple[int, ...]] = {"bias": (2,)}
        for net, rows in inputs.items():
            self.shapes[f"{net}.first"] = (hidden, rows.stop - rows.start)
            self.shapes[f"{net}.last"] = (2, hidden)
        if "slow" in inputs:
            self.shapes["slow.lre"] = (2, hidden, len(sizes))

    def initial(self, seed: int) -> Tensor:
        """``theta`` at first: normal first layers of the size that keeps variance, zeros everywhere else."""
        generator = torch.Generator().manual_seed(seed)
        parts = []
        for name, shape in self.shapes.items():
            part = torch.zeros(shape, dtype=torch.float64)
            if name.endswith("first"):
                part.normal_(std=shape[-1] ** -0.5, generator=generator)
            parts.append(part.reshape(-1))
        return torch.cat(parts)

    def parts(self, theta: Tensor) -> dict[str, Tensor]:
        """The parameters by their names, as views."""
        pieces = theta.split([torch.Size(shape).numel() for shape in self.shapes.values()])
        return {name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)}

    def forward(self, theta: Tensor, features: Tensor) -> tuple[Tensor, dict[str, Pass]]:
        """``(a, b)`` of every weight, and what the backward pass needs."""
        parts = self.parts(theta)
        out, passes = parts["bias"][:, None].expand(2, features.shape[1]), {}
        for net, rows in self.inputs.items():
            inner = parts[f"{net}.first"] @ features[rows]
            hidden = inner
            if net == "slow":
                scale, shift = parts["slow.lre"]
                scale, shift = repeated(torch.stack([1 + scale, shift]), self.sizes)
                hidden = torch.addcmul(shift, inner, scale)
            passes[net] = Pass(inner, torch.tanh(hidden))
            out = torch.addmm(out, parts[f"{net}.last"], passes[net].hidden)
        return out, passes

    def backward(self, theta: Tensor, features: Tensor, passes: dict[str, Pass], cotangent: Tensor) -> Tensor:
        """``cotangent . d(a, b) / d theta``, as flat as ``theta``."""
        parts, found = self.parts(theta), {"bias": cotangent.sum(1)}
        for net, rows in self.inputs.items():
            inner, hidden = passes[net]
            found[f"{net}.last"] = cotangent @ hidden.T
            back = torch.ops.aten.tanh_backward(parts[f"{net}.last"].T @ cotangent, hidden)
            if net == "slow":
                found["slow.lre"] = segment_sum(torch.stack([back * inner, back]), self.sizes)
                back = back * repeated(1 + parts["slow.lre"][0], self.sizes)
            found[f"{net}.first"] = back @ features[rows].T
        return torch.cat([found[name].reshape(-1) for name in self.shapes])

    def check(self, weights: Mapping[str, Tensor], origin: str) -> None:
        """Refuse, with a sentence, weights that aren't those of such networks; the embedding isn't among them."""
        wanted = {name: shape for name, shape in self.shapes.items() if name != "slow.lre"}
        if missing := [name for name in wanted if name not in weights]:
            raise ValueError(f"{origin} holds no hypernetworks for these fields: {missing[0]!r} is missing")
        if surplus := sorted(weights.keys() - wanted.keys()):
            raise ValueError(f"{origin} holds {surplus[0]!r}, which these hypernetworks don't have: set fast and slow")
        for name, shape in wanted.items():
            if weights[name].shape != shape:
                raise ValueError(
                    f"{origin}: {name} is {tuple(weights[name].shape)}, with hidden={self.hidden} it must be {shape}"
                )


class Adam:
    """Adam with beta 0.9 and 0.999 on one vector, in place, in the steps that are due; in others nothing moves.

    What is due is a tensor: a CUDA graph runs the same kernels in either case. ``eps`` is larger than usual, so that a
    parameter whose gradient is zero but for rounding stays where it is.
    """

    def __init__(self, lr: float, like: Tensor, eps: float = 1e-6) -> None:
        self.lr, self.eps = lr, eps
        self.betas = like.new_tensor([[0.9], [0.999]])

    def step(self, theta: Tensor, gradient: Tensor, moments: Tensor, steps: Tensor, due: Tensor) -> None:
        """``moments`` (2, n) and ``steps`` are the state; ``due`` is 1 or 0."""
        steps.add_(due)
        moments.lerp_(torch.stack([gradient, gradient * gradient]), (1 - self.betas) * due)
        first, second = moments / (1 - self.betas ** steps.clamp_min(1))
        theta.addcdiv_(first * due, second.sqrt() + self.eps, value=-self.lr)
