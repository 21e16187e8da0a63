"""The ways in which people write a training step: each one function, the same for a plain model and under DDP."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastslow as fs
from reference import tiny_task

FIELDS: dict[str, dict[str, Any]] = {
    "ste": {},
    "fsg": {"expand": 2, "d_state": 2, "length": 3},
    "fsg-weight": {"expand": 4, "d_state": 2},
    "multifc": {"hidden": 4},
}
BATCH = 6  # which two and three ranks can share evenly

Step = Callable[[nn.Module, torch.optim.Optimizer, Tensor, Tensor], None]


def plain(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def accumulated(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    """One image at a time; only the last backward pass exchanges gradients between ranks."""
    optimizer.zero_grad()
    for i in range(len(y)):
        last = i == len(y) - 1
        with nullcontext() if last else getattr(model, "no_sync", nullcontext)():
            (F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]) / len(y)).backward()
    optimizer.step()


def clipped(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()


_SCALER = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=10**6)  # a power of two scales exactly


def scaled(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    _SCALER.scale(F.cross_entropy(model(x), y)).backward()
    _SCALER.step(optimizer)
    _SCALER.update()


def bfloat16(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x)
    assert out.dtype == torch.bfloat16
    F.cross_entropy(out.float(), y).backward()
    optimizer.step()


WAYS: dict[str, Step] = {
    "plain": plain,
    "accumulated": accumulated,
    "clipped": clipped,
    "scaled": scaled,
    "bfloat16": bfloat16,
    "compiled": plain,
}


def train(
    method: str,
    way: str = "plain",
    *,
    steps: int = 6,
    share: slice = slice(BATCH),
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> dict[str, Tensor]:
    """Weights and hypernetworks after some steps, flat; float64, and float32 where bfloat16 is cast from it."""
    net, batches = tiny_task()
    net.norm = nn.Identity()  # its statistics would differ between shares and whole batches
    dtype = torch.float32 if way == "bfloat16" else torch.float64
    fs.binarize_(net.to(dtype), method, skip="out", **FIELDS[method])
    inner = torch.compile(net, backend="aot_eager") if way == "compiled" else net
    model = wrap(inner)  # pyright: ignore[reportArgumentType]
    optimizer = fs.optimizer(model, torch.optim.Adam(model.parameters(), lr=0.01))
    for i in range(steps):
        x, y = batches[i % len(batches)]
        WAYS[way](model, optimizer, x[:BATCH][share].to(dtype), y[:BATCH][share])
    hyper = [p for driver in optimizer.drivers for p in getattr(driver, "nets", nn.Module()).parameters()]
    return {"weights": _flat(list(net.parameters())), "hyper": _flat(hyper)}


def _flat(parameters: list[nn.Parameter]) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in parameters]) if parameters else torch.zeros(0)
