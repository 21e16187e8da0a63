"""Every method on two gloo ranks, seeded differently: they stay bit for bit the same."""

from __future__ import annotations

import os
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import fastslow as fs
from test_methods_common import ROWS, binary_net
from toy import toy_data


def _rank(rank: int, port: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    x, y = toy_data()
    states = {}
    try:
        for row in ROWS:
            activations = "sign" if "sign" in fs.get_method(row.name).activations else None
            model = binary_net(row, activations, seed=rank)
            parallel = DistributedDataParallel(model)
            base = torch.optim.Adam(parallel.parameters(), lr=0.01)
            optimizer = fs.optimizer(parallel, base, total_steps=6, epochs=3)
            for step in range(6):
                batch = slice(16 * (2 * step + rank) % 192, 16 * (2 * step + rank) % 192 + 16)
                optimizer.zero_grad()
                F.cross_entropy(parallel(x[batch]), y[batch]).backward()
                optimizer.step()
            # BatchNorm statistics are each rank's own, until the next forward pass broadcasts the first's.
            states[row.name] = {k: v for k, v in model.state_dict().items() if "running" not in k}
        torch.save(states, f"{folder}/rank{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_agree_bit_for_bit(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.start_processes(_rank, (port, str(tmp_path)), nprocs=2, start_method="spawn")
    ranks = [torch.load(tmp_path / f"rank{r}.pt", weights_only=True) for r in range(2)]
    for name, state in ranks[0].items():
        for key, value in state.items():
            assert torch.equal(value, ranks[1][name][key]), f"{name}: {key}"
