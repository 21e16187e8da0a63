"""The commands that train: ``fastslow train``, ``pretrain``, ``resume``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import cli_options as options


def add_commands(app: typer.Typer) -> None:
    """Make them known to the command line."""
    app.command()(train)
    app.command()(pretrain)
    app.command()(resume)


def train(
    context: typer.Context,
    recipe: Annotated[
        str | None,
        typer.Option(help="A published run, such as irnet-resnet20; options given beside it override it."),
    ] = None,
    method: Annotated[
        str, typer.Option(help="How gradients pass the bits; see `fastslow methods`.", rich_help_panel=options.METHOD)
    ] = "fsg",
    beta: Annotated[
        float | None, typer.Option(help="Weight of the slow gradient.", rich_help_panel=options.METHOD)
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="l: gradients of the past that are kept.", rich_help_panel=options.METHOD)
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Another field of the method; see `fastslow methods NAME`.",
            rich_help_panel=options.METHOD,
        ),
    ] = None,
    binarizer: Annotated[
        str | None,
        typer.Option(help="dorefa, sign, scaled-sign or scaled-sign-filter.", rich_help_panel=options.METHOD),
    ] = None,
    bits: Annotated[int, typer.Option(help="Bits of a weight.", rich_help_panel=options.METHOD)] = 1,
    activations: Annotated[
        str,
        typer.Option(
            help="sign: 1-bit inputs of the binary layers; real; auto: the method's own.",
            rich_help_panel=options.METHOD,
        ),
    ] = "auto",
    skip: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Layers to leave in float, by name; 'first-and-last' is the default, 'none' binarizes all.",
            rich_help_panel=options.METHOD,
        ),
    ] = None,
    model: options.ModelName = "resnet20",
    bn_before_fc: Annotated[
        bool,
        typer.Option(
            "--bn-before-fc", help="The extra BatchNorm of the authors' network.", rich_help_panel=options.NETWORK
        ),
    ] = False,
    weights: Annotated[
        str | None,
        typer.Option(
            help="Float weights to start from: PATH, shipped, none, or name:NAME (default: shipped if there are any).",
            rich_help_panel=options.NETWORK,
        ),
    ] = None,
    data: options.DataName = "cifar10",
    data_root: options.DataRoot = None,
    image_size: options.ImageSize = 0,
    holdout: options.Holdout = 0,
    augment: Annotated[bool, typer.Option(help="Random crops and flips.", rich_help_panel=options.NETWORK)] = True,
    optimizer: options.OptimizerName = "adam",
    lr: options.Lr = 1e-3,
    momentum: Annotated[
        float, typer.Option(help="Of --optimizer momentum.", rich_help_panel=options.OPTIMIZATION)
    ] = 0.9,
    weight_decay: options.WeightDecay = 0.0,
    schedule: options.Schedule = "step",
    step_epochs: Annotated[
        int, typer.Option(help="Epochs between the drops of --schedule step.", rich_help_panel=options.OPTIMIZATION)
    ] = 30,
    warmup_epochs: Annotated[
        int, typer.Option(help="Epochs in which the learning rate rises.", rich_help_panel=options.OPTIMIZATION)
    ] = 0,
    epochs: options.Epochs = 100,
    batch_size: options.BatchSize = 128,
    seed: options.Seed = 0,
    precision: options.Precision = "float32",
    distill: Annotated[
        float,
        typer.Option(
            help="Share of the loss that compares with a float network, that of --weights or of --teacher.",
            rich_help_panel=options.RECIPE,
        ),
    ] = 0.0,
    distill_temperature: Annotated[float, typer.Option(help="T of --distill.", rich_help_panel=options.RECIPE)] = 4.0,
    teacher: Annotated[
        str | None,
        typer.Option(help="Another teacher's float weights: PATH or shipped.", rich_help_panel=options.RECIPE),
    ] = None,
    teacher_model: Annotated[
        str, typer.Option(help="Its network, where that isn't --model.", rich_help_panel=options.RECIPE)
    ] = "",
    ema: Annotated[
        float,
        typer.Option(
            help="Evaluate and keep a moving average of the weights, with this decay a step, such as 0.999.",
            rich_help_panel=options.RECIPE,
        ),
    ] = 0.0,
    damping: Annotated[
        float,
        typer.Option(
            help="Pull of latent weights to their binary values, such as 1e-2.", rich_help_panel=options.RECIPE
        ),
    ] = 0.0,
    reestimate: Annotated[
        int,
        typer.Option(
            help="At the end, BatchNorm statistics of so many training batches.", rich_help_panel=options.RECIPE
        ),
    ] = 0,
    cutout: Annotated[
        int,
        typer.Option(
            help="Blank a square of so many pixels a side in every training image, such as 16.",
            rich_help_panel=options.RECIPE,
        ),
    ] = 0,
    metrics: Annotated[
        bool,
        typer.Option("--metrics", help="Also measure ReSTE's indicators and the like.", rich_help_panel=options.OUTPUT),
    ] = False,
    checkpoint_every: options.CheckpointEvery = "1epoch,5min",
    keep: options.Keep = 2,
    on_nan: options.OnNan = "stop",
    device: options.Device = "auto",
    run: options.RunOption = None,
    workers: options.Workers = -1,
    track: options.Track = "none",
    json: options.Json = False,
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
        teacher="" if teacher is None else support.choose_weights(teacher, teacher_model or model, data),
        teacher_model=teacher_model,
        ema=ema,
        damping=damping,
        reestimate=reestimate,
        cutout=cutout,
        metrics=metrics,
        workers=workers,
        checkpoint_every=checkpoint_every,
        keep=keep,
        on_nan=on_nan,  # pyright: ignore[reportArgumentType]
    )
    if recipe is not None:
        config = override(RUNS[recipe](), config, given)
    support.refuse_idle(config, given)
    support.start(config, run, device, data_root, json, track)


def pretrain(
    model: options.ModelName = "resnet20",
    data: options.DataName = "cifar10",
    data_root: options.DataRoot = None,
    image_size: options.ImageSize = 0,
    holdout: options.Holdout = 0,
    optimizer: options.OptimizerName = "momentum",
    lr: options.Lr = 0.1,
    weight_decay: options.WeightDecay = 5e-4,
    schedule: options.Schedule = "cosine",
    warmup_epochs: Annotated[
        int | None,
        typer.Option(
            help="Epochs in which the learning rate rises (default: 5, or a quarter of a short run).",
            rich_help_panel=options.OPTIMIZATION,
        ),
    ] = None,
    epochs: options.Epochs = 200,
    batch_size: options.BatchSize = 128,
    seed: options.Seed = 0,
    precision: options.Precision = "float32",
    checkpoint_every: options.CheckpointEvery = "1epoch,5min",
    keep: options.Keep = 2,
    on_nan: options.OnNan = "stop",
    device: options.Device = "auto",
    run: options.RunOption = None,
    workers: options.Workers = -1,
    track: options.Track = "none",
    json: options.Json = False,
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


def resume(
    run: Annotated[Path, typer.Argument(help="Folder of a run that was stopped.")],
    data_root: options.DataRoot = None,
    checkpoint_every: options.OtherCheckpointEvery = None,
    keep: options.OtherKeep = None,
    on_nan: options.OtherOnNan = None,
    device: options.Device = "auto",
    workers: options.OtherWorkers = None,
    track: Annotated[
        str | None,
        typer.Option(help="Other trackers than before, or none.", rich_help_panel=options.OUTPUT),
    ] = None,
    json: options.Json = False,
) -> None:
    """Continue a run from its newest checkpoint; options given here hold until it stops again."""
    from . import cli_support as support

    support.show_logs()
    changes = {"checkpoint_every": checkpoint_every, "keep": keep, "on_nan": on_nan, "workers": workers}
    support.resume(run, device, data_root, json, track, **changes)
