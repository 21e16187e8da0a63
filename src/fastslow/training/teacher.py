"""Distillation: a float network, as a rule the one that a run starts from, teaches the network in training.

Hinton, Vinyals, Dean, *Distilling the knowledge in a neural network* (2015), https://arxiv.org/abs/1503.02531.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .build import build_float_model
from .config import RunConfig


class Teacher:
    """The float network of ``config.of_teacher`` in evaluation mode, and the loss that compares with it."""

    def __init__(self, config: RunConfig, classes: int, device: torch.device) -> None:
        self.share, self.temperature = config.distill, config.distill_temperature
        self.model: nn.Module = build_float_model(config.of_teacher, classes).to(device).eval().requires_grad_(False)
        if device.type == "cuda":
            self.model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def loss(self, x: Tensor, logits: Tensor, cross_entropy: Tensor) -> Tensor:
        """``(1 - d) CE + d T^2 KL(softmax(teacher / T) || softmax(student / T))``, the mean over the images.

        The teacher sees the same images ``x``, augmented as they are. The gradient of the divergence falls with 1/T^2,
        which the factor undoes, so that d means the same at every temperature.
        """
        with torch.no_grad():
            taught = F.log_softmax(self.model(x).float() / self.temperature, dim=1)
        said = F.log_softmax(logits.float() / self.temperature, dim=1)
        divergence = F.kl_div(said, taught, reduction="batchmean", log_target=True)
        return (1 - self.share) * cross_entropy + self.share * self.temperature**2 * divergence
