"""The command line: ``fastslow train``, ``fastslow demo`` and the rest."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="fastslow",
    help="Train binary neural networks with learned fast and slow gradients.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object last.")]
DataName = Annotated[str, typer.Option("--data", help="cifar10, cifar100, mini, or folder:PATH.")]
DataRoot = Annotated[
    Path | None, typer.Option(help="Where data sets lie (default: $FASTSLOW_DATA or ~/.cache/fastslow).")
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
ModelName = Annotated[str, typer.Option("--model", help="A network of the zoo, for example resnet20.")]
RunOption = Annotated[Path | None, typer.Option("--run", help="Folder of the run (default: runs/...).")]


def main() -> None:
    """Run a command; whatever a user can cause ends as one sentence and exit code 2."""
    from .training.interrupt import Interrupted

    try:
        app()
    except Interrupted as stop:
        print(f"fastslow: {stop}; the run is saved, continue it with `fastslow resume`", file=sys.stderr)
        sys.exit(stop.exit_code)
    except KeyboardInterrupt:
        print("fastslow: interrupted", file=sys.stderr)
        sys.exit(130)
    except (ValueError, OSError, ArithmeticError) as error:
        print(f"fastslow: {error}", file=sys.stderr)
        sys.exit(2)


@app.command()
def methods(json: Json = False) -> None:
    """List the methods."""
    from .cli_support import print_json
    from .methods import list_methods

    rows = [{"name": m.name, "family": m.family, "paper": m.paper, "summary": m.summary} for m in list_methods()]
    if json:
        print_json(rows)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("method", "family", "summary", "paper", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row["name"], row["family"], row["summary"], row["paper"])
    Console(highlight=False).print(table)


@app.command()
def train(
    method: Annotated[str, typer.Option(help="How gradients pass the bits; see `fastslow methods`.")] = "fsg",
    model: ModelName = "resnet20",
    data: DataName = "cifar10",
    data_root: DataRoot = None,
    holdout: Annotated[int, typer.Option(help="Evaluate on the last N training images, not on the test set.")] = 0,
    weights: Annotated[str | None, typer.Option(help="Float weights to start from: PATH, shipped or none.")] = None,
    beta: Annotated[float | None, typer.Option(help="Weight of the slow gradient.")] = None,
    length: Annotated[int | None, typer.Option(help="l: gradients of the past that are kept.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Another field of the method, NAME=VALUE.")] = None,
    binarizer: Annotated[str | None, typer.Option(help="dorefa, sign, scaled-sign or scaled-sign-filter.")] = None,
    bits: Annotated[int, typer.Option(help="Bits of a weight.")] = 1,
    skip: Annotated[
        list[str] | None,
        typer.Option(help="Layers to leave in float (pattern; 'first-and-last', the default; 'none')."),
    ] = None,
    optimizer: Annotated[str, typer.Option(help="sgd, momentum, adam or adamw.")] = "adam",
    lr: float = 1e-3,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    schedule: Annotated[str, typer.Option(help="step, cosine or constant.")] = "step",
    step_epochs: Annotated[int, typer.Option(help="Epochs between the drops of --schedule step.")] = 30,
    warmup_epochs: int = 0,
    epochs: int = 100,
    batch_size: int = 128,
    augment: bool = True,
    seed: int = 0,
    precision: Annotated[str, typer.Option(help="float32, tf32 or bf16.")] = "float32",
    bn_before_fc: Annotated[bool, typer.Option(help="The extra BatchNorm of the authors' network.")] = False,
    device: Device = "auto",
    run: RunOption = None,
    json: Json = False,
) -> None:
    """Binarize a network and train it."""
    from . import cli_support as support
    from .training.config import FIRST_AND_LAST, RunConfig

    support.show_logs()
    skips = [FIRST_AND_LAST] if skip is None else [entry for entry in skip if entry != "none"]
    config = RunConfig(
        model=model,
        model_fields={"bn_before_fc": True} if bn_before_fc else {},
        data=data,
        holdout=holdout,
        weights=support.choose_weights(weights, model, data),
        method=method,
        method_fields=support.parse_fields(method, set_ or [], beta=beta, length=length),
        binarizer=binarizer,
        bits=bits,
        skip=tuple(skips),
        optimizer=optimizer,  # pyright: ignore[reportArgumentType]
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        schedule=schedule,  # pyright: ignore[reportArgumentType]
        step_epochs=step_epochs,
        warmup_epochs=warmup_epochs,
        epochs=epochs,
        batch_size=batch_size,
        augment=augment,
        seed=seed,
        precision=precision,  # pyright: ignore[reportArgumentType]
    )
    support.start(config, run, device, data_root, json)


@app.command()
def pretrain(
    model: ModelName = "resnet20",
    data: DataName = "cifar10",
    data_root: DataRoot = None,
    holdout: Annotated[int, typer.Option(help="Evaluate on the last N training images, not on the test set.")] = 0,
    optimizer: Annotated[str, typer.Option(help="sgd, momentum, adam or adamw.")] = "momentum",
    lr: float = 0.1,
    weight_decay: float = 5e-4,
    schedule: Annotated[str, typer.Option(help="step, cosine or constant.")] = "cosine",
    warmup_epochs: int = 5,
    epochs: int = 200,
    batch_size: int = 128,
    seed: int = 0,
    precision: Annotated[str, typer.Option(help="float32, tf32 or bf16.")] = "float32",
    device: Device = "auto",
    run: RunOption = None,
    json: Json = False,
) -> None:
    """Train the float network that binary training starts from; its weights land in RUN/weights.safetensors."""
    from . import cli_support as support
    from .training.config import RunConfig

    support.show_logs()
    config = RunConfig(
        model=model,
        data=data,
        holdout=holdout,
        method=None,
        optimizer=optimizer,  # pyright: ignore[reportArgumentType]
        lr=lr,
        weight_decay=weight_decay,
        schedule=schedule,  # pyright: ignore[reportArgumentType]
        warmup_epochs=warmup_epochs,
        epochs=epochs,
        batch_size=batch_size,
        seed=seed,
        precision=precision,  # pyright: ignore[reportArgumentType]
    )
    support.start(config, run, device, data_root, json)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="Folder of a run that was stopped.")],
    data_root: DataRoot = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Continue a run from its newest checkpoint."""
    from . import cli_support as support

    support.show_logs()
    support.resume(run, device, data_root, json)


