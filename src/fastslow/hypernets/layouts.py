"""How a slow-net reads the gradient history of all layers at once: along the weights, or along time.

The history comes as (l, N): the last l gradients, oldest first, of N weights that belong to layers of the given sizes,
side by side. Both layouts return one number a weight, (N,).

    concat        one sequence a layer (Eq. 8): its l gradients one after the other, read at the newest one's tokens
    per_weight    one sequence of l tokens for each weight (or patch of weights), read at its last token

`scales` (one a layer) are the units in which a net sees each layer: M(h / scale) * scale. `known` is the result, where
the caller has it from the same history and parameters and wants its gradient only: a faster path then saves the forward
pass.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from fastslow.hypernets.scan_chunked import BLOCK
from fastslow.hypernets.segments import constant, repeated


class SlowNet(nn.Module):
    """What the slow-nets have in common: `forward` on any rows, and both layouts in terms of it.

    Rows are independent, so many of them run in pieces that fit the cache; in a backward pass each piece is recomputed.
    """

    patch: int  # consecutive weights that form one token
    row_cost: int  # elements that a row takes

    def run(self, tokens: Tensor, layer: Tensor, outputs: int, *, reference: bool = False) -> Tensor:
        """The net on one piece of rows."""
        raise NotImplementedError

    def forward(
        self, tokens: Tensor, layer: Tensor, outputs: int, *, known: Tensor | None = None, reference: bool = False
    ) -> Tensor:
        """M_s at the last `outputs` tokens; `reference=True` is the slow, plain twin that the tests compare with."""
        if not 1 <= outputs <= tokens.shape[1]:
            raise ValueError(f"outputs={outputs} must be between 1 and the number of tokens, {tokens.shape[1]}")
        rows = max(1, BLOCK // self.row_cost)
        if reference or len(tokens) <= rows:
            return self.run(tokens, layer, outputs, reference=reference)
        if known is not None:
            return cast(Tensor, _Known.apply(self, tokens, layer, known, rows, *self.parameters()))
        pieces = zip(tokens.split(rows), layer.split(rows), strict=True)
        out = [checkpoint(self.run, *piece, outputs, use_reentrant=False, preserve_rng_state=False) for piece in pieces]
        return torch.cat(cast(list[Tensor], out))

    def concat(
        self,
        history: Tensor,
        sizes: Sequence[int],
        layers: Sequence[int],
        *,
        scales: Tensor | None = None,
        known: Tensor | None = None,
        reference: bool = False,
    ) -> Tensor:
        """M_s of each layer's whole history as one sequence; `reference=True` runs `forward`'s reference."""
        outputs = []
        for part, layer in zip(scaled(history, sizes, scales).split(list(sizes), 1), layers, strict=True):
            tokens = _patches(part, self.patch)
            index = constant([layer], history.device)
            sequence = tokens.reshape(1, -1, self.patch)
            outputs.append(self(sequence, index, tokens.shape[1], reference=reference).reshape(-1)[: part.shape[1]])
        return unscaled(torch.cat(outputs), sizes, scales)

    def per_weight(
        self,
        history: Tensor,
        sizes: Sequence[int],
        layers: Sequence[int],
        *,
        scales: Tensor | None = None,
        known: Tensor | None = None,
        reference: bool = False,
    ) -> Tensor:
        """M_s of each weight's (or patch's) own history; `reference=True` runs `forward`'s reference."""
        parts = [_patches(part, self.patch) for part in scaled(history, sizes, scales).split(list(sizes), 1)]
        tokens = torch.cat(parts, 1).transpose(0, 1).contiguous()
        index = repeated(constant(layers, history.device), [part.shape[1] for part in parts])
        if known is not None:
            known = scaled(known, sizes, scales).view(-1, 1, 1) if self.patch == 1 else None
        outputs = self(tokens, index, 1, known=known, reference=reference).reshape(-1)
        if self.patch > 1:  # drop the padding of each layer's last patch
            pieces = outputs.split([part.shape[1] * self.patch for part in parts])
            outputs = torch.cat([piece[:size] for piece, size in zip(pieces, sizes, strict=True)])
        return unscaled(outputs, sizes, scales)


class _Known(torch.autograd.Function):
    """A value that is known already, with the gradient that running the net, piece by piece, gives."""

    @staticmethod
    def forward(
        ctx: Any, net: SlowNet, tokens: Tensor, layer: Tensor, known: Tensor, rows: int, *parameters: Tensor
    ) -> Tensor:
        ctx.net, ctx.rows, ctx.parameters = net, rows, parameters
        ctx.save_for_backward(tokens, layer)
        return known.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        tokens, layer = ctx.saved_tensors
        total = [torch.zeros_like(p) for p in ctx.parameters]
        pieces = (v.split(ctx.rows) for v in (tokens, layer, cotangent))
        for piece, index, part in zip(*pieces, strict=True):
            with torch.enable_grad():
                out = ctx.net.run(piece, index, cotangent.shape[1])
            for sum_, grad in zip(total, torch.autograd.grad(out, ctx.parameters, part), strict=True):
                sum_ += grad
        return None, None, None, None, None, *total


def scaled(history: Tensor, sizes: Sequence[int], scales: Tensor | None) -> Tensor:
    """In units of each layer's scale, one a layer; gradients (l, N) or outputs (N,)."""
    return history if scales is None else history / repeated(scales, sizes)


def unscaled(output: Tensor, sizes: Sequence[int], scales: Tensor | None) -> Tensor:
    """The inverse."""
    return output if scales is None else output * repeated(scales, sizes)


def _patches(history: Tensor, patch: int) -> Tensor:
    """(l, xi) -> (l, ceil(xi / patch), patch); the last patch is padded with zeros."""
    return F.pad(history, (0, -history.shape[1] % patch)).reshape(history.shape[0], -1, patch)
