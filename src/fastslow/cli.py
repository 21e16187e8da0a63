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

from . import cli_deploy, cli_evidence, cli_sweep, cli_train  # noqa: E402 (they need typer)
from .cli_options import DataRoot, Device, Json  # noqa: E402

app = typer.Typer(
    name="fastslow",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        from . import __version__

        print(f"fastslow {__version__}")
        raise typer.Exit


@app.callback()
def about(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """Train binary neural networks with learned fast and slow gradients."""


def main() -> None:
    """Run a command; whatever a user can cause ends as one sentence and exit code 2."""
    try:
        sys.exit(_run(sys.argv[1:] or ["--help"]))
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        sys.stdout = None
        sys.exit(1)
    except ImportError as error:  # of our own, with a sentence, where it isn't a module that wasn't found
        missing = isinstance(error, ModuleNotFoundError)
        _fail(f"the package {error.name} is missing: {_INSTALL}" if missing else str(error))
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


cli_train.add_commands(app)  # here: the order of the commands is that of --help


@app.command("eval")
def evaluate(
    what: Annotated[
        Path,
        typer.Argument(
            help="Folder of a run, a packed file, a .safetensors file of float weights, or 'shipped': the packed "
            "network that comes with the package."
        ),
    ],
    model: Annotated[
        str | None, typer.Option(help="The network of a weights file (runs and packed files know their own).")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Another data set than it was trained on.")] = None,
    data_root: DataRoot = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Accuracy and loss on the test set."""
    from . import cli_support as support
    from .report.load import load_trained
    from .report.packed import is_packed, load_packed_network
    from .report.seen import as_seen, seen_by
    from .training.evaluate import evaluate as measure
    from .training.evaluate import evaluation_batches

    chosen = support.choose_device(device)
    what = support.packed_file(what)
    packed = is_packed(what)
    load = load_packed_network if packed else load_trained
    trained, config = load(what, model=model, data=support.choose_data(data) if data else None)
    dataset = support.load_data(config, data_root, "" if data else "if the images have moved, name them with --data")
    seen = seen_by(trained, what)
    if seen is None or len(dataset.test.classes) > len(seen.classes):
        support.check_classes(trained, dataset)
    images = dataset.test if seen is None else as_seen(dataset.test, seen)
    found = measure(trained.to(chosen), evaluation_batches(images, device=chosen))
    if json:
        support.print_json({"accuracy": found.accuracy, "loss": found.loss, "n": found.n})
    else:
        which = f"the last {found.n} training images, held out" if config.holdout else f"{found.n} test images"
        print(f"accuracy {found.accuracy:.2f} %, loss {found.loss:.4f}, on {which} of {config.data}")


@app.command()
def summary(
    what: Annotated[
        Path | None, typer.Argument(help="Folder of a run, or a .safetensors file of float weights.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="A network of the zoo (a run knows its own).")] = None,
    method: Annotated[str, typer.Option(help="Method to binarize a plain network with.")] = "ste",
    skip: Annotated[list[str] | None, typer.Option(help="Layers to leave in float, as for `train`.")] = None,
    classes: Annotated[
        int | None, typer.Option(min=1, help="Outputs of the network: 10, or 1000 of resnet18 and resnet34.")
    ] = None,
    image_size: Annotated[int | None, typer.Option(min=1, help="Pixels a side: 32, or 224 of those.")] = None,
    json: Json = False,
) -> None:
    """What a network costs, layer by layer: bits, parameters, operations, bytes in float and packed."""
    from .cli_support import print_json
    from .report.load import load_for_summary
    from .report.summary import format_summary, summarize

    network, shape = load_for_summary(
        what, model=model, method=method, skip=skip, classes=classes, image_size=image_size
    )
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


cli_sweep.add_commands(app)
cli_deploy.add_commands(app)
cli_evidence.add_commands(app)


if __name__ == "__main__":
    main()
