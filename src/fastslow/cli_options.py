"""Options that several commands share, and the panels of ``--help`` that they stand in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

METHOD, NETWORK, OPTIMIZATION, OUTPUT = "Method", "Network and data", "Optimization", "Device and output"
RECIPE = "Recipes, for every method alike"

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object last.", rich_help_panel=OUTPUT)]
DataName = Annotated[
    str, typer.Option("--data", help="cifar10, cifar100, mini, folder:PATH, or stream:PATH.", rich_help_panel=NETWORK)
]
DataRoot = Annotated[
    Path | None,
    typer.Option(help="Where data sets lie (default: $FASTSLOW_DATA or ~/.cache/fastslow).", rich_help_panel=NETWORK),
]
ImageSize = Annotated[
    int,
    typer.Option(
        help="Side of your own images in pixels (0: 32 in a folder, 224 in a stream).", rich_help_panel=NETWORK
    ),
]
_WORKERS = typer.Option(
    help="Processes that decode a stream's images (-1: one a core, up to 8).", rich_help_panel=OUTPUT
)
Workers = Annotated[int, _WORKERS]
OtherWorkers = Annotated[int | None, _WORKERS]
Holdout = Annotated[
    int, typer.Option(help="Evaluate on the last N training images, not on the test set.", rich_help_panel=NETWORK)
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.", rich_help_panel=OUTPUT)]
ModelName = Annotated[
    str, typer.Option("--model", help="A network of the zoo, for example resnet20.", rich_help_panel=NETWORK)
]
RunOption = Annotated[
    Path | None,
    typer.Option("--run", help="Folder of the run (default: a name under runs/).", rich_help_panel=OUTPUT),
]
OptimizerName = Annotated[str, typer.Option(help="sgd, momentum, adam or adamw.", rich_help_panel=OPTIMIZATION)]
Lr = Annotated[float, typer.Option(help="Learning rate at its highest.", rich_help_panel=OPTIMIZATION)]
WeightDecay = Annotated[float, typer.Option(help="The optimizer's own.", rich_help_panel=OPTIMIZATION)]
Schedule = Annotated[str, typer.Option(help="step, cosine, restarts or constant.", rich_help_panel=OPTIMIZATION)]
Epochs = Annotated[int, typer.Option(help="Passes over the training images.", rich_help_panel=OPTIMIZATION)]
BatchSize = Annotated[int, typer.Option(help="Images a step.", rich_help_panel=OPTIMIZATION)]
Seed = Annotated[
    int, typer.Option(help="Of the initialisation, the order of the images, the rest.", rich_help_panel=OPTIMIZATION)
]
_EVERY = typer.Option(metavar="INTERVAL", help="500steps, 2epochs, 10min, or several.", rich_help_panel=OUTPUT)
_KEEP = typer.Option(help="Checkpoints to keep, the newest ones.", rich_help_panel=OUTPUT)
CheckpointEvery = Annotated[str, _EVERY]
OtherCheckpointEvery = Annotated[str | None, _EVERY]
Keep = Annotated[int, _KEEP]
OtherKeep = Annotated[int | None, _KEEP]
_ON_NAN = typer.Option(
    help="A step that isn't finite: stop, skip it, or rollback to the last checkpoint and then skip it.",
    rich_help_panel=OUTPUT,
)
OnNan = Annotated[str, _ON_NAN]
OtherOnNan = Annotated[str | None, _ON_NAN]
Precision = Annotated[str, typer.Option(help="float32, tf32 (on a GPU) or bf16.", rich_help_panel=OPTIMIZATION)]
Track = Annotated[
    str, typer.Option(help="tensorboard, wandb, mlflow: one, or several with commas.", rich_help_panel=OUTPUT)
]
