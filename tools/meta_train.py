"""Learn the gate of `fsg-plus` before it is used: on many small tasks at once, by evolution strategies.

    python tools/meta_train.py --data cifar10 --device cuda --minutes 10 --out gate.json

A task trains a small binary network from scratch on a part of the data set's training images (never on the last 5,000,
which are for validation), with a seed and a learning rate of its own that falls to zero along a cosine, so that the
gate sees a whole training. Two copies of each run side by side, one with theta + e, one with theta - e as its gate.
After every window of steps their losses on held-out images are compared: training images of the data set that the task
doesn't train on, with the network as an evaluation sees it. Theta moves by persistent evolution strategies (Vicol et
al. 2021): each pair remembers the sum of the perturbations since its task began, so that late losses count for early
windows too and a short window isn't myopic.

A loss counts by the share of the task done, to the power `--late`. Without it theta would learn what makes the first
windows look good, and freezing bits early does that; what matters is the network at the end.

The result is the mean of theta over the last half of the updates, since each single one is noisy. It is used by
`--method fsg-plus --set gate='[...]'`. At the end fresh tasks are trained with it, without a gate and with plain STE,
and the three are compared, task by task.

On a CPU choose small tasks: `--data mini --images 640 --batch 32 --tasks 2 --task-steps 100 --window 20`.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fastslow import data as data_sets
from fastslow.data import Dataset
from fastslow.methods.fsg_plus import GATE_FEATURES, FSGPlusDriver
from fastslow.reproduce.record import write_record
from fastslow.training.conditions import conditions
from fastslow.training.config import RunConfig
from fastslow.training.loop import Trainer
from fastslow.training.precision import float32_products
from fastslow.wrapper import BinaryOptimizer

VALIDATION = {"mini": 400}  # images at the end that are never looked at; of other data sets:
USUAL_VALIDATION = 5000
RATES = (5e-4, 1e-3, 2e-3, 4e-3)  # learning rates of the tasks
FRESH_SEED = 1000  # seeds of the tasks for the comparison begin here
EVERY = 10  # updates between two lines of the log


class EvolutionStrategy:
    """Persistent evolution strategies with antithetic pairs, and Adam on what they find."""

    def __init__(self, theta: Tensor, pairs: int, sigma: float, lr: float, seed: int) -> None:
        self.theta = theta.clone()
        self.sigma = sigma
        self.sums = theta.new_zeros(pairs, len(theta))
        self.now = self.sums.clone()
        self.parameter = torch.nn.Parameter(self.theta)
        self.adam = torch.optim.Adam([self.parameter], lr=lr, betas=(0.9, 0.99))
        self.random = torch.Generator().manual_seed(seed)

    def ask(self) -> Tensor:
        """A new perturbation for every pair."""
        noise = torch.randn(self.now.shape, generator=self.random, dtype=self.now.dtype)
        self.now = self.sigma * noise
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
        assert isinstance(self.trainer.optimizer, BinaryOptimizer)
        self.optimizer = self.trainer.optimizer
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.epoch = 0
        self.steps = self._forever()
        self.held_out = list(self.trainer.test_batches.epoch())
        self.start = {key: value.clone() for key, value in self._tensors().items()}
        if self.stream is not None:
            torch.cuda.synchronize(device)  # all of it is there before the stream begins

    @property
    def driver(self) -> FSGPlusDriver:
        (driver,) = self.optimizer.drivers
        assert isinstance(driver, FSGPlusDriver)
        return driver

    @property
    def share_done(self) -> float:
        return self.trainer.done / self.trainer.total_steps

    def _forever(self) -> Iterator[Any]:
        while True:
            yield from self.trainer._steps(self.epoch, 0)
            self.epoch += 1

    def _tensors(self) -> dict[Any, Tensor]:
        """All that a step changes, in its place; the optimizer's part exists after the first step."""
        found: dict[Any, Tensor] = {("model", key): value for key, value in self.trainer.model.state_dict().items()}
        found |= {("driver", key): value for key, value in self.driver.tensors.items()}
        for i, state in enumerate(self.optimizer.state.values()):
            found |= {("base", i, key): value for key, value in state.items() if isinstance(value, Tensor)}
        return found

    def _here(self) -> AbstractContextManager[Any]:
        """What is done in here follows what the copy has done before, beside all other copies."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def begin(self) -> None:
        """Back to step 0 and to the old weights, with other batches."""
        self.trainer.done = self.optimizer.steps = 0
        self.epoch += 1
        self.steps = self._forever()
        with self._here():
            for key, value in self._tensors().items():
                value.copy_(self.start.get(key, torch.zeros_like(value)))
            self.optimizer._show_progress()  # the gate sees it from the first step on

    def set_gate(self, theta: Tensor) -> None:
        with self._here():
            self.driver.tensors["gate"].copy_(theta)

    def step(self) -> None:
        with self._here():
            next(self.steps)

    @torch.no_grad()
    def held_out_loss(self) -> Tensor:
        """Mean loss on the images that the task doesn't train on. It isn't waited for."""
        model, batches = self.trainer.model, self.held_out
        with self._here():
            model.eval()
            losses = [F.cross_entropy(model(x).float(), y, reduction="sum") for x, y in batches]
            model.train()
            return torch.stack(losses).sum() / sum(len(y) for _, y in batches)


def task(
    args: argparse.Namespace, whole: Dataset, seed: int, method: str = "fsg-plus", gate: Sequence[float] = ()
) -> tuple[RunConfig, Dataset]:
    """A part of the images to train on, another to look at, a learning rate and a seed."""
    train, count = whole.train, len(whole.train)
    if args.images + args.held_out > count:
        raise SystemExit(f"--images and --held-out: together at most {count}, the training images of {whole.name}")
    random = torch.Generator().manual_seed(seed)
    order = torch.randperm(count, generator=random)
    parts = [train.subset(part) for part in order[: args.images + args.held_out].split([args.images, args.held_out])]
    lr = RATES[int(torch.randint(len(RATES), (), generator=random))]
    fields = {"strength": args.strength, "gate": list(gate)} if method == "fsg-plus" else {}
    config = RunConfig(
        model=args.model, data=args.data, holdout=args.held_out, weights="none", method=method, method_fields=fields,
        batch_size=args.batch, epochs=max(1, round(args.task_steps * args.batch / args.images)), lr=lr,
        schedule="cosine", precision=args.precision, seed=seed,
    )  # fmt: skip
    return config, Dataset(name=whole.name, train=parts[0], test=parts[1], holdout=args.held_out)


def windows_of(args: argparse.Namespace, total: int) -> int:
    """How many windows a task of so many steps has. What is left over would never be seen, and it is the end."""
    if total % args.window:
        raise SystemExit(f"a task has {total} steps: choose --window, or --task-steps, so that windows fill it")
    return total // args.window


def meta_train(args: argparse.Namespace, whole: Dataset, device: torch.device) -> tuple[list[float], list[Any]]:
    """The learned coefficients and, one entry an update, how they came about."""
    zeros = (0.0,) * len(GATE_FEATURES)
    pairs = [[Copy(*task(args, whole, args.seed + i, gate=zeros), device) for _ in range(2)] for i in range(args.tasks)]
    search = EvolutionStrategy(torch.zeros(len(zeros)), args.tasks, args.sigma, args.lr, args.seed)
    windows = windows_of(args, pairs[0][0].trainer.total_steps)
    # The first round of most tasks is cut short, so that later ones begin anew one after the other.
    left = [windows - i * windows // args.tasks for i in range(args.tasks)]
    history: list[Any] = []
    began = time.perf_counter()
    while len(history) < args.updates and time.perf_counter() - began < 60 * args.minutes:
        for i, copies in enumerate(pairs):
            if left[i] == 0:
                for copy in copies:
                    copy.begin()
                search.forget(i)
                left[i] = windows
        losses = one_window(pairs, search.theta, search.ask(), args.window)
        weights = torch.tensor([copies[0].share_done ** args.late for copies in pairs])
        search.tell(weights * (losses[:, 0] - losses[:, 1]))
        left = [n - 1 for n in left]
        history.append({"theta": rounded(search.theta), "loss": round(float(losses.mean()), 5)})
        if len(history) % EVERY == 0:
            print(f"{len(history)} updates, {time.perf_counter() - began:.0f} s, {history[-1]}", flush=True)
    if not history:
        return list(zeros), history
    last = torch.tensor([entry["theta"] for entry in history[len(history) // 2 :]])
    return rounded(last.mean(0)), history


def one_window(pairs: list[list[Copy]], theta: Tensor, noise: Tensor, steps: int) -> Tensor:
    """Train all copies for so many steps, step by step side by side; their held-out losses, (pairs, 2)."""
    for copies, e in zip(pairs, noise, strict=True):
        for copy, sign in zip(copies, (1, -1), strict=True):
            copy.set_gate(theta + sign * e)
    for _ in range(steps):
        for copies in pairs:
            for copy in copies:
                copy.step()
    found = [[copy.held_out_loss() for copy in copies] for copies in pairs]
    if pairs[0][0].stream is not None:
        torch.cuda.synchronize()
    losses = torch.tensor([[float(loss) for loss in both] for both in found])
    if not losses.isfinite().all():
        raise SystemExit("a task diverged: lower --sigma, or leave out the largest learning rate")
    return losses


def rounded(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]


def compare(
    args: argparse.Namespace, whole: Dataset, device: torch.device, gate: Sequence[float]
) -> list[dict[str, Any]]:
    """Fresh tasks trained to the end, with the gate, without one and with STE: losses and held-out accuracy."""
    ways: dict[str, dict[str, Any]] = {"gate": {"gate": gate}, "no gate": {}, "ste": {"method": "ste"}}
    rows = []
    for seed in range(args.seed + FRESH_SEED, args.seed + FRESH_SEED + args.fresh):
        row: dict[str, Any] = {"seed": seed}
        for way, options in ways.items():
            config, dataset = task(args, whole, seed, **options)
            result = Trainer(config, dataset, device=device).fit()
            row["lr"] = config.lr
            row[way] = {
                "held-out loss": round(result["test_loss"], 5),
                "held-out accuracy": result["test_accuracy"],
                "training loss": round(result["train_loss"], 5),
            }
        rows.append(row)
        print(row, flush=True)
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The gate less each of the others, task by task: mean and, from two tasks on, standard error of the mean."""
    found: dict[str, Any] = {}
    for other in ("no gate", "ste") if rows else ():
        for what in rows[0]["gate"]:
            differences = torch.tensor([row["gate"][what] - row[other][what] for row in rows], dtype=torch.float64)
            error = float(differences.std()) / math.sqrt(len(rows)) if len(rows) > 1 else None
            found[f"{what}, gate less {other}"] = {"mean": float(differences.mean()), "standard error": error}
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--model", default="resnet8")
    parser.add_argument("--strength", type=float, default=0.5, help="of fsg-plus, which the gate multiplies")
    parser.add_argument("--images", type=int, default=6400, help="training images of a task")
    parser.add_argument("--held-out", type=int, default=1000, help="images that a task is judged by")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--tasks", type=int, default=12, help="pairs of copies side by side")
    parser.add_argument("--task-steps", type=int, default=400)
    parser.add_argument("--window", type=int, default=50, help="steps between two updates of theta")
    parser.add_argument("--late", type=float, default=2.0, help="a loss counts by the share of the task done to this")
    parser.add_argument("--updates", type=int, default=1_000_000, help="of theta, at most")
    parser.add_argument("--minutes", type=float, default=5.0, help="of learning; the comparison comes after")
    parser.add_argument("--sigma", type=float, default=0.3, help="size of the perturbations")
    parser.add_argument("--lr", type=float, default=0.1, help="of theta")
    parser.add_argument("--fresh", type=int, default=8, help="tasks to compare at the end")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="a JSON file")
    args = parser.parse_args(arguments)
    device = torch.device(args.device)
    whole = data_sets.load(args.data, holdout=VALIDATION.get(args.data, USUAL_VALIDATION))
    began = time.perf_counter()
    with float32_products(device, args.precision == "tf32"):
        theta, history = meta_train(args, whole, device)
    learned = time.perf_counter()
    rows = compare(args, whole, device, theta)
    record = {
        "options": {key: value for key, value in vars(args).items() if not isinstance(value, Path)},
        "conditions": conditions(device),
        "features": GATE_FEATURES,
        "theta": theta,
        "comparison": summary(rows),
        "fresh": rows,
        "seconds": {"learning": round(learned - began, 1), "comparing": round(time.perf_counter() - learned, 1)},
        "history": history,
    }
    write_record(args.out, record)
    for what, found in record["comparison"].items():
        print(f"{what}: {found}")
    print(f"--set gate='{theta}'")


if __name__ == "__main__":
    main()
