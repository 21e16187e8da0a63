"""The least that a training step can cost: what must be computed and moved, over what the machine was seen to do.

The counts are lower bounds. Every product of a convolution and its two gradients; every activation written, read,
read again in the backward pass, and its gradient written and read, once each; Adam's reads and writes; and for the
slow-net one exponential for each token, channel and state, forward and backward, over the newest gradient alone (with
the horizon) or the whole history. Nothing is counted for caches, launches, or what a fused kernel could avoid.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fastslow.layers import BinaryLayer


def ceilings(device: torch.device) -> dict[str, float]:
    """Bytes, products (2 FLOP each) and exponentials a second that this machine reaches in a plain loop."""
    gpu = device.type == "cuda"
    big = torch.rand(2**26 if gpu else 2**24, device=device)
    copy = torch.empty_like(big)
    found = {"bytes_per_second": 2 * 4 * big.numel() / _seconds(lambda: copy.copy_(big), device)}
    side = 8192 if gpu else 1024
    a, b = torch.rand(side, side, device=device), torch.rand(side, side, device=device)
    found["flop_per_second"] = 2 * side**3 / _seconds(lambda: a @ b, device)
    found["exp_per_second"] = _exponentials(device)
    return found


def _exponentials(device: torch.device) -> float:
    if device.type == "cuda":
        import triton
        import triton.language as tl

        @triton.jit
        def many(out, ROUNDS: tl.constexpr):
            x = tl.arange(0, 1024).to(tl.float32) * -1e-3
            for _ in range(ROUNDS):
                x = tl.exp2(x) - 1.0
            tl.store(out + tl.program_id(0) * 1024 + tl.arange(0, 1024), x)

        out = torch.empty(4096 * 1024, device=device)
        return 256 * out.numel() / _seconds(lambda: many[(4096,)](out, ROUNDS=256, num_warps=4), device)
    x = torch.rand(2**12, device=device)  # stays in the cache
    return 100 * x.numel() / _seconds(lambda: [torch.exp(x) for _ in range(100)], device)


def _seconds(run: Callable[[], Any], device: torch.device) -> float:
    """The fastest of several runs."""
    best = float("inf")
    for _ in range(10):
        began = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
    return best


def counts(model: nn.Module, images: Tensor, slow: Any, tokens: int) -> dict[str, float]:
    """FLOP, bytes and exponentials of a step; `slow`: the slow-net, if any; `tokens`: how many a weight it must see."""
    flop, activations = 0, 0

    def look(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal flop, activations
        activations += output.numel()
        if isinstance(module, nn.Conv2d | nn.Linear):
            flop += 2 * output.numel() * module.weight[0].numel()

    handles = [m.register_forward_hook(look) for m in model.modules() if not list(m.children())]
    with torch.no_grad():
        model(images)
    for handle in handles:
        handle.remove()
    weights = sum(p.numel() for p in model.parameters())
    binary = sum(m.weight.numel() for m in model.modules() if isinstance(m, BinaryLayer))
    # The exponentials of the per-weight layout run over a weight's own history: every token, whatever the horizon.
    pairs = 0 if slow is None or not hasattr(slow, "A_log") else slow.A_log.numel()
    return {"flop": 3.0 * flop, "bytes": 4.0 * (5 * activations + 7 * weights), "exps": 2.0 * binary * tokens * pairs}


def floor_ms(counted: dict[str, float], ceiling: dict[str, float]) -> float:
    """Model and slow-net one after the other, each at the ceiling that binds it."""
    model = max(counted["flop"] / ceiling["flop_per_second"], counted["bytes"] / ceiling["bytes_per_second"])
    return 1000 * (model + counted["exps"] / ceiling["exp_per_second"])
