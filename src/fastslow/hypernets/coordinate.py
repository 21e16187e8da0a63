"""MetaQuant's recurrent meta network: one LSTM step a weight, the hidden state carried from iteration to iteration."""

from __future__ import annotations

import torch
from torch import Tensor, nn

State = tuple[Tensor, Tensor]


class CoordinateLSTM(nn.Module):
    """``nn.LSTM(1, hidden)`` and a linear head with bias, applied to every coordinate on its own.

    The state (h, c) is two tensors (n, hidden) for n coordinates: 2 * hidden numbers a weight.
    """

    def __init__(self, hidden: int = 100) -> None:
        super().__init__()
        self.hidden = hidden
        self.lstm = nn.LSTM(1, hidden)
        self.head = nn.Linear(hidden, 1)

    def start(self, coordinates: int, *, dtype: torch.dtype, device: torch.device) -> State:
        zeros = torch.zeros(coordinates, self.hidden, dtype=dtype, device=device)
        return zeros, zeros.clone()

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One step: (n,) inputs and the state before it -> (n,) outputs and the state after it, not differentiable."""
        if x.device.type == "cuda":
            # cuDNN's kernels are made for long sequences: for one step, two products and one kernel for the rest take a
            # fraction of their time.
            h, c = torch.lstm_cell(x.reshape(-1, 1), list(state), *self.lstm.all_weights[0])
            return self.head(h).reshape(x.shape), (h.detach(), c.detach())
        output, (h, c) = self.lstm(x.reshape(1, -1, 1), (state[0].unsqueeze(0), state[1].unsqueeze(0)))
        return self.head(output).reshape(x.shape), (h.detach().squeeze(0), c.detach().squeeze(0))
