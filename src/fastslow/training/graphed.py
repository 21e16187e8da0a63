"""The whole training step as one CUDA graph: gather, augmentation, forward, backward, methods, optimizer.

A ResNet on small images leaves a GPU waiting for Python most of the time. A captured step is launched as one; what
changes between steps (which images, the learning rate) is written into tensors that the graph reads.
"""

from __future__ import annotations

import copy
import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..data import Batches
from ..wrapper import BinaryOptimizer
from .patience import Patience

if TYPE_CHECKING:
    from .loop import Trainer

log = logging.getLogger("fastslow")

LOOK_EVERY = 50  # steps between two looks at the loss, each of which waits for the GPU


def why_not(trainer: Trainer) -> str | None:
    """Why a trainer's step can't be captured, or None if it can."""
    if trainer.device.type != "cuda":
        return "the device is no CUDA GPU"
    if not isinstance(trainer.train_batches, Batches):
        return "the images come from other processes"
    if trainer.ranks.size > 1:
        return "the processes exchange their gradients in the middle of it"
    if trainer.config.on_nan != "stop":
        return f"--on-nan {trainer.config.on_nan} looks at every step before it counts"
    if isinstance(trainer.optimizer, BinaryOptimizer):
        for driver in trainer.optimizer.drivers:
            if not driver.graph_safe:
                return f"{type(driver).__name__} decides something in Python at every step"
    return None


@contextmanager
def without_collector() -> Iterator[None]:
    """What is garbage goes now, and what becomes garbage stays until the end.

    A trainer and its graph are full of cycles, so it is Python's collector that deletes them, and the GPU doesn't allow
    a graph to be deleted while another one is captured: that capture would fail, of the next run in the same process.
    """
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class GraphedSteps:
    """Runs a trainer's steps: a few eagerly, so that every lazy state exists, then one graph over and over."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        assert isinstance(trainer.train_batches, Batches)
        self.batches = trainer.train_batches
        self.plan: list[Tensor] = []  # which images, and what happens to them: a captured step reads it here
        self.loss = torch.zeros((), device=trainer.device)
        # Warm-up and capture share one side stream, as torch asks: gradients remember the stream they were made on.
        self.stream = torch.cuda.Stream(trainer.device)
        self.graph: torch.cuda.CUDAGraph | None = None
        drivers = trainer.optimizer.drivers if isinstance(trainer.optimizer, BinaryOptimizer) else []
        self._eager_steps = max([3, *(driver.eager_steps for driver in drivers)])
        self.eager_left = self._eager_steps
        self._patience = Patience(
            "the first steps compile kernels for this GPU, which may take a few minutes, once for a machine"
        )

    def start_over(self) -> None:
        """A state has been loaded: optimizers keep theirs elsewhere now, and a graph would go on with what was."""
        if self.graph is not None:
            self.graph, self.eager_left = None, self._eager_steps

    def run(self, epoch: int, start: int) -> Iterator[float | None]:
        """The steps of an epoch from batch ``start`` on; yields the loss where it is looked at."""
        batches = self.batches
        plan = [part.to(self.trainer.device) for part in batches.plan(epoch)]
        for batch in range(start, len(batches)):
            part = slice(batch * batches.batch_size, (batch + 1) * batches.batch_size)
            yield self._step([values[part] for values in plan])

    def _step(self, plan: list[Tensor]) -> float | None:
        trainer = self.trainer
        if not self.plan:
            self.plan = [torch.empty_like(part) for part in plan]
        for kept, new in zip(self.plan, plan, strict=True):
            kept.copy_(new)
        trainer.set_learning_rate()
        if self.graph is None and self.eager_left == 0:
            self._capture()
        if self.graph is None:
            self._eager()
        else:
            self.graph.replay()
            if isinstance(trainer.optimizer, BinaryOptimizer):
                trainer.optimizer.count_step()
        value = float(self.loss) if trainer.done % LOOK_EVERY == 0 else None
        trainer.done += 1
        return value

    def _eager(self) -> None:
        first = self.eager_left > 0
        self.eager_left -= 1  # below 0 once a capture has failed: it isn't tried again
        self.stream.wait_stream(torch.cuda.current_stream())
        with self._patience.waiting() if first else nullcontext(), torch.cuda.stream(self.stream):
            self._body()
        torch.cuda.current_stream().wait_stream(self.stream)

    def _capture(self) -> None:
        trainer = self.trainer
        trainer.optimizer.zero_grad()  # gradients made inside the graph live in its memory
        before = copy.deepcopy(trainer.state_dict())
        # A capture that fails leaves the generator of random numbers inside of it.
        random = torch.cuda.default_generators[self.loss.get_device()]
        random_before = random.clone_state()
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream(trainer.device)
        torch.cuda.synchronize(trainer.device)
        try:
            with without_collector(), torch.cuda.graph(graph, stream=self.stream):
                self._body()
        except Exception as error:  # a network may do anything in its forward pass
            # Nothing was computed, but Python has seen a step: everything goes back to where it was.
            del graph
            torch.cuda.set_stream(stream)  # torch leaves the capture's own behind
            torch.cuda.synchronize(trainer.device)
            random.graphsafe_set_state(random_before)
            trainer.optimizer.zero_grad()
            trainer.load_state_dict(before)
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            log.warning("steps run one kernel at a time, not as a CUDA graph: capturing one failed (%s)", reason)
            return
        self.graph = graph

    def _body(self) -> None:
        batches = self.batches
        indices, *places = self.plan
        x = batches.gather(indices, *places)
        y = batches.image_set.labels[indices]
        self.loss.copy_(self.trainer.update(x, y))
