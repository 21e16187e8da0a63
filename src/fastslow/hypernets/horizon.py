"""How far back the concatenated slow-net has to look: what older tokens can't change, they needn't be read for.

The scan forgets: a state h of channel c and index s decays by exp(dt A) at every token. Let q be the last token that is
left out and t >= q + H one whose output is wanted. What the tokens up to q add to that output is

    weight_c(t) C_s(t) exp(A sum of dt from q + 1 to t) h(q),

and every factor has a bound that holds for *all* tokens of a layer, by interval arithmetic from its largest |u|:

    x_c in silu(bias_c +- sum_k |filter_k| max|u|),   then dt_c >= dt_low, |B_s|, |C_s|, |weight_c| from x and u,

(the LRE, far larger than a gradient, enters the bound of h(q) only: it is among what is left out, or nothing is),

    |h| <= max|B x| / |A|  (zero-order hold: A h is an average of -B x),   <= (1 / |A| + dt_most) max|B x|  (euler).

So H = log(bound / allowed) / (dt_low |A|) tokens are enough, where `allowed` is `tolerance` times the layer's largest
output, shared by all (channel, state) pairs. The largest output isn't known in advance: a guess stands in for it, and
the caller must check it afterwards and read everything where it was too large.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fastslow.hypernets.segments import constant, segment_max

if TYPE_CHECKING:
    from fastslow.hypernets.slow import MambaSlowNet


class Horizon(NamedTuple):
    starts: Tensor  # (layers, channels, states), int32: the first token that must be read; 0 is the LRE
    guess: Tensor  # (layers,): that is enough if the largest output, before `scales`, is at least this


@torch.no_grad()
def horizon(
    net: MambaSlowNet,
    history: Tensor,
    sizes: Sequence[int],
    layers: Sequence[int],
    scales: Tensor | None,
    tolerance: float,
) -> Horizon:
    """Bounds for a net of d_model 1 and dt_rank 1 on history (l, N)."""
    token = 1.0 if net.W_a is None else net.W_a.weight.double().abs().view(())
    unit = 1.0 if scales is None else 1 / scales.double()
    size = history.abs()
    newest = segment_max(size[-1], sizes).double() * unit * token
    lre = net.lre.weight[:, 0].index_select(0, constant(layers, history.device)).double().abs()
    largest = segment_max(size.amax(0), sizes).double() * unit * token

    in_x, in_z = (w.double() for w in net.in_proj.weight.chunk(2))
    filters = net.conv.weight[:, 0].double() * in_x
    bias = net.conv.bias.double() if net.conv.bias is not None else filters.new_zeros(len(filters))
    to_dt, to_B, to_C = net.x_proj.weight.double().split(net.splits)
    dt_weight, dt_bias = net.dt_proj.weight[:, 0].double(), net.dt_proj.bias.double()
    A = net.A_log.double().exp()  # |A|, (channels, states)
    out = net.out_proj.weight[0].double() * (1.0 if net.W_b is None else net.W_b.weight.double().view(()))

    x_low, x_high = _silu_range(bias, filters.abs().sum(1) * largest[:, None])  # (layers, channels)
    middle, radius = (x_low + x_high) / 2, (x_high - x_low) / 2
    rate, rate_radius = middle @ to_dt.T, radius @ to_dt.abs().T  # (layers, 1)
    dt_middle = dt_weight * rate + dt_bias
    dt_radius = dt_weight.abs() * rate_radius
    dt_low = F.softplus(dt_middle - dt_radius)
    C_most = (middle @ to_C.T).abs() + radius @ to_C.abs().T  # (layers, states)
    weight_most = out.abs() * in_z[:, 0].abs() * newest[:, None]  # |silu(z)| <= |z|

    wide_low, wide_high = _silu_range(bias, filters.abs().sum(1) * torch.maximum(largest, lre)[:, None])
    x_most = torch.maximum(wide_low.abs(), wide_high.abs())
    B_most = x_most @ to_B.abs().T
    dt_most = F.softplus(dt_weight.abs() * (x_most @ to_dt.abs().T) + dt_bias)
    state_most = 1 / A if net.discretization == "zoh" else 1 / A + dt_most[:, :, None]
    bound = weight_most[:, :, None] * C_most[:, None] * B_most[:, None] * x_most[:, :, None] * state_most

    # The guess: the output at the largest new token, had the net seen zeros before. Low rather than high, since what it
    # costs is the logarithm of it.
    still = F.silu(bias)
    dt_still = F.softplus(dt_weight * (still @ to_dt[0]) + dt_bias)[:, None]
    hold = 1 / A if net.discretization == "zoh" else dt_still / -torch.expm1(-dt_still * A)
    y = (hold * (to_B @ still) * (to_C @ still)).sum(1) * still + net.D.double() * still
    outputs = [F.silu(sign * in_z[:, 0] * newest[:, None]) @ (out * y) for sign in (1, -1)]
    guess = 0.1 * torch.maximum(outputs[0].abs(), outputs[1].abs())

    allowed = tolerance * guess[:, None, None] / A.numel()
    tokens = (torch.log(bound) - torch.log(allowed)).clamp_min(0) / (dt_low[:, :, None] * A)
    # Nothing to add where the bound is 0; nothing may be left out where the guess is (and log gives inf or NaN).
    tokens = torch.where(bound > 0, torch.nan_to_num(tokens, nan=torch.inf), torch.zeros_like(tokens))
    first_output = (len(history) - 1) * constant(sizes, history.device) + 1
    starts = first_output[:, None, None] - tokens.ceil()
    starts = torch.where(starts > net.conv.kernel_size[0], starts, 0)  # with the LRE in the window, all or nothing
    return Horizon(starts.to(torch.int32), guess)


def _silu_range(middle: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """The range of silu over middle +- radius: monotone on either side of its minimum at -1.2784645."""
    low, high = middle - radius, middle + radius
    a, b = F.silu(low), F.silu(high)
    inside = (low < -1.278464542761) & (high > -1.278464542761)
    return torch.where(inside, -0.278464542762, torch.minimum(a, b)), torch.maximum(a, b)
