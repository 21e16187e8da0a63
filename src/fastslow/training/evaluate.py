"""What is measured: accuracy and loss, and what the bits do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..convert import binary_layers
from ..data import AnyBatches, AnySet, batches_of
from ..indicators import sign_bits
from ..modes import evaluating


@dataclass(frozen=True)
class Evaluation:
    """Accuracy in percent, mean cross-entropy, and on how many images."""

    accuracy: float
    loss: float
    n: int


def evaluation_batches(image_set: AnySet, **options: Any) -> AnyBatches:
    """A set in order, in batches of 500 small images, or of fewer large ones."""
    _, height, width = image_set.shape
    return batches_of(image_set, min(500, max(50, 500 * 32 * 32 // (height * width))), **options)


@torch.no_grad()
def evaluate(model: nn.Module, batches: AnyBatches, heed: Callable[[], None] = lambda: None) -> Evaluation:
    """One pass in evaluation mode; the model's mode is put back as it was.

    Args:
        heed: called before each batch; what it raises ends the pass.
    """
    correct: Tensor | int = 0
    loss: Tensor | float = 0.0
    with evaluating(model):
        for x, y in batches.epoch():
            heed()
            logits = model(x).float()
            loss = loss + F.cross_entropy(logits, y, reduction="sum").double()
            correct = correct + (logits.argmax(1) == y).sum()
    n = len(batches.image_set)
    return Evaluation(accuracy=100.0 * int(correct) / n, loss=float(loss) / n, n=n)


class BitWatch:
    """Flip ratio and share of +1 of a model's binary weights, from one look to the next."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.flips: dict[str, float] = {}  # of each layer, at the last look
        self._last = self._signs()

    def _signs(self) -> list[Tensor]:
        return [sign_bits(layer) for layer in binary_layers(self.model).values()]

    def look(self) -> dict[str, float]:
        """``flip_ratio``: share of the bits that differ from the last look; ``share_plus``: share of +1."""
        signs = self._signs()
        total = sum(sign.numel() for sign in signs)
        if not total:
            return {}
        flips = [int((new != old).sum()) for new, old in zip(signs, self._last, strict=True)]
        names = binary_layers(self.model)
        self.flips = {name: n / sign.numel() for name, n, sign in zip(names, flips, signs, strict=True)}
        plus = sum(int(sign.sum()) for sign in signs)
        self._last = signs
        return {"flip_ratio": sum(flips) / total, "share_plus": plus / total}

    def state_dict(self) -> list[Tensor]:
        return self._last

    def load_state_dict(self, signs: list[Tensor]) -> None:
        self._last = [sign.to(old.device) for sign, old in zip(signs, self._last, strict=True)]