@app.command("eval")
def evaluate(
    what: Annotated[Path, typer.Argument(help="Folder of a run, or a .safetensors file of float weights.")],
    model: Annotated[str | None, typer.Option(help="The network of a weights file (a run knows its own).")] = None,
    data: Annotated[str | None, typer.Option(help="Another data set than the run's.")] = None,
    data_root: DataRoot = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Accuracy and loss on the test set."""
    from . import cli_support as support
    from . import data as datasets
    from .report.load import load_trained
    from .training.evaluate import evaluate as measure

    chosen = support.choose_device(device)
    trained, config = load_trained(what, model=model, data=data)
    dataset = datasets.load(config.data, data_root, holdout=config.holdout)
    found = measure(trained.to(chosen), datasets.Batches(dataset.test, 500, device=chosen))
    if json:
        support.print_json({"accuracy": found.accuracy, "loss": found.loss, "n": found.n})
    else:
        print(f"accuracy {found.accuracy:.2f} %, loss {found.loss:.4f}, on {found.n} images")


@app.command()
def summary(
    what: Annotated[
        Path | None, typer.Argument(help="Folder of a run, or a .safetensors file of float weights.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="A network of the zoo (a run knows its own).")] = None,
    method: Annotated[str, typer.Option(help="Method to binarize a plain network with.")] = "ste",
    skip: Annotated[list[str] | None, typer.Option(help="Layers to leave in float, as for `train`.")] = None,
    json: Json = False,
) -> None:
    """What a network costs, layer by layer: bits, parameters, operations, bytes in float and packed."""
    from .cli_support import print_json
    from .report.load import load_for_summary
    from .report.summary import format_summary, summarize

    network, shape = load_for_summary(what, model=model, method=method, skip=skip)
    found = summarize(network, shape)
    if json:
        print_json(found.to_dict())
    else:
        print(format_summary(found))


@app.command()
def data(
    name: Annotated[str | None, typer.Argument(help="A data set to check, and to fetch if it isn't there.")] = None,
    data_root: DataRoot = None,
    json: Json = False,
) -> None:
    """Show the data sets, or make sure that one is there and whole."""
    from . import data as datasets
    from .cli_support import print_json

    if name is None:
        rows = [
            {"name": entry, "present": datasets.is_available(entry, data_root)}
            for entry in datasets.list_datasets()
            if not entry.startswith("folder:")
        ]
        if json:
            print_json(rows)
        else:
            print(f"folder: {datasets.data_root(data_root)}")
            for row in rows:
                print(f"{row['name']:<10} {'present' if row['present'] else 'not fetched yet'}")
            print("folder:PATH  your own images, PATH/train/CLASS/* and PATH/test/CLASS/*")
        return
    found = datasets.load(name, data_root)
    counts = {"name": name, "train": len(found.train), "test": len(found.test), "classes": len(found.train.classes)}
    if json:
        print_json(counts)
    else:
        print(f"{name}: {counts['train']} training and {counts['test']} test images in {counts['classes']} classes")


@app.command()
def demo(
    epochs: Annotated[int, typer.Option(help="Epochs on the mini set.")] = 8,
    out: Annotated[Path, typer.Option(help="Where the demo leaves its files.")] = Path("runs/demo"),
    json: Json = False,
) -> None:
    """From a float network to a trained binary one on the embedded data: about four minutes on two cores."""
    from .cli_support import print_json
    from .demo import run_demo

    result = run_demo(out, epochs=epochs)
    if json:
        print_json(result)


if __name__ == "__main__":
    main()
