"""``fastslow sweep``: hyper-parameters searched with Optuna."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object last.")]


def add_commands(app: typer.Typer) -> None:
    """Make it known to the command line."""
    app.command()(sweep)


def sweep(
    more: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUES]...", help="The rest of --space.", show_default=False)
    ] = None,
    space: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUES",
            help="What to search: beta=0.1:0.9, lr=1e-4:1e-2:log, length=3..7, method=ste,fsg; one value sets it.",
        ),
    ] = None,
    trials: Annotated[int, typer.Option(help="Trials of the study in all, those of earlier commands included.")] = 20,
    study: Annotated[str, typer.Option(help="Its name in the storage.")] = "sweep",
    storage: Annotated[
        str | None, typer.Option(help="Where Optuna keeps it (default: sqlite:///RUNS/study.db).")
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes side by side.")] = 1,
    prune: Annotated[bool, typer.Option(help="Stop trials that are below the median of the others.")] = True,
    runs: Annotated[Path | None, typer.Option(help="Folder of the trials' runs (default: runs/STUDY).")] = None,
    method: Annotated[str, typer.Option(help="See `fastslow methods`.")] = "fsg",
    model: Annotated[str, typer.Option(help="A network of the zoo, for example resnet20.")] = "resnet20",
    weights: Annotated[str | None, typer.Option(help="Float weights to start from, as for `train`.")] = None,
    data: Annotated[str, typer.Option(help="cifar10, cifar100, mini, or folder:PATH.")] = "cifar10",
    data_root: Annotated[Path | None, typer.Option(help="Where data sets lie.")] = None,
    holdout: Annotated[
        int, typer.Option(help="Training images to hold out and measure on (default: a tenth).", show_default=False)
    ] = 0,
    epochs: Annotated[int, typer.Option(help="Passes over the training images.")] = 100,
    batch_size: Annotated[int, typer.Option(help="Images a step.")] = 128,
    seed: Annotated[int, typer.Option(help="Of every run.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    json: Json = False,
) -> None:
    """Search hyper-parameters on held-out training images, never on the test set; the same command goes on."""
    from . import cli_support as support
    from .sweep.space import parse_space
    from .training.config import RunConfig

    support.show_logs()
    for name, value in (("--trials", trials), ("--workers", workers)):
        if value < 1:
            raise ValueError(f"{name} {value}: give a whole number of at least 1")
    words = [*(space or []), *(more or [])]
    base = RunConfig(
        model=model,
        data=support.choose_data(data),
        weights=support.choose_weights(weights, model, data),
        holdout=holdout,
        method=method,
        epochs=epochs,
        batch_size=batch_size,
        seed=seed,
    )
    searched = parse_space(words, base)
    support.choose_device(device)
    try:
        from .sweep.study import Sweep, best_config, open_study
    except ModuleNotFoundError as error:
        raise ValueError(f"sweep needs the package {error.name}: pip install 'fastslow[sweep]'") from error
    from .sweep.table import findings, format_table, train_command
    from .sweep.workers import WorkersFailed, with_holdout, work_side_by_side

    folder = Path("runs") / study if runs is None else runs
    if storage is None:
        folder.mkdir(parents=True, exist_ok=True)
        storage = f"sqlite:///{folder.resolve()}/study.db"
    root = None if data_root is None else data_root.resolve()
    chosen = with_holdout(Sweep(study, storage, searched, tuple(words), folder, trials, prune, device, root))
    try:
        work_side_by_side(chosen, workers)
    except WorkersFailed as error:
        raise typer.Exit(error.exit_code) from error
    found = open_study(chosen)
    rows = findings(found)
    finished = [row for row in rows if row["accuracy"] is not None]
    if not finished:
        reasons = [row["failed"] for row in rows if row["failed"]]
        raise ValueError(
            f"no trial of {study!r} has finished" + (f"; the first failed: {reasons[0]}" if reasons else "")
        )
    best = best_config(found, chosen.space)
    if json:
        support.print_json(
            {"study": study, "storage": storage, "best": finished[0], "command": train_command(best), "trials": rows}
        )
        return
    print(format_table(rows))
    states = {state: len([row for row in rows if row["state"] == state]) for state in ("pruned", "fail", "running")}
    print(
        f"{len(finished)} trials finished, {states['pruned']} stopped early, {states['fail']} failed"
        + (f", {states['running']} run elsewhere" if states["running"] else "")
        + f"; runs in {folder}"
    )
    print(f"accuracy of the last epoch on {chosen.space.base.holdout} held-out training images, not on the test set")
    print(f"the best, once, on all images and for the test set:\n  {train_command(best)}")
