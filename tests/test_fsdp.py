"""Weights split over processes are refused with a sentence, whenever the splitting is done."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import fastslow as fs
from toy import toy_data, toy_net

REFUSED = "the weight of .* is split over processes .FSDP.*: train with DistributedDataParallel, or leave"


@pytest.fixture
def mesh(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def binary_net() -> nn.Module:
    net = toy_net()
    fs.binarize_(net, "fsg-weight", skip="stem", expand=2, d_state=2)
    return net


def optimizer(net: nn.Module) -> fs.BinaryOptimizer:
    return fs.optimizer(net, torch.optim.Adam(net.parameters(), lr=0.01))


def test_sharded_before_the_wrapper(mesh):
    net = binary_net()
    fully_shard(net, mesh=mesh)
    with pytest.raises(ValueError, match=REFUSED):
        optimizer(net)


def test_sharded_after_the_wrapper(mesh):
    net = binary_net()
    wrapped = optimizer(net)
    fully_shard(net, mesh=mesh)
    with pytest.raises(ValueError, match=REFUSED):
        wrapped.step()


def test_float_layers_may_be_sharded(mesh):
    """What is not binary is no business of the wrapper."""
    net = binary_net()
    fully_shard(net.stem, mesh=mesh)
    wrapped = optimizer(net)
    x, y = toy_data()
    before = net.conv.weight.detach().clone()
    for _ in range(3):
        wrapped.zero_grad()
        F.cross_entropy(net(x), y).backward()
        wrapped.step()
    assert not torch.equal(net.conv.weight, before)


@pytest.mark.parametrize("flat", [True, False])
def test_what_the_older_fsdp_leaves(flat):
    """FullyShardedDataParallel itself wants an accelerator: its two forms of a split weight, made by hand."""
    net = binary_net()
    wrapped = optimizer(net)
    weight = net.conv.weight.detach().reshape(-1)
    if flat:
        net.conv.weight = nn.Parameter(weight[:7])
    else:
        del net.conv.weight
        net.conv.weight = weight
    with pytest.raises(ValueError, match=REFUSED):
        wrapped.step()
    with pytest.raises(ValueError, match=REFUSED):
        optimizer(net)
