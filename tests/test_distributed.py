"""DistributedDataParallel on two and three gloo ranks: the wrapper needs no communication of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from fastslow.training.ranks import Ranks, joint_batch_norm
from reference import tiny_task
from together import together
from ways import BATCH, FIELDS, WAYS, train

STEPS = 50
OTHER_WAYS = [(method, way) for method in ("ste", "fsg") for way in WAYS if way != "plain"]
EXACT = 1e-6


def _all_trainings(rank: int, size: int) -> dict[str, Any]:
    torch.manual_seed(1000 + rank)  # ranks that were seeded differently must still agree
    share = Ranks(rank, size).share(BATCH)
    found = {}
    for method in FIELDS:
        found[method] = train(method, steps=STEPS, share=share, wrap=DistributedDataParallel)
    for method, way in OTHER_WAYS if size == 2 else []:
        torch.compiler.reset()
        found[f"{method} {way}"] = train(method, way, share=share, wrap=DistributedDataParallel)
    return found


@pytest.fixture(scope="module")
def ranks(request, tmp_path_factory) -> list[dict[str, Any]]:
    return together(_all_trainings, request.param, tmp_path_factory.mktemp("ranks"), request.param)


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)], indirect=True)
def test_ranks_agree_bit_for_bit(ranks):
    for what, found in ranks[0].items():
        for other in ranks[1:]:
            for key, value in found.items():
                assert torch.equal(value, other[what][key]), f"{what}: {key}"


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)], indirect=True)
@pytest.mark.parametrize("method", list(FIELDS))
def test_ranks_equal_one_process_on_the_joint_batch(ranks, method):
    for key, value in train(method, steps=STEPS).items():
        torch.testing.assert_close(ranks[0][method][key], value, rtol=EXACT, atol=EXACT)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own, for a Function
@pytest.mark.parametrize("ranks", [2], indirect=True)
@pytest.mark.parametrize(("method", "way"), [pair for pair in OTHER_WAYS if pair[1] != "bfloat16"])
def test_every_way_to_step_equals_one_process(ranks, method, way):
    torch.compiler.reset()
    for key, value in train(method, way).items():
        torch.testing.assert_close(ranks[0][f"{method} {way}"][key], value, rtol=EXACT, atol=EXACT)


def _joint_statistics(rank: int) -> dict[str, Any]:
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    net, _ = tiny_task()
    net = joint_batch_norm(net.to(device), Ranks(rank, 2), device)
    parallel = DistributedDataParallel(net, device_ids=[device])
    parallel(_images().to(device)[Ranks(rank, 2).share(BATCH)])
    return {key: value.cpu() for key, value in net.state_dict().items()}


def _images() -> torch.Tensor:
    return tiny_task()[1][0][0][:BATCH]


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="SyncBatchNorm needs a GPU for each rank; torch has no other")
def test_joint_batch_norm_sees_the_whole_batch(tmp_path):
    ranks = together(_joint_statistics, 2, tmp_path, backend="cpu:gloo,cuda:nccl")
    net, _ = tiny_task()
    net(_images())
    for key, value in net.state_dict().items():
        for found in ranks:
            torch.testing.assert_close(found[key], value, rtol=1e-6, atol=1e-6)
