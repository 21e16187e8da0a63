"""DistributedDataParallel on two gloo ranks: the wrapper needs no communication of its own."""

from __future__ import annotations

import os
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fastslow as fs
from reference import tiny_task

FIELDS = {
    "fsg-weight": {"expand": 4, "d_state": 2},
    "fsg": {"expand": 4, "d_state": 2},
    "multifc": {"hidden": 4},
    "ste": {},
}


def _model(method: str) -> nn.Module:
    net, _ = tiny_task()
    net.norm = nn.Identity()  # its statistics would differ between half batches and whole ones
    fs.binarize_(net, method, skip="out", **FIELDS[method])
    return net


def _train(model: nn.Module, optimizer, batches) -> dict[str, torch.Tensor]:
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    hyper = [p for driver in optimizer.drivers for p in getattr(driver, "nets", nn.Module()).parameters()]
    flat = [torch.cat([p.detach().reshape(-1) for p in params]) if params else torch.zeros(0)
            for params in (list(model.parameters()), hyper)]  # fmt: skip
    return {"weights": flat[0], "hyper": flat[1]}


def _rank(rank: int, port: int, method: str, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    try:
        model = _model(method)
        torch.manual_seed(1000 + rank)  # ranks that were seeded differently must still agree
        parallel = DistributedDataParallel(model)
        optimizer = fs.optimizer(parallel, torch.optim.Adam(parallel.parameters(), lr=0.01))
        half = slice(4 * rank, 4 * rank + 4)
        batches = [(x[half], y[half]) for x, y in tiny_task()[1][:8]]
        torch.save(_train(parallel, optimizer, batches), f"{folder}/rank{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("method", list(FIELDS))
def test_two_ranks_agree_bit_for_bit_and_equal_one_process(method, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.start_processes(_rank, (port, method, str(tmp_path)), nprocs=2, start_method="spawn")
    ranks = [torch.load(tmp_path / f"rank{r}.pt", weights_only=True) for r in range(2)]
    for key in ("weights", "hyper"):
        assert torch.equal(ranks[0][key], ranks[1][key]), key
    model = _model(method)
    optimizer = fs.optimizer(model, torch.optim.Adam(model.parameters(), lr=0.01))
    alone = _train(model, optimizer, tiny_task()[1][:8])
    for key in ("weights", "hyper"):
        torch.testing.assert_close(ranks[0][key], alone[key], rtol=1e-9, atol=1e-9)
