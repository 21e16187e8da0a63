"""Train the hypernetworks of `fsg-plus` before they are used: on many small tasks at once, by evolution strategies.

    python tools/meta_train.py --data cifar10 --device cuda --minutes 5 --out nets.safetensors

A task trains a small binary network on a part of the data set's training images (never on the last 5,000, which are for
validation), from scratch, with a learning rate and a seed of its own. Two copies of each run side by side, one with
theta + e, one with theta - e in its hypernetworks, which don't learn by themselves (`net_lr=0`). After every window of
steps their training losses are compared, and theta moves by persistent evolution strategies (Vicol et al. 2021): each
pair remembers the sum of the perturbations since its task began, so that late losses count for early windows too and a
short window isn't myopic. What is written is used by `--method fsg-plus --set nets=FILE`, frozen with
`--set net_lr=0`. At the end, fresh tasks are trained with the learned networks and with plain STE, and both are shown.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from fastslow import data as data_sets
from fastslow.data import Dataset
from fastslow.methods.fsg_plus import FSGPlusDriver
from fastslow.training.conditions import conditions
from fastslow.training.config import RunConfig
from fastslow.training.loop import Trainer
from fastslow.training.precision import float32_products

HOLDOUT = 5000
RATES = (5e-4, 1e-3, 2e-3, 4e-3)  # learning rates of the tasks
EVERY = 10  # updates between two lines of the log


class EvolutionStrategy:
    """Persistent evolution strategies with antithetic pairs, and Adam on what they find."""

    def __init__(self, theta: Tensor, free: Tensor, pairs: int, sigma: float, lr: float, seed: int) -> None:
        self.theta = theta.clone()
        self.free = free  # 1 where theta may move
        self.sigma = sigma
        self.sums = theta.new_zeros(pairs, len(theta))
        self.now = self.sums.clone()
        self.parameter = torch.nn.Parameter(self.theta)
        self.adam = torch.optim.Adam([self.parameter], lr=lr, betas=(0.9, 0.99))
        self.random = torch.Generator().manual_seed(seed)

    def ask(self) -> Tensor:
        """A new perturbation for every pair."""
        noise = torch.randn(self.now.shape, generator=self.random, dtype=self.now.dtype)
        self.now = self.sigma * self.free * noise
        self.sums += self.now
        return self.now

    def tell(self, differences: Tensor) -> Tensor:
        """Move theta, from the loss of each pair's first copy less that of its second."""
        found = (self.sums * differences[:, None]).mean(0) / (2 * self.sigma**2)
        self.parameter.grad = found / found.norm().clamp_min(1e-12)  # a direction: tasks differ in the size of losses
        self.adam.step()
        return found

    def forget(self, pair: int) -> None:
        """The pair's task begins anew."""
        self.sums[pair] = 0


