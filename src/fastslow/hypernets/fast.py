"""The fast-net M_f of Eq. 9 and 12: a small bias-free MLP, the same for every weight of every layer."""

import itertools
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_NONLINEARITIES = {"relu": F.relu, "tanh": torch.tanh, "silu": F.silu, "gelu": F.gelu}


class FastNet(nn.Module):
    """A coordinate-wise MLP 1 -> hidden -> ... -> 1 of `depth` linear layers without bias.

    Without a nonlinearity (the paper's choice) the whole net is multiplication by one number,

        M_f(x) = k x,    k = w_n W_{n-1} ... W_2 w_1,

    so it is computed as that, and its factors get the gradients that the explicit MLP gives them.

    `init="orthogonal"` draws each factor with `nn.init.orthogonal_`. A square factor is then a random rotation or
    reflection, and w_1 (hidden x 1) and w_n (1 x hidden) are random unit vectors, so k is a cosine: it starts in
    [-1, 1], with either sign, and about 1 / sqrt(hidden) in size. `init="default"` leaves what `nn.Linear` draws.
    """

    def __init__(
        self,
        *,
        depth: int = 3,
        hidden: int = 100,
        nonlinearity: str | None = None,
        init: Literal["orthogonal", "default"] = "orthogonal",
    ) -> None:
        super().__init__()
        if depth < 1:
            raise ValueError(f"depth={depth} must be at least 1, the number of linear layers")
        if hidden < 1:
            raise ValueError(f"hidden={hidden} must be at least 1, the width between two linear layers")
        if nonlinearity is not None and nonlinearity not in _NONLINEARITIES:
            raise ValueError(f"nonlinearity={nonlinearity!r} is unknown; use None or one of {list(_NONLINEARITIES)}")
        if init not in ("orthogonal", "default"):
            raise ValueError(f"init={init!r} is unknown; use 'orthogonal' or 'default'")
        self.nonlinearity = nonlinearity
        widths = [1, *[hidden] * (depth - 1), 1]
        self.factors = nn.ModuleList(
            nn.Linear(fan_in, fan_out, bias=False) for fan_in, fan_out in itertools.pairwise(widths)
        )
        if init == "orthogonal":
            for weight in self.parameters():
                nn.init.orthogonal_(weight)

    def scalar(self) -> Tensor:
        """k = w_n ... W_2 w_1, the one number that a linear fast-net is; a 0-d tensor."""
        if self.nonlinearity is not None:
            raise ValueError(
                f"nonlinearity={self.nonlinearity!r} makes the net more than one number; use nonlinearity=None"
            )
        first, *rest = self.parameters()
        product = first
        for weight in rest:
            product = weight @ product
        return product.squeeze()

    def forward(self, x: Tensor, *, explicit: bool = False) -> Tensor:
        """M_f(x), coordinate by coordinate, for `x` of any shape; `explicit=True` always runs the MLP."""
        if self.nonlinearity is None and not explicit:
            return self.scalar() * x
        activation = None if self.nonlinearity is None else _NONLINEARITIES[self.nonlinearity]
        out = x.reshape(-1, 1)
        for i, factor in enumerate(self.factors):
            out = factor(out if i == 0 or activation is None else activation(out))
        return out.reshape(x.shape)
