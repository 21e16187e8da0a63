"""The commands of the evidence: ``fastslow reproduce``, ``fastslow report``, ``fastslow diagnose``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, TextIO

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object last.")]


def add_commands(app: typer.Typer) -> None:
    """Make them known to the command line."""
    app.command()(reproduce)
    app.command()(report)
    app.command()(diagnose)


def reproduce(
    names: Annotated[list[str] | None, typer.Argument(help="Recipes, or all; none lists them.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Seeds 0 to N-1 of every setting, not the recipe's number.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Runs whose name has these parts: resnet20/adam, fsg, 'resnet*/sgd', seed0."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    jobs: Annotated[int, typer.Option(help="Runs side by side, each a process.")] = 1,
    minutes: Annotated[
        float | None, typer.Option(help="Save and stop after so many; the same command goes on.")
    ] = None,
    shard: Annotated[str | None, typer.Option(help="i/n: the i-th part of n, for several machines.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Other many epochs; shown apart from the recipe's.")] = None,
    precision: Annotated[str | None, typer.Option(help="float32, tf32 or bf16, not the recipe's.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the results, one JSON a run.")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Folder of the runs: checkpoints, logs, weights.")] = Path(
        "runs/reproduce"
    ),
    weights_dir: Annotated[
        Path | None, typer.Option(help="Folder of float weights such as resnet44_cifar10.safetensors.")
    ] = None,
    data_root: Annotated[Path | None, typer.Option(help="Where data sets lie.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Show what would run, and run nothing.")] = False,
    json: Json = False,
) -> None:
    """Run a table or a figure of the paper: a grid that goes on where it stopped."""
    from .cli_support import choose_device, print_json
    from .recipes import RECIPES
    from .reproduce.experiments import EXPERIMENTS

    if not names:
        counts = {recipe.name: sum(setting.seeds for setting in recipe.settings()) for recipe in RECIPES.values()}
        if json:
            print_json({"recipes": counts, "experiments": list(EXPERIMENTS)})
            return
        for recipe in RECIPES.values():
            print(f"{recipe.name:<16} {counts[recipe.name]:>4} runs  {recipe.title}: {recipe.summary}")
        for experiment in EXPERIMENTS.values():
            print(f"{experiment.name:<27}{experiment.summary}")
        return
    if weights_dir is not None:
        _search_first(weights_dir)
    experiments = [name for name in names if name in EXPERIMENTS]
    names = [name for name in names if name not in EXPERIMENTS]
    for name in set(names) - {"all"}:
        RECIPES[name]  # what isn't one is said before anything is measured
    if experiments and not dry_run:
        _measure(experiments, out, device, data_root, sys.stderr if json else sys.stdout)
    elif not json:
        for name in experiments:
            print(f"{name}: {'recorded already' if (out / f'{name}.json').exists() else 'to be measured'}")
    if not names:
        if json:
            print_json({"experiments": [str(out / f"{name}.json") for name in experiments]})
        return
    from .reproduce import Grid, plan
    from .reproduce.watch import Watch, dry_run_lines, summary_lines

    changes = {} if precision is None else {"precision": precision}
    chosen = plan(names, seeds=seeds, only=only or [], shard=shard, epochs=epochs, changes=changes)
    watch = Watch()
    grid = Grid(
        chosen,
        results=out,
        folders=runs,
        device=device,
        jobs=jobs,
        data_root=None if data_root is None else data_root.resolve(),
        minutes=minutes,
        show=watch,
        prepare=lambda left: _fetch_once({run.config.data for run in left}, data_root),
    )
    if dry_run:
        lines = dry_run_lines(grid)
        found = grid.outcome
        if json:
            pending = [run.name for run in grid.pending]
            print_json({"finished": found.finished_before, "to_run": pending, "without_weights": list(found.blocked)})
            return
        print("\n".join(lines))
        print(
            f"{len(chosen)} runs: {len(found.finished_before)} finished, {len(grid.pending)} to run, "
            f"{len(found.blocked)} without weights"
        )
        return
    choose_device(device)  # one sentence here instead of one for each worker
    try:
        outcome = grid.run()
    finally:
        watch.close()
    print("\n".join(summary_lines(outcome)), file=sys.stderr if json else sys.stdout)
    if json:
        import dataclasses

        print_json(dataclasses.asdict(outcome))
    if outcome.signal is not None:
        raise typer.Exit(128 + outcome.signal)
    if outcome.failed or outcome.blocked:
        raise typer.Exit(1)


def _fetch_once(names: set[str], data_root: Path | None) -> None:
    """Before the workers would each find that a data set is missing, and all download it."""
    from . import data as datasets

    for name in sorted(names):
        if not datasets.is_available(name, data_root):
            datasets.load(name, data_root)


def _measure(experiments: list[str], out: Path, device: str, data_root: Path | None, stream: TextIO) -> None:
    from .cli_support import choose_device
    from .reproduce.experiments import run_experiment

    for name in experiments:
        path = run_experiment(name, out, choose_device(device), data_root)
        known = f"{out / name}.json is recorded already; name another folder with --out to measure anew"
        print(known if path is None else f"recorded {path}", file=stream)


def report(
    results: Annotated[Path, typer.Option(help="Folder of recorded runs.")] = Path("results"),
    out: Annotated[Path, typer.Option(help="Where results.md, results.html and figures/ go.")] = Path("docs"),
    readme: Annotated[Path | None, typer.Option(help="A README with marks, to put the summary into.")] = None,
    json: Json = False,
) -> None:
    """Tables and figures from recorded runs, as Markdown and as one HTML page."""
    from .report.page import update_readme, write_report

    if not results.is_dir():  # an empty report would take the place of a full one
        raise ValueError(f"--results {results}: there is no such folder")
    if readme is not None:
        update_readme(results, readme)  # first: what has no marks changes nothing
    written = [*write_report(results, out), *([] if readme is None else [readme])]
    if json:
        from .cli_support import print_json

        print_json([str(path) for path in written])
    else:
        print("\n".join(str(path) for path in written))


def diagnose(
    run: Annotated[Path | None, typer.Argument(help="Folder of a run with a checkpoint; none trains anew.")] = None,
    method: Annotated[str, typer.Option(help="fsg, fsg-code, fsg-weight or fsg-lstm.")] = "fsg",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Another field of the method.")
    ] = None,
    model: Annotated[str, typer.Option(help="The network to train.")] = "resnet20",
    data: Annotated[str, typer.Option(help="The data set to train on.")] = "cifar10",
    optimizer: Annotated[str, typer.Option(help="adam, sgd or momentum.")] = "adam",
    steps: Annotated[int, typer.Option(help="Steps to train; measured after 2, 4, 8 ... of them.")] = 2000,
    seed: int = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("results"),
    weights_dir: Annotated[Path | None, typer.Option(help="Folder of float weights.")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Where data sets lie.")] = None,
    json: Json = False,
) -> None:
    """Measure what FSG's slow-net really does while a network trains."""
    from .cli_support import choose_device, parse_fields, print_json
    from .reproduce.diagnosing import record_diagnosis

    if steps < 2:
        raise ValueError(f"--steps {steps}: give a whole number of at least 2, from which on there is a history")
    given = (set_ or [], method, model, data, optimizer, seed)
    if run is not None and given != ([], "fsg", "resnet20", "cifar10", "adam", 0):
        raise ValueError(f"{run} has its own method, network, data, optimizer and seed; leave those options out")
    if weights_dir is not None:
        _search_first(weights_dir)

    def tell(row: dict[str, object]) -> None:
        shown = ("k", "r2_token_linear", "effect_zero", "effect_lre", "flipped_by_lookahead")
        words = "  ".join(f"{name} {row[name]:.3g}" for name in shown if name in row)
        print(f"step {row['step']}  {words}", file=sys.stderr)

    path, content = record_diagnosis(
        out,
        choose_device(device),
        run=run,
        method=method,
        method_fields=parse_fields(method, set_ or []),
        model=model,
        data=data,
        optimizer=optimizer,
        steps=steps,
        seed=seed,
        data_root=data_root,
        tell=tell,
    )
    if json:
        print_json({"file": str(path), **{name: values[-1] for name, values in content["rows"].items()}})
    else:
        print(f"recorded {path}")


def _search_first(folder: Path) -> None:
    """Look there for weights, here and in the workers."""
    from .training.named_weights import VARIABLE

    if not folder.is_dir():
        raise ValueError(f"--weights-dir {folder}: there is no such folder")
    folder = folder.resolve()
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(folder) if not before else os.pathsep.join([str(folder), before])
