"""Several processes that train one model together, as `torchrun` starts them.

Each rank computes a share of every batch; DistributedDataParallel averages the gradients. Nothing else of a step is
sent: the methods compute the same update from the same gradient on every rank. What the ranks have to agree on beside
it (whether to stop or to save, what the first one read from disk) goes through the functions here, on the CPU.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from .config import RunConfig

log = logging.getLogger("fastslow")

# The others wait while the first rank evaluates or writes; a rank that dies is noticed by its closed connections.
_PATIENCE = timedelta(hours=2)


class RankLost(ValueError):
    """Another process of the run is gone."""


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # among the processes on this machine, of which there are
    local_size: int = 1

    @property
    def first(self) -> bool:
        """Whether this one writes the run folder and speaks to the user."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """This rank's part of so many things in a row: shares follow each other and differ by one at most."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def seed(self, seed: int) -> int:
        """For what is random in a forward pass, where each rank has images of its own; the first keeps the run's."""
        return (seed + 0x9E3779B97F4A7C15 * self.rank) % 2**63

    def parallel(self, model: nn.Module, device: torch.device) -> nn.Module:
        """What to call in a training step: its backward pass averages the gradients over the ranks."""
        if self.size == 1:
            return model
        return DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)

    def largest(self, *values: int) -> list[int]:
        """Of each value, the largest that any rank has."""
        if self.size == 1:
            return list(values)
        together = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(together, dist.ReduceOp.MAX)
        return together.tolist()

    def sum(self, value: float) -> float:
        """The sum of all ranks' values, the same on each of them."""
        if self.size == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(total)
        return float(total)

    def collect(self, *sums: Tensor) -> None:
        """Add what the ranks have each summed up, into the first one's; the others start again at zero."""
        if self.size == 1:
            return
        for total in sums:
            dist.all_reduce(total)
            if not self.first:
                total.zero_()

    def from_first(self, value: Any) -> Any:
        """What the first rank has; the others' value is ignored."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def gather(self, value: Tensor) -> list[Tensor]:
        """Every rank's tensor on the CPU, all of one shape."""
        if self.size == 1:
            return [value]
        found = [torch.empty_like(value) for _ in range(self.size)]
        dist.all_gather(found, value)
        return found

    @contextmanager
    def one_first(self) -> Iterator[None]:
        """The block runs on one rank of each machine, then on the others: they find what it has downloaded."""
        if self.size > 1 and self.local_rank:
            dist.barrier()
        yield
        if self.size > 1 and not self.local_rank:
            dist.barrier()


ALONE = Ranks()


def world() -> Ranks:
    """The place that `torchrun` gave this process; alone without it."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    if not all(name in os.environ for name in names):
        return ALONE
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    rank, size, local_rank = (int(os.environ[name]) for name in names[:3])
    ranks = Ranks(rank, size, local_rank, local_size)
    return ranks if ranks.size > 1 else ALONE


def check_together(config: RunConfig, batch_size: int, ranks: Ranks) -> None:
    """Refuse what several ranks can't do together."""
    if ranks.size == 1:
        return
    if batch_size < ranks.size:
        raise ValueError(
            f"a batch of {batch_size} images can't be shared by {ranks.size} processes: raise --batch-size or start "
            "fewer with --nproc-per-node"
        )
    if config.metrics:
        raise ValueError("--metrics looks at whole batches in one process: leave it out under torchrun")


def joint_batch_norm(model: nn.Module, ranks: Ranks, device: torch.device) -> nn.Module:
    """Let BatchNorm see the whole batch where torch can, which is on GPUs; keys and parameters stay as they are."""
    if ranks.size == 1 or not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        return model
    if device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    log.info("each process normalises its own share of a batch: torch has a joint BatchNorm on GPUs only")
    return model


def restarted() -> bool:
    """Whether `torchrun --max-restarts` started this process again after a failure."""
    return _restarts() != "0"


def _restarts() -> str:
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def own_device(ranks: Ranks, device: torch.device) -> torch.device:
    """The device of this rank: a GPU each, or the CPU for all of them."""
    if ranks.size == 1 or device.type == "cpu":
        return device
    if device.index is not None:
        raise ValueError(f"--device {device}: torchrun gives each process its own GPU; write --device cuda")
    count = torch.cuda.device_count()
    if ranks.local_rank >= count:
        raise ValueError(
            f"torchrun started more processes than this machine has GPUs ({count}): use --nproc-per-node {count}, or "
            "--device cpu"
        )
    return torch.device("cuda", ranks.local_rank)


@contextmanager
def joined(device: torch.device) -> Iterator[tuple[Ranks, torch.device]]:
    """Join the other processes, if there are any; gives this one's place and device."""
    ranks = world()
    device = own_device(ranks, device)
    if ranks.size == 1:
        yield ranks, device
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    # A restart may find the addresses of the processes before it in torchrun's store: they are kept apart by number.
    store, rank, size = next(rendezvous("env://", timeout=_PATIENCE))
    store = PrefixStore(f"fastslow/{_restarts()}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_PATIENCE)
    try:
        yield ranks, device
    except RuntimeError as error:
        if not _connection_failed(error):
            raise
        raise RankLost("another process of this run is gone; its own message says why") from error
    finally:
        dist.destroy_process_group()


def _connection_failed(error: RuntimeError) -> bool:
    # gloo raises a plain RuntimeError that names its source file.
    return isinstance(error, dist.DistError) or "gloo" in str(error)
