"""The command line: ``fastslow train``, ``fastslow demo`` and the rest."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn, cast

_INSTALL = "pip install 'fastslow[train]'"

try:
    import typer
except ModuleNotFoundError:  # `pip install fastslow` alone is for running packed networks
    print(f"fastslow: the command line needs more packages: {_INSTALL}", file=sys.stderr)
    sys.exit(2)

app = typer.Typer(
    name="fastslow",
    help="Train binary neural networks with learned fast and slow gradients.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)

_METHOD, _NETWORK, _OPTIMIZATION, _OUTPUT = "Method", "Network and data", "Optimization", "Device and output"
_RECIPE = "Recipes, for every method alike"

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object last.", rich_help_panel=_OUTPUT)]
DataName = Annotated[
    str, typer.Option("--data", help="cifar10, cifar100, mini, folder:PATH, or stream:PATH.", rich_help_panel=_NETWORK)
]
DataRoot = Annotated[
    Path | None,
    typer.Option(help="Where data sets lie (default: $FASTSLOW_DATA or ~/.cache/fastslow).", rich_help_panel=_NETWORK),
]
ImageSize = Annotated[
    int,
    typer.Option(
        help="Side of your own images in pixels (0: 32 in a folder, 224 in a stream).", rich_help_panel=_NETWORK
    ),
]
_WORKERS = typer.Option(
    help="Processes that decode a stream's images (-1: one a core, up to 8).", rich_help_panel=_OUTPUT
)
Workers = Annotated[int, _WORKERS]
OtherWorkers = Annotated[int | None, _WORKERS]
Holdout = Annotated[
    int, typer.Option(help="Evaluate on the last N training images, not on the test set.", rich_help_panel=_NETWORK)
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.", rich_help_panel=_OUTPUT)]
ModelName = Annotated[
    str, typer.Option("--model", help="A network of the zoo, for example resnet20.", rich_help_panel=_NETWORK)
]
RunOption = Annotated[
    Path | None,
    typer.Option("--run", help="Folder of the run (default: a name under runs/).", rich_help_panel=_OUTPUT),
]
OptimizerName = Annotated[str, typer.Option(help="sgd, momentum, adam or adamw.", rich_help_panel=_OPTIMIZATION)]
Lr = Annotated[float, typer.Option(help="Learning rate at its highest.", rich_help_panel=_OPTIMIZATION)]
WeightDecay = Annotated[float, typer.Option(help="The optimizer's own.", rich_help_panel=_OPTIMIZATION)]
Schedule = Annotated[str, typer.Option(help="step, cosine, restarts or constant.", rich_help_panel=_OPTIMIZATION)]
Epochs = Annotated[int, typer.Option(help="Passes over the training images.", rich_help_panel=_OPTIMIZATION)]
BatchSize = Annotated[int, typer.Option(help="Images a step.", rich_help_panel=_OPTIMIZATION)]
Seed = Annotated[
    int, typer.Option(help="Of the initialisation, the order of the images, the rest.", rich_help_panel=_OPTIMIZATION)
]
_EVERY = typer.Option(metavar="INTERVAL", help="500steps, 2epochs, 10min, or several.", rich_help_panel=_OUTPUT)
_KEEP = typer.Option(help="Checkpoints to keep, the newest ones.", rich_help_panel=_OUTPUT)
CheckpointEvery = Annotated[str, _EVERY]
OtherCheckpointEvery = Annotated[str | None, _EVERY]
Keep = Annotated[int, _KEEP]
OtherKeep = Annotated[int | None, _KEEP]
_ON_NAN = typer.Option(
    help="A step that isn't finite: stop, skip it, or rollback to the last checkpoint and then skip it.",
    rich_help_panel=_OUTPUT,
)
OnNan = Annotated[str, _ON_NAN]
OtherOnNan = Annotated[str | None, _ON_NAN]
Precision = Annotated[str, typer.Option(help="float32, tf32 (on a GPU) or bf16.", rich_help_panel=_OPTIMIZATION)]
Track = Annotated[
    str, typer.Option(help="tensorboard, wandb, mlflow: one, or several with commas.", rich_help_panel=_OUTPUT)
]


def main() -> None:
    """Run a command; whatever a user can cause ends as one sentence and exit code 2."""
    try:
        sys.exit(_run(sys.argv[1:] or ["--help"]))
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        sys.stdout = None
        sys.exit(1)
    except ModuleNotFoundError as error:
        _fail(f"the package {error.name} is missing: {_INSTALL}")
    except OSError as error:
        named = error.strerror is not None and error.filename is not None
        _fail(f"{error.filename}: {error.strerror}" if named else str(error))
    except ArithmeticError as error:
        _fail(str(error), shared=True)
    except (ValueError, MemoryError) as error:
        _fail(str(error) or "out of memory")
    except RuntimeError as error:
        from .training.memory import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        _fail("out of memory; free some, or try a smaller network or batch")


def _run(arguments: list[str]) -> int:
    """Run a command, return its exit code."""
    from typer.main import get_command

    from .training.interrupt import Interrupted

    # click's own class, which newer versions of typer carry inside
    usage_error = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
    try:
        code = get_command(app).main(arguments, prog_name="fastslow", standalone_mode=False)
    except typer.Abort:
        code = 130
    except cast(type[Exception], usage_error) as error:
        command = getattr(getattr(error, "ctx", None), "command_path", "fastslow")
        _fail(f"{error.format_message().rstrip('.')}; see `{command} --help`")  # pyright: ignore[reportAttributeAccessIssue]
    except Interrupted as stop:
        _fail(str(stop), stop.exit_code, shared=True)
    if code == 130:
        _fail("interrupted", 130)
    return code if isinstance(code, int) else 0


def _fail(sentence: str, code: int = 2, shared: bool = False) -> NoReturn:
    """Say it and leave. Of several processes each says its own; what happens to all of them the first one says."""
    rank = os.environ.get("RANK", "0")
    if rank == "0" or not shared:
        print(f"fastslow{'' if rank == '0' else f' (rank {rank})'}: " + " ".join(sentence.split()), file=sys.stderr)
    sys.exit(code)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="A method whose fields to show.", show_default=False)] = None,
    json: Json = False,
) -> None:
    """List the methods, or the fields of one."""
    from .cli_support import describe_method, format_method, format_methods, print_json
    from .methods import list_methods

    if name is not None:
        found = describe_method(name)
        print_json(found) if json else print(format_method(found))
        return
    rows = [{"name": m.name, "family": m.family, "paper": m.paper, "summary": m.summary} for m in list_methods()]
    print_json(rows) if json else print(format_methods(rows))


@app.command()
def train(
    context: typer.Context,
    recipe: Annotated[
        str | None,
        typer.Option(help="A published run, such as irnet-resnet20; options given beside it override it."),
    ] = None,
    method: Annotated[
        str, typer.Option(help="How gradients pass the bits; see `fastslow methods`.", rich_help_panel=_METHOD)
    ] = "fsg",
    beta: Annotated[float | None, typer.Option(help="Weight of the slow gradient.", rich_help_panel=_METHOD)] = None,
    length: Annotated[
        int | None, typer.Option(help="l: gradients of the past that are kept.", rich_help_panel=_METHOD)
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Another field of the method; see `fastslow methods NAME`.",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    binarizer: Annotated[
        str | None,
        typer.Option(help="dorefa, sign, scaled-sign or scaled-sign-filter.", rich_help_panel=_METHOD),
    ] = None,
    bits: Annotated[int, typer.Option(help="Bits of a weight.", rich_help_panel=_METHOD)] = 1,
    activations: Annotated[
        str,
        typer.Option(
            help="sign: 1-bit inputs of the binary layers; real; auto: the method's own.", rich_help_panel=_METHOD
        ),
    ] = "auto",
    skip: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Layers to leave in float, by name; 'first-and-last' is the default, 'none' binarizes all.",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    model: ModelName = "resnet20",
    bn_before_fc: Annotated[
        bool,
        typer.Option("--bn-before-fc", help="The extra BatchNorm of the authors' network.", rich_help_panel=_NETWORK),
    ] = False,
    weights: Annotated[
        str | None,
        typer.Option(
            help="Float weights to start from: PATH, shipped, none, or name:NAME (default: shipped if there are any).",
            rich_help_panel=_NETWORK,
        ),
    ] = None,
    data: DataName = "cifar10",
    data_root: DataRoot = None,
    image_size: ImageSize = 0,
    holdout: Holdout = 0,
    augment: Annotated[bool, typer.Option(help="Random crops and flips.", rich_help_panel=_NETWORK)] = True,
    optimizer: OptimizerName = "adam",
    lr: Lr = 1e-3,
    momentum: Annotated[float, typer.Option(help="Of --optimizer momentum.", rich_help_panel=_OPTIMIZATION)] = 0.9,
    weight_decay: WeightDecay = 0.0,
    schedule: Schedule = "step",
    step_epochs: Annotated[
        int, typer.Option(help="Epochs between the drops of --schedule step.", rich_help_panel=_OPTIMIZATION)
    ] = 30,
    warmup_epochs: Annotated[
        int, typer.Option(help="Epochs in which the learning rate rises.", rich_help_panel=_OPTIMIZATION)
    ] = 0,
    epochs: Epochs = 100,
    batch_size: BatchSize = 128,
    seed: Seed = 0,
    precision: Precision = "float32",
    distill: Annotated[
        float,
        typer.Option(
            help="Share of the loss that compares with the float network of --weights.", rich_help_panel=_RECIPE
        ),
    ] = 0.0,
    distill_temperature: Annotated[float, typer.Option(help="T of --distill.", rich_help_panel=_RECIPE)] = 4.0,
    ema: Annotated[
        float,
        typer.Option(
            help="Evaluate and keep a moving average of the weights, with this decay a step, such as 0.999.",
            rich_help_panel=_RECIPE,
        ),
    ] = 0.0,
    damping: Annotated[
        float,
        typer.Option(help="Pull of latent weights to their binary values, such as 1e-2.", rich_help_panel=_RECIPE),
    ] = 0.0,
    reestimate: Annotated[
        int,
        typer.Option(help="At the end, BatchNorm statistics of so many training batches.", rich_help_panel=_RECIPE),
    ] = 0,
    metrics: Annotated[
        bool,
        typer.Option("--metrics", help="Also measure ReSTE's indicators and the like.", rich_help_panel=_OUTPUT),
    ] = False,
    checkpoint_every: CheckpointEvery = "1epoch,5min",
    keep: Keep = 2,
    on_nan: OnNan = "stop",
    device: Device = "auto",
    run: RunOption = None,
    workers: Workers = -1,
    track: Track = "none",
    json: Json = False,
) -> None:
    """Binarize a network and train it."""
    from . import cli_support as support
    from .recipes.sota import RUNS, override
    from .training.config import FIRST_AND_LAST, RunConfig

    support.show_logs()
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    if recipe is not None:
        method = method if "method" in given else str(RUNS[recipe]().method)
    skips = [FIRST_AND_LAST] if skip is None else [entry for entry in skip if entry != "none"]
    config = RunConfig(
        model=model,
        model_fields={"bn_before_fc": True} if bn_before_fc else {},
        data=support.choose_data(data),
        image_size=image_size,
        holdout=holdout,
        weights=support.choose_weights(weights, model, data),
        method=method,
        method_fields=support.parse_fields(method, set_ or [], beta=beta, length=length),
        binarizer=binarizer,
        bits=bits,
        activations=None if activations == "real" else activations,
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
        distill=distill,
        distill_temperature=distill_temperature,
        ema=ema,
        damping=damping,
        reestimate=reestimate,
        metrics=metrics,
        workers=workers,
        checkpoint_every=checkpoint_every,
        keep=keep,
        on_nan=on_nan,  # pyright: ignore[reportArgumentType]
    )
    if recipe is not None:
        config = override(RUNS[recipe](), config, given)
    support.start(config, run, device, data_root, json, track)


@app.command()
def pretrain(
    model: ModelName = "resnet20",
    data: DataName = "cifar10",
    data_root: DataRoot = None,
    image_size: ImageSize = 0,
    holdout: Holdout = 0,
    optimizer: OptimizerName = "momentum",
    lr: Lr = 0.1,
    weight_decay: WeightDecay = 5e-4,
    schedule: Schedule = "cosine",
    warmup_epochs: Annotated[
        int | None,
        typer.Option(
            help="Epochs in which the learning rate rises (default: 5, or a quarter of a short run).",
            rich_help_panel=_OPTIMIZATION,
        ),
    ] = None,
    epochs: Epochs = 200,
    batch_size: BatchSize = 128,
    seed: Seed = 0,
    precision: Precision = "float32",
    checkpoint_every: CheckpointEvery = "1epoch,5min",
    keep: Keep = 2,
    on_nan: OnNan = "stop",
    device: Device = "auto",
    run: RunOption = None,
    workers: Workers = -1,
    track: Track = "none",
    json: Json = False,
) -> None:
    """Train the float network that binary training starts from; its weights land in RUN/weights.safetensors."""
    from . import cli_support as support
    from .training.config import RunConfig

    support.show_logs()
    config = RunConfig(
        model=model,
        data=support.choose_data(data),
        image_size=image_size,
        holdout=holdout,
        method=None,
        optimizer=optimizer,  # pyright: ignore[reportArgumentType]
        lr=lr,
        weight_decay=weight_decay,
        schedule=schedule,  # pyright: ignore[reportArgumentType]
        warmup_epochs=min(5, max(epochs, 0) // 4) if warmup_epochs is None else warmup_epochs,
        epochs=epochs,
        batch_size=batch_size,
        seed=seed,
        precision=precision,  # pyright: ignore[reportArgumentType]
        workers=workers,
        checkpoint_every=checkpoint_every,
        keep=keep,
        on_nan=on_nan,  # pyright: ignore[reportArgumentType]
    )
    support.start(config, run, device, data_root, json, track)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="Folder of a run that was stopped.")],
    data_root: DataRoot = None,
    checkpoint_every: OtherCheckpointEvery = None,
    keep: OtherKeep = None,
    on_nan: OtherOnNan = None,
    device: Device = "auto",
    workers: OtherWorkers = None,
    track: Annotated[
        str | None,
        typer.Option(help="Other trackers than before, or none.", rich_help_panel=_OUTPUT),
    ] = None,
    json: Json = False,
) -> None:
    """Continue a run from its newest checkpoint; options given here hold until it stops again."""
    from . import cli_support as support

    support.show_logs()
    changes = {"checkpoint_every": checkpoint_every, "keep": keep, "on_nan": on_nan, "workers": workers}
    support.resume(run, device, data_root, json, track, **changes)


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
    from .report.load import load_trained
    from .training.evaluate import evaluate as measure
    from .training.evaluate import evaluation_batches

    chosen = support.choose_device(device)
    trained, config = load_trained(what, model=model, data=support.choose_data(data) if data else None)
    dataset = support.load_data(config, data_root)
    support.check_classes(trained, dataset)
    found = measure(trained.to(chosen), evaluation_batches(dataset.test, device=chosen))
    if json:
        support.print_json({"accuracy": found.accuracy, "loss": found.loss, "n": found.n})
    else:
        images = f"the last {found.n} training images, held out" if config.holdout else f"{found.n} test images"
        print(f"accuracy {found.accuracy:.2f} %, loss {found.loss:.4f}, on {images} of {config.data}")


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
            if not entry.startswith(datasets.PATHS)
        ]
        if json:
            print_json(rows)
        else:
            print(f"folder: {datasets.data_root(data_root)}")
            for row in rows:
                print(f"{row['name']:<10} {'present' if row['present'] else 'not fetched yet'}")
            print("folder:PATH  your own images, PATH/train/CLASS/* and PATH/test/CLASS/*, held in memory")
            print("stream:PATH  the same, left on disk")
        return
    found = datasets.load(name, data_root)
    for part in (found.train, found.test):
        if isinstance(part, datasets.FileSet) and (wrong := datasets.check_files(part)):
            raise datasets.DataError(f"{len(wrong)} files of {name} can't be used: {'; '.join(wrong[:20])}")
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


from . import cli_deploy, cli_evidence, cli_sweep  # noqa: E402 (modules of their own: the commands' order is that of --help)

cli_sweep.add_commands(app)
cli_deploy.add_commands(app)
cli_evidence.add_commands(app)


if __name__ == "__main__":
    main()
