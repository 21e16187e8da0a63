"""Every method on two gloo ranks, seeded differently: they stay bit for bit the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import fastslow as fs
from test_methods_common import ROWS, binary_net
from together import together
from toy import toy_data


def _train(rank: int) -> dict[str, Any]:
    x, y = toy_data()
    states = {}
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
    return states


@pytest.mark.slow
def test_two_ranks_agree_bit_for_bit(tmp_path):
    ranks = together(_train, 2, tmp_path)
    for name, state in ranks[0].items():
        for key, value in state.items():
            assert torch.equal(value, ranks[1][name][key]), f"{name}: {key}"
