"""The curvature of the loss along the bits of a trained network, and what fsg-plus takes for it.

    python tools/curvature.py RUN [--batches 24] [--probes 8] [--data-root DIR] [--json FILE]

RUN is a folder of `fastslow train` with method ste or fsg-plus, finished or not. Its bits become the weights of a float
network with BatchNorm in training mode, which is shown augmented training batches of the epochs after the run's last,
with the run's loss. Layer by layer this measures

- the gradient dL/dWb: its RMS on a batch, and that of its mean, from whose square the noise is taken off, v / batches,
  where v is the mean square over the batches;
- the curvature: the diagonal of the Hessian, by Hutchinson's estimate. With random signs z of a layer's weights the
  mean of z * (H z) is the diagonal of the layer's H, which double backward multiplies by z. Every probe sees a batch of
  its own while there are some left, so that its error, from probe to probe, holds that of the batches too;
- batch size times v, which is the curvature in theory, see fastslow.methods.fsg_plus;
- the factor k that fsg-plus finds on these batches with strength 0 and a learning rate of 0, which is the batch size in
  theory; beside it the layer's own, before it is drawn to that of the others, and the standard error of that.

Curvature and batch size times v also come by quarters of a layer's weights, from least v to largest. Every other batch
tells the quarter of a weight and the rest the v of a quarter: the same batches would find more difference than there
is. The JSON names the float weights that the run started from by the stem of their file, as recorded runs do, and not
by a path of this machine. A ResNet-20 takes five to ten minutes on two cores, most of it for the curvature.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastslow as fs
from fastslow.binarize import DoReFa
from fastslow.cli_support import load_data
from fastslow.data import AnyBatches
from fastslow.methods.fsg_plus import FSGPlusDriver, factors
from fastslow.report.load import load_trained
from fastslow.reproduce.record import write_record
from fastslow.training.build import build_batches, build_model
from fastslow.training.conditions import conditions
from fastslow.training.config import NONE, SHIPPED, RunConfig
from fastslow.training.named_weights import PREFIX
from fastslow.training.ranks import ALONE
from fastslow.training.run import RunFolder
from fastslow.training.teacher import Teacher

METHODS = ("ste", "fsg-plus")
QUARTERS = 4
CPU = torch.device("cpu")

Batch = tuple[Tensor, Tensor]
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


def check(network: nn.Module, config: RunConfig) -> None:
    """Refuse networks whose bits have another meaning than fsg-plus gives them, or whose inputs have no derivative."""
    if config.method not in METHODS:
        raise ValueError(f"the run's method is {config.method}; give a run of {' or '.join(METHODS)}")
    for name, layer in fs.binary_layers(network).items():
        if layer.binarizer != DoReFa(1) or layer.activations is not None:
            raise ValueError(f"{name} isn't a layer of one-bit weights, +1 or -1, with real inputs")


def run_loss(config: RunConfig, classes: int) -> Loss:
    """What the run minimises: cross-entropy, or with a teacher its part of it."""
    teacher = Teacher(config, classes, CPU) if config.distill else None

    def loss(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        logits = network(x)
        entropy = F.cross_entropy(logits, y)
        return entropy if teacher is None else teacher.loss(x, logits, entropy)

    return loss


def later_batches(batches: AnyBatches, epochs: int) -> Iterator[Batch]:
    """What the epochs after the last one would show."""
    for epoch in count(epochs):
        yield from batches.epoch(epoch)


def bits_as_weights(network: nn.Module) -> tuple[nn.Module, dict[str, nn.Parameter]]:
    """A float copy whose weights are the bits, in training mode, and these weights by the names of their layers."""
    plain = fs.freeze(network).train()
    weights = {name: plain.get_parameter(f"{name}.weight").requires_grad_() for name in fs.binary_layers(network)}
    return plain, weights


def probe(gradient: Tensor, weight: Tensor, z: Tensor) -> Tensor:
    """``z * (H z)``, whose mean over random signs z is the diagonal of H, the derivative of ``gradient``."""
    (product,) = torch.autograd.grad((gradient * z).sum(), weight, retain_graph=True)
    return z * product


def observe(
    network: nn.Module, weights: dict[str, nn.Parameter], batches: Sequence[Batch], loss: Loss, probes: int, seed: int
) -> dict[str, tuple[Tensor, Tensor]]:
    """For every layer its gradients, a row a batch, and its curvatures, a row a probe."""
    numbers = torch.Generator().manual_seed(seed)
    gradients: dict[str, list[Tensor]] = {name: [] for name in weights}
    curvatures: dict[str, list[Tensor]] = {name: [] for name in weights}
    for number, (x, y) in enumerate(batches):
        here = len(range(number, probes, len(batches)))
        value = loss(network, x, y)
        found = torch.autograd.grad(value, list(weights.values()), create_graph=here > 0)
        for (name, weight), gradient in zip(weights.items(), found, strict=True):
            gradients[name].append(gradient.detach().flatten())
            for _ in range(here):
                z = 2.0 * torch.randint(0, 2, weight.shape, generator=numbers).to(weight) - 1
                curvatures[name].append(probe(gradient, weight, z).flatten())
    return {name: (torch.stack(gradients[name]), torch.stack(curvatures[name])) for name in weights}


def layer_row(gradients: Tensor, curvatures: Tensor, batch_size: int) -> dict[str, Any]:
    """The numbers of one layer."""
    squares = gradients.square()
    v = float(squares.mean())
    mean_square = float(gradients.mean(0).square().mean()) - v / len(gradients)
    quarters = squares[::2].mean(0).argsort().tensor_split(QUARTERS)
    other = squares[1::2].mean(0)
    parts = [mean_and_error(curvatures[:, quarter].mean(1)) for quarter in quarters]
    mean, error = mean_and_error(curvatures.mean(1))
    return {
        "weights": gradients.shape[1],
        "gradient_rms": short(v**0.5),
        "mean_gradient_rms": short(max(mean_square, 0.0) ** 0.5),
        "curvature": mean,
        "curvature_error": error,
        "batch_size_times_v": short(batch_size * v),
        "curvature_by_quarter": [mean for mean, _ in parts],
        "curvature_error_by_quarter": [error for _, error in parts],
        "batch_size_times_v_by_quarter": [short(batch_size * float(other[quarter].mean())) for quarter in quarters],
    }


def mean_and_error(values: Tensor) -> tuple[float, float | None]:
    """The mean, and its standard error where there are several values."""
    error = short(float(values.std()) / len(values) ** 0.5) if len(values) > 1 else None
    return short(float(values.mean())), error


def short(value: float) -> float:
    """Six digits say more than a measurement repeats."""
    return float(f"{value:.6g}")


def factor_rows(
    network: nn.Module, config: RunConfig, batches: Sequence[Batch], loss: Loss, classes: int
) -> list[dict[str, float]]:
    """What fsg-plus finds for every layer while nothing moves."""
    fields = {**config.method_fields, "strength": 0.0}
    model = build_model(dataclasses.replace(config, method="fsg-plus", method_fields=fields, weights=NONE), classes)
    model.load_state_dict(network.state_dict())
    optimizer = fs.optimizer(model.train(), torch.optim.SGD(model.parameters(), lr=0.0))
    for x, y in batches:
        optimizer.zero_grad()
        loss(model, x, y).backward()
        optimizer.step()
    (driver,) = optimizer.drivers
    assert isinstance(driver, FSGPlusDriver)
    turned, expected = driver.tensors["turned"], driver.tensors["expected"]
    columns = {"k": factors(turned, expected), "k_alone": turned / expected, "k_error": expected.rsqrt()}
    return [{name: short(float(column[i])) for name, column in columns.items()} for i in range(len(driver.slots))]


def measure(run: Path, batches: int, probes: int, seed: int, data_root: Path | None) -> dict[str, Any]:
    """All of it, as it is recorded."""
    network, config = load_trained(run)
    check(network, config)
    dataset = load_data(config, data_root)
    classes = len(dataset.train.classes)
    shown, _ = build_batches(config, dataset, ALONE, CPU, channels_last=False)
    chosen = list(islice(later_batches(shown, config.epochs), batches))
    loss = run_loss(config, classes)
    torch.manual_seed(seed)  # for what is random in a forward pass
    found = observe(*bits_as_weights(network), chosen, loss, probes, seed)
    ks = factor_rows(network, config, chosen, loss, classes)
    rows = [
        {"layer": name, **layer_row(*seen, shown.batch_size), **k}
        for (name, seen), k in zip(found.items(), ks, strict=True)
    ]
    return {
        "config": {**config.to_dict(), "weights": without_folder(config.weights)},
        "epochs": len(RunFolder.open(run).metrics()),
        "settings": {"batches": batches, "batch_size": shown.batch_size, "probes": probes, "seed": seed},
        "conditions": conditions(CPU),
        "rows": rows,
    }


def without_folder(weights: str) -> str:
    """``name:STEM`` for a path to float weights."""
    return weights if weights in (NONE, SHIPPED) or weights.startswith(PREFIX) else f"{PREFIX}{Path(weights).stem}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """As text, with the ratios that the numbers are measured for."""
    head = ("weights", "rms g", "mean/rms", "h/rms", "h", "+-", "B v", "h/Bv", "by quarter of v", "k", "alone", "+-")
    lines = [f"{'layer':<22}" + "{:>8}{:>10}{:>9}{:>8}{:>10}{:>9}{:>10}{:>6}{:>22}{:>6}{:>7}{:>5}".format(*head)]
    for row in rows:
        rms, h, expected = row["gradient_rms"], row["curvature"], row["batch_size_times_v"]
        error = "" if row["curvature_error"] is None else f"{row['curvature_error']:.1e}"
        pairs = zip(row["curvature_by_quarter"], row["batch_size_times_v_by_quarter"], strict=True)
        parts = " ".join(f"{of(mean, v):.2f}" for mean, v in pairs)
        lines.append(
            f"{row['layer']:<22}{row['weights']:>8}{rms:>10.2e}{of(row['mean_gradient_rms'], rms):>9.3f}"
            f"{of(h, rms):>8.3f}{h:>10.2e}{error:>9}{expected:>10.2e}{of(h, expected):>6.2f}{parts:>22}"
            f"{row['k']:>6.0f}{row['k_alone']:>7.0f}{row['k_error']:>5.0f}"
        )
    return "\n".join(lines)


def of(part: float, whole: float) -> float:
    """Their ratio; NaN where the whole is zero."""
    return part / whole if whole else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run of ste or fsg-plus")
    parser.add_argument("--batches", type=int, default=24, help="training batches, at least two")
    parser.add_argument("--probes", type=int, default=8, help="random signs of every weight, for Hutchinson's estimate")
    parser.add_argument("--seed", type=int, default=0, help="of the probes; the batches have the run's")
    parser.add_argument("--data-root", type=Path, help="where data sets lie")
    parser.add_argument("--json", type=Path, help="file to record it in")
    args = parser.parse_args()
    if args.batches < 2 or args.probes < 1:
        parser.error("give at least two batches and one probe")
    found = measure(args.run, args.batches, args.probes, args.seed, args.data_root)
    print(table(found["rows"]))
    if args.json is not None:
        write_record(args.json, found)


if __name__ == "__main__":
    main()
