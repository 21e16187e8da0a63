"""The training loop, readable from top to bottom."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from itertools import count
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import Dataset
from ..indicators import indicators
from ..ops import BitsAhead, fused
from ..weights import save_weights
from ..wrapper import BinaryOptimizer
from ..wrapper import optimizer as wrap
from .build import build_base_optimizer, build_batches, build_model
from .conditions import Sessions, conditions
from .config import NONE, RunConfig
from .damping import Damping
from .evaluate import BitWatch, evaluate
from .finite import TrainingDiverged, broken_method, broken_state
from .graphed import LOOK_EVERY, GraphedSteps, why_not
from .interrupt import Interrupted, StopAskedError, StopRequests
from .interval import Interval, SaveClock
from .memory import explained
from .precision import float32_products
from .ranks import ALONE, Ranks, check_together, joint_batch_norm
from .recovery import Buffers, LeftOut, NotFinite, RollBack, look_after_step, look_before_step
from .run import WEIGHTS, RunFolder
from .shown import Shown
from .sinks import Silent, Sink
from .state import load_newest, load_state, prepare_rollback, roll_back, save_newest, take_state
from .teacher import Teacher
from .trained_on import as_json

log = logging.getLogger("fastslow")


class Trainer:
    """One run: model, optimizer, data, and the loop that moves them.

    With other ``ranks`` (:mod:`fastslow.training.ranks`) each of them builds the same trainer and computes its share of
    every batch; only the first one's has a ``run`` folder. A ``begun`` run goes on from a checkpoint, which has its
    network: the float weights that it started from aren't read, and needn't be there any more.

    Examples:
        >>> import fastslow as fs
        >>> from fastslow.training.run import RunFolder
        >>> mini = fs.data.load("mini")
        >>> few = fs.data.Dataset(name="mini", train=mini.train.subset(slice(64)), test=mini.test.subset(slice(50)))
        >>> config = fs.RunConfig(model="resnet8", data="mini", method="ste", epochs=1, batch_size=32)
        >>> result = fs.Trainer(config, few, run=RunFolder.create("runs/first", config)).fit()
        >>> result["n_test"], result["metric"]
        (50, 'test accuracy of the last epoch')
    """

    def __init__(
        self,
        config: RunConfig,
        dataset: Dataset,
        *,
        run: RunFolder | None = None,
        device: torch.device | str = "cpu",
        sink: Sink | None = None,
        ranks: Ranks = ALONE,
        begun: bool = False,
    ) -> None:
        config.check_recipe()
        self.config = config
        self.ranks = ranks
        self.run = run
        self.device = torch.device(device)
        self.sink = sink if sink is not None else Silent()
        self._stop = StopRequests()
        self._clock = SaveClock(Interval.parse(config.checkpoint_every))
        channels_last = self.device.type == "cuda"
        self.train_batches, self.test_batches = build_batches(config, dataset, ranks, self.device, channels_last)
        classes = len(dataset.train.classes)
        start = dataclasses.replace(config, weights=NONE) if begun else config
        self.model: nn.Module = build_model(start, classes).to(self.device)
        self._waits = begun  # for the checkpoint
        if channels_last:
            self.model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        check_together(config, self.train_batches.batch_size, ranks)
        self.model = joint_batch_norm(self.model, ranks, self.device)
        self.total_steps = config.epochs * len(self.train_batches)
        self.optimizer = build_base_optimizer(config, self.model, capturable=self.device.type == "cuda")
        if config.method is not None:
            self.optimizer = wrap(self.model, self.optimizer, total_steps=self.total_steps, epochs=config.epochs)
        self._network = ranks.parallel(self.model, self.device)
        self._teacher = Teacher(config, classes, self.device) if config.distill else None
        damped = (config.damping, self.model, self.optimizer, self.total_steps)
        self._damping = Damping(*damped) if config.damping else None
        self._shown = Shown(config, self.model)
        self.bits = BitWatch(self.model)
        self._bits_ahead = BitsAhead()
        self.done = 0  # optimizer steps
        self.left_out = LeftOut()
        self.sessions = Sessions(conditions(self.device) | ({"processes": ranks.size} if ranks.size > 1 else {}))
        # On a GPU every look waits for it, so that one who isn't asked looks now and then.
        self._look_always = self.device.type == "cpu" or config.on_nan != "stop"
        self.rows: list[dict[str, Any]] = []  # one an epoch
        self._metrics: dict[str, float] = {}  # of the step before a resume, should the epoch end there
        self._seconds = 0.0  # of training, over all sessions of the run
        self._epoch_seconds = 0.0
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        self._correct = torch.zeros((), dtype=torch.int64, device=self.device)
        torch.manual_seed(ranks.seed(config.seed))  # for what is random in a forward pass, the same for every method
        reason = why_not(self)
        self._graphed = GraphedSteps(self) if reason is None else None
        if reason is not None and self.device.type == "cuda":
            log.info("steps run one kernel at a time, not as a CUDA graph: %s", reason)

    def fit(self) -> dict[str, Any]:
        """Train to the end, from wherever the run stands; returns the result."""
        path = None if self.run is None else self.run.path
        with nullcontext() if self.run is None else self.run.lock, explained(self.config, self.device, path):
            return self._fit()

    def _fit(self) -> dict[str, Any]:
        if self._waits:
            raise RuntimeError("a begun run has no network yet: resume() or load_state_dict() comes before fit()")
        if not self.done:
            torch.manual_seed(self.ranks.seed(self.config.seed))  # once more: who knows what was drawn since
        self.keep_images()
        self.sink.start(self._description(), self.done, self.total_steps, self.rows)
        try:
            with self._stop, float32_products(self.device, self.config.precision == "tf32"):
                prepare_rollback(self)
                while len(self.rows) < self.config.epochs:
                    try:
                        self._train_epoch()
                    except RollBack as back:
                        roll_back(self, back)
            result = self._finish()
            self.sink.result(result)
        finally:
            self.sink.close()
        return result

    def _train_epoch(self) -> None:
        """What is left of the current epoch, its evaluation, its row of metrics, a checkpoint."""
        epoch = len(self.rows)
        start = self.done - epoch * len(self.train_batches)
        began = time.perf_counter()
        for loss in self._steps(epoch, start):
            self._epoch_seconds += time.perf_counter() - began
            if loss is not None and not math.isfinite(loss):
                where = broken_state(self.model) or broken_method(self.optimizer) or "the loss itself"
                self._diverged(f"the loss is {loss} at step {self.done}, first not finite: {where}")
            self.sink.step(self.done, loss)
            signal_number, due = self.ranks.largest(self._stop.received or 0, self._clock.due_after_step(self.done))
            if signal_number:
                self.save()
                self._interrupt(signal_number)
            if due:
                self.save()
            began = time.perf_counter()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            self._epoch_seconds += time.perf_counter() - began
        try:
            self._end_epoch(epoch)
        except StopAskedError:
            self.save()
            self._interrupt(self._stop.received or 0)
        ended = len(self.rows) == self.config.epochs
        signal_number, due = self.ranks.largest(self._stop.received or 0, self._clock.due_after_epoch(len(self.rows)))
        if ended or signal_number or due:
            self.save()
        if signal_number and not ended:
            self._interrupt(signal_number)

    def _interrupt(self, signal_number: int) -> None:
        raise Interrupted(signal_number, self.done, self.run.path if self.run is not None else None)

    def _steps(self, epoch: int, start: int) -> Iterator[float | None]:
        """Do the steps of an epoch from batch ``start`` on; yields each one's loss where reading it is free, or due."""
        if self._graphed is not None:
            yield from self._graphed.run(epoch, start)
            return
        for x, y in self.train_batches.epoch(epoch, start):
            yield self.train_step(x, y)

    def train_step(self, x: Tensor, y: Tensor) -> float | None:
        """One step on one batch."""
        self.set_learning_rate()
        if self.done + 1 in self.left_out.steps:  # the run has been here before and has come back
            return self._leave_out()
        buffers = Buffers(self.model) if self.config.on_nan == "skip" else None
        try:
            loss = self.update(x, y)
        except NotFinite as found:
            if self.config.on_nan == "rollback":
                raise RollBack(self.done + 1, str(found)) from found
            if buffers is None or not found.undone:
                self._diverged(str(found))
            else:
                buffers.restore()
            log.warning("%s; the step is left out", found)
            return self._leave_out()
        value = self._joint(loss, len(y)) if self._look_always or self.done % LOOK_EVERY == 0 else None
        self.done += 1
        return value

    def _leave_out(self) -> None:
        """A step that does nothing but count."""
        self.left_out.add(self.done + 1)
        if isinstance(self.optimizer, BinaryOptimizer):
            self.optimizer.count_step()
        self.done += 1

    def update(self, x: Tensor, y: Tensor) -> Tensor:
        """Forward, backward, optimizer: all that a CUDA graph captures. Returns the cross-entropy, detached.

        With a teacher too it is the cross-entropy alone that is returned and reported, so that curves compare.
        """
        self.model.train()
        if self.device.type == "cuda" and isinstance(self.optimizer, BinaryOptimizer):
            self.optimizer.prepare()
        with self._autocast(), fused(self.device.type == "cuda"), self._bits_ahead.made():
            logits = self._network(x)
            loss = F.cross_entropy(logits.float(), y)
            objective = loss if self._teacher is None else self._teacher.loss(x, logits, loss)
        self.optimizer.zero_grad()
        # The ranks' gradients are averaged: with shares of different sizes that is not yet the mean over the batch.
        weight = len(y) * self.ranks.size / self.train_batches.batch_size
        (objective if weight == 1 else weight * objective).backward()
        if self._look_always:
            look_before_step(self.model, x, self._joint(loss.detach(), len(y)), self.done + 1)
        self.optimizer.step()
        if self._look_always:
            look_after_step(self.model, self.optimizer, self.done + 1)
        self._shown.follow()
        self._loss_sum += loss.detach() * len(y)
        self._correct += (logits.detach().argmax(1) == y).sum()
        return loss.detach()

    def _joint(self, loss: Tensor, count: int) -> float:
        """The loss of the whole batch, from this rank's of its share."""
        return self.ranks.sum(float(loss) * count / self.train_batches.batch_size)

    def set_learning_rate(self) -> None:
        lr = self.config.learning_rate(self.done, len(self.train_batches))
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
        if self._damping is not None:
            self._damping.set(self.done, lr)

    def _autocast(self) -> Any:
        # Without the cache of cast weights: a captured step must cast them itself, every time.
        enabled = self.config.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled, cache_enabled=False)

    def _end_epoch(self, epoch: int) -> None:
        self.ranks.collect(self._loss_sum, self._correct)
        if epoch + 1 == self.config.epochs:
            with self._looking():
                self._shown.measure(self._later_batches())
        self.rows.append(self.ranks.from_first(self._row(epoch) if self.ranks.first else None))
        self._loss_sum.zero_()
        self._correct.zero_()
        self._seconds += self._epoch_seconds
        self._epoch_seconds = 0.0
        if self.run is not None:
            self.run.append_metrics(self.rows[-1])
        self.sink.epoch(self.rows[-1])
        self.sink.network(self.rows[-1], self.model, self.bits.flips)

    def _row(self, epoch: int) -> dict[str, Any]:
        left_out = self.left_out.of_epoch(epoch, len(self.train_batches))
        shown = (len(self.train_batches) - left_out) * self.train_batches.batch_size
        if not shown:
            self._diverged(f"no step of the epoch that ends at step {self.done} was finite")
        train_loss = float(self._loss_sum) / shown
        if not math.isfinite(train_loss):
            self._diverged(f"the loss is {train_loss} in the epoch that ends at step {self.done}")
        self._check_finite()
        last = epoch + 1 == self.config.epochs
        with self._evaluating():
            with self._shown.network(last):
                test = evaluate(self.model, self.test_batches, self._heed)
            raw = evaluate(self.model, self.test_batches, self._heed) if self._shown.differs(last) else None
        return {
            "epoch": epoch + 1,
            "step": self.done,
            "lr": self.config.learning_rate(self.done - 1, len(self.train_batches)),
            "train_loss": train_loss,
            "train_accuracy": 100.0 * int(self._correct) / shown,
            "test_accuracy": test.accuracy,
            "test_loss": test.loss,
            **({} if raw is None else {"raw_test_accuracy": raw.accuracy, "raw_test_loss": raw.loss}),
            **self.bits.look(),
            **self._method_metrics(),
            **self._indicators(epoch),
            **({"left_out": left_out} if left_out else {}),
            "seconds": round(self._epoch_seconds, 3),
        }

    def _finish(self) -> dict[str, Any]:
        last = self.rows[-1]
        best = max(self.rows, key=lambda row: row["test_accuracy"])
        result = {
            "test_accuracy": last["test_accuracy"],  # the last epoch's: the headline
            "best_test_accuracy": best["test_accuracy"],
            "best_epoch": best["epoch"],
            "test_loss": last["test_loss"],
            **{name: last[name] for name in ("raw_test_accuracy", "raw_test_loss") if name in last},
            "train_accuracy": last["train_accuracy"],
            "train_loss": last["train_loss"],
            "n_test": len(self.test_batches.image_set),
            "metric": "test accuracy of the last epoch"
            + (" on held-out training images" if self.config.holdout else "")
            + self._shown.describe(),
            "seconds": round(self._seconds, 3),
            "config": self.config.to_dict(),
            "key": self.config.key,
            "conditions": self.sessions.conditions(),
            "curve": self.rows,
            **({"left_out": sorted(self.left_out.steps)} if self.left_out.steps else {}),
        }
        if self.run is not None:
            method = {} if self.config.method is None else {"method": self.config.method}
            with self._shown.network(last=True):
                save_weights(self.model, self.run.path / WEIGHTS, {"key": self.config.key, **method})
            self.run.write_result(result)
        return result

    def _description(self) -> str:
        method = self.config.method or "float"
        return f"{self.config.model} {self.config.data} {method} {self.config.optimizer}"

    def _method_metrics(self) -> dict[str, float]:
        return getattr(self.optimizer, "metrics", dict)() or self._metrics

    def _indicators(self, epoch: int) -> dict[str, float]:
        """ReSTE's indicators and the like, on the epoch's last batch, if the run asks for them."""
        if not self.config.metrics or self.config.method is None:
            return {}
        x, y = next(self.train_batches.epoch(epoch, len(self.train_batches) - 1))
        self.model.train()
        with self._looking():
            return indicators(self.model, lambda: F.cross_entropy(self.model(x).float(), y))

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """On a GPU an evaluation has the kernels of a step. A run in bf16 evaluates in TF32."""
        gpu = self.device.type == "cuda"
        with fused(gpu), float32_products(self.device, self.config.precision != "float32"):
            yield

    def _looking(self) -> Any:
        """Looking is free: it takes none of the run's random numbers."""
        return torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else [])

    def _later_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """What the epochs after the last one would show."""
        for epoch in count(self.config.epochs):
            for batch in self.train_batches.epoch(epoch):
                self._heed()
                yield batch

    def _heed(self) -> None:
        """A long look is left when the run shall stop: the state after the last step is whole without it.

        Of several processes one looks while the others wait for it, so there it ends first.
        """
        if self.ranks.size == 1:
            self._stop.heed()

    def _check_finite(self) -> None:
        """A checkpoint and an evaluation must be of a network that still computes."""
        where = broken_state(self.model) or broken_method(self.optimizer) or self._shown.broken()
        if where is not None:
            self._diverged(f"a weight stopped being finite by step {self.done}, first not finite: {where}")

    def _diverged(self, what: str) -> NoReturn:
        newest = self.run.checkpoints.paths() if self.run is not None else []
        good = f"the last good checkpoint is {newest[-1]}" if newest else "there is no checkpoint yet"
        fix = ", or --on-nan rollback" if self.config.on_nan != "rollback" else ""
        raise TrainingDiverged(f"training diverged: {what}; {good}; try a smaller lr{fix}")

    # -- state ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return take_state(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_state(self, state)

    def save(self) -> None:
        """Take a checkpoint, if the run has a folder."""
        if self.run is not None or self.ranks.size > 1:
            self._check_finite()
            save_newest(self)
            self._clock.saved()

    def keep_images(self) -> None:
        """What the run is trained on goes into its folder; a run that goes on is refused other images."""
        if self.run is not None:
            self.run.keep_images(self._images)

    @cached_property
    def _images(self) -> dict[str, Any]:
        """Found once, for every pixel is read: resuming asks, and training, and going back after a NaN."""
        return as_json(self.train_batches.image_set, self.test_batches.image_set)

    def resume(self) -> None:
        """Go back to the newest checkpoint of the run's folder, which the first rank reads for all."""
        with nullcontext() if self.run is None else self.run.lock:
            load_newest(self)
