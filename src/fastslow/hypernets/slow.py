"""The slow-nets M_s of Eq. 9: sequence models that turn the stored gradients of a layer into a momentum.

Both take `tokens` (batch, length, patch), oldest first, put the Layer Recognition Embedding (LRE) of `layer` (batch,)
before them (Eq. 10), and return what the net says at the last `outputs` tokens (Eq. 11), (batch, outputs, patch).
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastslow.hypernets import kernels, native
from fastslow.hypernets.layouts import SlowNet, scaled, unscaled
from fastslow.hypernets.scan import Discretization, check_discretization, selective_scan_reference
from fastslow.hypernets.scan_chunked import selective_scan


class MambaSlowNet(SlowNet):
    """One Mamba block over [LRE; h W_a], read at the last tokens through W_b (Eq. 10-11 and 19-23).

    With u the d_model-wide tokens, and x, z of width d_inner = expand * d_model:

        x, z = in_proj(u),    x = silu(conv(x))                        a causal depthwise convolution of d_conv taps
        dt, B, C = x_proj(x),    dt = softplus(dt_proj(dt))                                                  (Eq. 23)
        y = selective_scan(x, dt, -exp(A_log), B, C, D)                                                   (Eq. 20-21)
        out = out_proj(y * silu(z))

    Without `projections` there is no W_a and no W_b: a token is fed as it is, and patch must equal d_model.

    In the concatenated layout, compiled paths leave out old tokens that together can change no output by more than
    `horizon_tol` times the layer's largest (:mod:`~fastslow.hypernets.horizon`); 0 reads everything.

    Initial values are those of public Mamba: A_log = log(1 .. d_state), D = 1, dt_proj.weight uniform in
    +-dt_rank^-0.5, and a dt_proj.bias for which softplus is log-uniform in [1e-3, 0.1]. The other matrices, W_a and W_b
    too, keep what `nn.Linear` and `nn.Conv1d` draw; the LRE is standard normal, as `nn.Embedding` draws it.
    """

    def __init__(
        self,
        layers: int,
        *,
        d_model: int = 1,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 100,
        dt_rank: int = 1,
        patch: int = 1,
        projections: bool = True,
        discretization: Discretization = "zoh",
        horizon_tol: float = 1e-7,
    ) -> None:
        super().__init__()
        _check_sizes(layers=layers, d_model=d_model, d_state=d_state, d_conv=d_conv, expand=expand, dt_rank=dt_rank)
        _check_sizes(patch=patch)
        check_discretization(discretization)
        if not projections and patch != d_model:
            raise ValueError(f"patch={patch} must equal d_model={d_model} without W_a and W_b; use projections=True")
        d_inner = expand * d_model
        self.row_cost = d_inner * d_state
        self.patch = patch
        self.horizon_tol = horizon_tol
        self.full_length: int | None = None  # how many gradients a full history holds, where that is known
        self.discretization: Discretization = discretization
        self.splits = [dt_rank, d_state, d_state]
        self.W_a = nn.Linear(patch, d_model, bias=False) if projections else None
        self.W_b = nn.Linear(d_model, patch, bias=False) if projections else None
        self.lre = nn.Embedding(layers, d_model)
        self.in_proj = nn.Linear(d_model, 2 * d_inner, bias=False)
        self.conv = nn.Conv1d(d_inner, d_inner, d_conv, groups=d_inner)
        self.x_proj = nn.Linear(d_inner, sum(self.splits), bias=False)
        self.dt_proj = nn.Linear(dt_rank, d_inner)
        self.A_log = nn.Parameter(torch.arange(1.0, d_state + 1).log().repeat(d_inner, 1))
        self.D = nn.Parameter(torch.ones(d_inner))
        self.out_proj = nn.Linear(d_inner, d_model, bias=False)
        nn.init.uniform_(self.dt_proj.weight, -(dt_rank**-0.5), dt_rank**-0.5)
        with torch.no_grad():
            dt = self.dt_proj.bias.uniform_(math.log(1e-3), math.log(0.1)).exp_()
            dt += torch.log(-torch.expm1(-dt))  # the inverse of softplus

    def run(self, tokens: Tensor, layer: Tensor, outputs: int, *, reference: bool = False) -> Tensor:
        # Features first and rows last: (features, length, batch) makes every projection one matrix product over
        # contiguous columns, for one sequence of 200,000 tokens as for 200,000 sequences of six.
        u = tokens.permute(2, 1, 0)
        if self.W_a is not None:
            u = _project(self.W_a.weight, u)
        u = torch.cat([self.lre(layer).T[:, None], u], 1)
        u_last = u[:, -outputs:]
        in_x, in_z = self.in_proj.weight.chunk(2)
        x = F.silu(self._convolve(in_x, u))
        dt, B, C = _project(self.x_proj.weight, x).split(self.splits)
        dt = F.softplus(_project(self.dt_proj.weight, dt, self.dt_proj.bias))
        A, D = -self.A_log.exp(), self.D
        x, dt, B, C = (v.permute(2, 1, 0) for v in (x, dt, B, C))
        if reference:
            y = selective_scan_reference(x, dt, A, B, C, D, discretization=self.discretization)[:, -outputs:]
        else:
            y = selective_scan(x, dt, A, B, C, D, discretization=self.discretization, outputs=outputs)
        out = _project(self.out_proj.weight, y.permute(2, 1, 0) * F.silu(_project(in_z, u_last)))
        if self.W_b is not None:
            out = _project(self.W_b.weight, out)
        return out.permute(2, 1, 0)

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
        if not reference and native.can_run(self, history):
            return native.concat_to_horizon(self, history, sizes, layers, scales, known=known)
        if not reference and kernels.can_run(self, history, "concat") and kernels.fits(self, sizes):
            from fastslow.hypernets.kernels import launch  # imports Triton

            return launch.concat(self, history, sizes, layers, scales, known=known)
        return super().concat(history, sizes, layers, scales=scales, reference=reference)

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
        if not reference and native.can_run(self, history) and len(history) < native.MAX_TOKENS:
            return native.per_weight(self, history, sizes, layers, scales, known=known)
        # The tokens are unrolled, and compiling that for each length of a history that still grows isn't worth it.
        whole = self.full_length in (None, len(history))
        if (
            not reference
            and whole
            and len(history) < kernels.MAX_TOKENS
            and kernels.can_run(self, history, "per_weight")
        ):
            from fastslow.hypernets.kernels import launch  # imports Triton

            return launch.per_weight(self, history, sizes, layers, scales, known=known)
        return super().per_weight(history, sizes, layers, scales=scales, known=known, reference=reference)

    def _convolve(self, in_x: Tensor, u: Tensor) -> Tensor:
        """conv(in_proj(u)) as one product: a depthwise filter after a projection is a small dense filter on u."""
        taps = self.conv.kernel_size[0]
        padded = F.pad(u, (0, 0, taps - 1, 0))
        windows = torch.cat([padded[:, k : k + u.shape[1]] for k in range(taps)])
        filters = self.conv.weight.permute(2, 0, 1) * in_x  # (taps, d_inner, d_model)
        return _project(filters.transpose(0, 1).flatten(1), windows, self.conv.bias)


class LSTMSlowNet(SlowNet):
    """An LSTM over [LRE; h] and a linear head with bias: the slow-net of the paper's ablation."""

    def __init__(self, layers: int, *, hidden: int = 100, patch: int = 1) -> None:
        super().__init__()
        _check_sizes(layers=layers, hidden=hidden, patch=patch)
        self.patch = patch
        self.row_cost = hidden
        self.lre = nn.Embedding(layers, patch)
        self.lstm = nn.LSTM(patch, hidden, batch_first=True)
        self.head = nn.Linear(hidden, patch)

    def run(self, tokens: Tensor, layer: Tensor, outputs: int, *, reference: bool = False) -> Tensor:
        states, _ = self.lstm(torch.cat([self.lre(layer)[:, None], tokens], 1))
        return self.head(states[:, -outputs:])

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
        if not reference and self.patch == 1 and kernels.lstm_can_run(self.lstm.hidden_size, history):
            from fastslow.hypernets.kernels import lstm_launch  # imports Triton

            known = None if known is None else scaled(known, sizes, scales)
            out = lstm_launch.sequence(self, scaled(history, sizes, scales), sizes, layers, known)
            return unscaled(out, sizes, scales)
        return super().per_weight(history, sizes, layers, scales=scales, known=known, reference=reference)


def _project(weight: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """`weight @ v + bias` on features-first `v`, (features, length, batch)."""
    columns = v.flatten(1)
    out = weight @ columns if bias is None else torch.addmm(bias[:, None], weight, columns)
    return out.unflatten(1, v.shape[1:])


def _check_sizes(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