class Copy:
    """One network in training, which can go back to its beginning without a new CUDA graph."""

    def __init__(self, config: RunConfig, dataset: Dataset, device: torch.device) -> None:
        self.trainer = Trainer(config, dataset, device=device)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.epoch = 0
        self.steps = self._forever()
        self.start = {key: value.clone() for key, value in self._tensors().items()}
        if self.stream is not None:
            torch.cuda.synchronize(device)  # all of it is there before the stream begins

    @property
    def driver(self) -> FSGPlusDriver:
        (driver,) = self.trainer.optimizer.drivers  # pyright: ignore[reportAttributeAccessIssue]
        assert isinstance(driver, FSGPlusDriver)
        return driver

    def _forever(self) -> Iterator[Any]:
        while True:
            yield from self.trainer._steps(self.epoch, 0)
            self.epoch += 1

    def _tensors(self) -> dict[Any, Tensor]:
        """All that a step changes, in its place; the optimizer's part exists after the first step."""
        found: dict[Any, Tensor] = {("model", key): value for key, value in self.trainer.model.state_dict().items()}
        found |= {("driver", key): value for key, value in self.driver.tensors.items()}
        for i, state in enumerate(self.trainer.optimizer.state.values()):
            found |= {("base", i, key): value for key, value in state.items() if isinstance(value, Tensor)}
        return found

    def _here(self) -> AbstractContextManager[Any]:
        """What is done in here follows what the copy has done before, beside all other copies."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def begin(self, shift: int) -> None:
        """Back to step 0, with other batches."""
        with self._here():
            for key, value in self._tensors().items():
                value.copy_(self.start.get(key, torch.zeros_like(value)))
        self.trainer.done = 0
        self.trainer.optimizer.steps = 0  # pyright: ignore[reportAttributeAccessIssue]
        self.epoch += shift
        self.steps = self._forever()

    def set_theta(self, theta: Tensor) -> None:
        with self._here():
            self.driver.tensors["theta"].copy_(theta)

    def step(self) -> None:
        with self._here():
            next(self.steps)

    def take_loss(self, steps: int) -> float:
        """The mean training loss since it was asked for last."""
        with self._here():
            loss = float(self.trainer._loss_sum) / (steps * self.trainer.train_batches.batch_size)
            self.trainer._loss_sum.zero_()
        return loss


def task(args: argparse.Namespace, whole: Dataset, seed: int, method: str = "fsg-plus") -> tuple[RunConfig, Dataset]:
    """A part of the images, a learning rate and a seed."""
    random = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(whole.train), generator=random)[: args.images]
    dataset = replace(whole, train=whole.train.subset(chosen))
    lr = RATES[int(torch.randint(len(RATES), (), generator=random))]
    epochs = max(1, round(args.task_steps * args.batch / args.images))
    fields = {"net_lr": 0.0, "hidden": args.hidden} if method == "fsg-plus" else {}
    config = RunConfig(
        model=args.model, data=args.data, weights="none", method=method, method_fields=fields, batch_size=args.batch,
        epochs=epochs, lr=lr, schedule="cosine", precision=args.precision, seed=seed,
    )  # fmt: skip
    return config, dataset


def meta_train(args: argparse.Namespace, whole: Dataset, device: torch.device) -> tuple[dict[str, Tensor], list[Any]]:
    """The learned networks by their names, and the log."""
    pairs = [[Copy(*task(args, whole, args.seed + i), device) for _ in range(2)] for i in range(args.tasks)]
    driver = pairs[0][0].driver
    free = {name: torch.full(shape, float(name != "slow.lre")) for name, shape in driver.nets.shapes.items()}
    theta = driver.tensors["theta"].cpu().float()
    search = EvolutionStrategy(
        theta, torch.cat([part.reshape(-1) for part in free.values()]), args.tasks, args.sigma, args.lr, args.seed
    )
    log: list[Any] = []
    began, updates, total = time.perf_counter(), 0, pairs[0][0].trainer.total_steps
    ages = [i * total // args.tasks for i in range(args.tasks)]  # tasks begin anew one after the other
    while updates < args.updates and time.perf_counter() - began < 60 * args.minutes:
        for i, age in enumerate(ages):
            if age + args.window > total:
                for copy in pairs[i]:
                    copy.begin(1)
                search.forget(i)
                ages[i] = 0
        for copies, noise in zip(pairs, search.ask(), strict=True):
            for copy, sign in zip(copies, (1, -1), strict=True):
                copy.set_theta(search.theta + sign * noise)
        for _ in range(args.window):
            for copies in pairs:
                for copy in copies:
                    copy.step()
        losses = torch.tensor([[copy.take_loss(args.window) for copy in copies] for copies in pairs])
        if not losses.isfinite().all():
            raise SystemExit("a task diverged: lower --sigma, or leave out the largest learning rate")
        search.tell(losses[:, 0] - losses[:, 1])
        ages = [age + args.window for age in ages]
        updates += 1
        if updates % EVERY == 0:
            line = {"update": updates, "seconds": time.perf_counter() - began, "loss": float(losses.mean())}
            log.append({**line, "moved": float((search.theta - theta).norm())})
            print(", ".join(f"{key} {value:.4g}" for key, value in log[-1].items()), flush=True)
    parts = driver.nets.parts(search.theta)
    return {name: part.clone() for name, part in parts.items() if name != "slow.lre"}, log


def compare(args: argparse.Namespace, whole: Dataset, device: torch.device, nets: Path) -> list[dict[str, float]]:
    """Fresh tasks with STE and with the learned networks, frozen: training loss of the last epoch, accuracy."""
    rows = []
    for i in range(args.fresh):
        row: dict[str, float] = {"seed": args.seed + 1000 + i}
        for method in ("ste", "fsg-plus"):
            config, dataset = task(args, whole, args.seed + 1000 + i, method)
            if method == "fsg-plus":
                config = replace(config, method_fields={**config.method_fields, "nets": str(nets)})
            result = Trainer(config, dataset, device=device).fit()
            row |= {f"{method} loss": result["train_loss"], f"{method} accuracy": result["test_accuracy"]}
        rows.append(row)
        print(", ".join(f"{key} {value:.5g}" for key, value in row.items()), flush=True)
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--model", default="resnet8")
    parser.add_argument("--images", type=int, default=8000, help="training images of a task")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--tasks", type=int, default=12, help="pairs of copies side by side")
    parser.add_argument("--task-steps", type=int, default=600)
    parser.add_argument("--window", type=int, default=20, help="steps between two updates of theta")
    parser.add_argument("--updates", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--sigma", type=float, default=0.03)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--fresh", type=int, default=4, help="tasks to compare with STE at the end")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    device = torch.device(args.device)
    whole = data_sets.load(args.data, holdout=HOLDOUT if args.data.startswith("cifar") else 400)
    with float32_products(device, args.precision == "tf32"):
        nets, log = meta_train(args, whole, device)
        save_file(nets, args.out)
        rows = compare(args, whole, device, args.out)
    if args.json is not None:
        settings = {key: value for key, value in vars(args).items() if not isinstance(value, Path | None)}
        found = {"settings": settings, "log": log, "fresh": rows, "conditions": conditions(device)}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
