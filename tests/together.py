"""Several gloo ranks on this machine, for tests."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def together(work: Callable[..., Any], size: int, folder: Path, *arguments: Any, backend: str = "gloo") -> list[Any]:
    """What ``work(rank, *arguments)`` returns on each of ``size`` ranks, tensors and plain values only."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.start_processes(_run, (work, size, port, backend, str(folder), arguments), nprocs=size, start_method="spawn")
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(size)]


def _run(
    rank: int, work: Callable[..., Any], size: int, port: int, backend: str, folder: str, arguments: tuple[Any, ...]
) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group(backend, rank=rank, world_size=size)
    try:
        torch.save(work(rank, *arguments), f"{folder}/rank{rank}.pt")
    finally:
        dist.destroy_process_group()
