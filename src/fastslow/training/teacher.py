"""Distillation: a float network, as a rule the one that a run starts from, teaches the network in training.

Hinton, Vinyals, Dean, *Distilling the knowledge in a neural network* (2015), https://arxiv.org/abs/1503.02531.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .build import build_float_model
from .config import RunConfig


def distillation_loss(
    logits: Tensor, taught: Tensor, cross_entropy: Tensor, share: float = 0.5, temperature: float = 4.0
) -> Tensor:
    """``(1 - d) CE + d T^2 KL(softmax(teacher / T) || softmax(student / T))``, the mean over the images.

    Classes lie along dimension 1, as for ``F.cross_entropy``: where there are further dimensions (the pixels of a
    segmentation, the words of a text), the mean is taken over these too.

    ``taught`` are the teacher's logits for the same images, of which no gradient is taken, and ``cross_entropy`` the
    student's own loss, with label smoothing or without. The gradient of the divergence falls with 1/T^2, which the
    factor undoes, so that the share d means the same at every temperature.

    Examples:
        >>> logits = torch.tensor([[2.0, 0.0]])
        >>> loss = F.cross_entropy(logits, torch.tensor([0]))
        >>> torch.allclose(distillation_loss(logits, logits, loss), 0.5 * loss)
        True
    """
    if logits.shape != taught.shape or logits.ndim < 2:
        raise ValueError(
            f"logits of shape {tuple(logits.shape)} and {tuple(taught.shape)}: student and teacher need the same one, "
            "(images, classes, ...)"
        )
    if not 0 <= share <= 1 or not temperature > 0:
        raise ValueError(f"share={share}, temperature={temperature}: give a share from 0 to 1 and a T above 0")
    log_taught = F.log_softmax(taught.detach().float() / temperature, dim=1)
    log_said = F.log_softmax(logits.float() / temperature, dim=1)
    divergence = F.kl_div(log_said, log_taught, reduction="batchmean", log_target=True)
    positions = logits[0, 0].numel() if len(logits) else 1
    return (1 - share) * cross_entropy + share * temperature**2 * divergence / positions


class Teacher:
    """The float network of ``config.of_teacher`` in evaluation mode, and the loss that compares with it."""

    def __init__(self, config: RunConfig, classes: int, device: torch.device) -> None:
        self.share, self.temperature = config.distill, config.distill_temperature
        self.model: nn.Module = build_float_model(config.of_teacher, classes).to(device).eval().requires_grad_(False)
        if device.type == "cuda":
            self.model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def loss(self, x: Tensor, logits: Tensor, cross_entropy: Tensor) -> Tensor:
        """``distillation_loss``. The teacher sees the same images ``x``, augmented as they are."""
        with torch.no_grad():
            taught = self.model(x)
        return distillation_loss(logits, taught, cross_entropy, self.share, self.temperature)
