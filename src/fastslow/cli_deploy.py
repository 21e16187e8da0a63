"""The commands that ship a network: ``fastslow pack``, ``export``, ``bench``, ``push``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object last.")]


def add_commands(app: typer.Typer) -> None:
    """Make them known to the command line."""
    app.command()(pack)
    app.command()(export)
    app.command()(bench)
    app.command()(push)


def pack(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    out: Annotated[Path, typer.Argument(help="The file to write, for example model.safetensors.")],
    dtype: Annotated[str, typer.Option(help="Of what isn't a bit: float32 or float16.")] = "float32",
    json: Json = False,
) -> None:
    """Write a trained network as one small file, one bit a weight, that runs without torch."""
    from .cli_support import print_json
    from .shipping import pack_run

    packed = pack_run(run, out, dtype=dtype)
    if json:
        sizes = {"header_bytes": packed.header_bytes, "payload_bytes": packed.payload_bytes}
        print_json(
            {"path": str(packed.path), **sizes, "file_bytes": packed.file_bytes, "float_bytes": packed.float_bytes}
        )
    else:
        print(packed)


def export(
    source: Annotated[Path, typer.Argument(help="Folder of a run, a packed file, or 'shipped'.")],
    out: Annotated[Path, typer.Argument(help="The file to write, for example model.onnx.")],
    json: Json = False,
) -> None:
    """Write a trained network as ONNX: standard operators, its bits still packed."""
    import tempfile

    from .cli_support import packed_file, print_json
    from .deploy.onnx import export as to_file
    from .shipping import pack_run

    source = packed_file(source)
    if source.is_dir():
        with tempfile.TemporaryDirectory() as folder:
            size = to_file(pack_run(source, Path(folder) / "packed.safetensors").path, out)
    else:
        size = to_file(source, out)
    if json:
        print_json({"path": str(out), "bytes": size})
    else:
        print(f"{out}: {size} bytes")


def bench(
    file: Annotated[Path, typer.Argument(help="A packed file, or 'shipped': the one that comes with the package.")],
    seconds: Annotated[float, typer.Option(help="Time for each contestant in each setting.")] = 1.0,
    compiled: Annotated[bool, typer.Option(help="Also torch.compile, which takes a minute to build.")] = True,
    json: Json = False,
) -> None:
    """Measure a packed network against float torch and onnxruntime, side by side on this machine."""
    from .cli_support import packed_file, print_json
    from .deploy.bench import bench as measure
    from .deploy.bench import format_report

    if not seconds > 0:
        raise ValueError(f"--seconds {seconds}: give a time above 0")
    report = measure(packed_file(file), seconds=seconds, compiled=compiled)
    if json:
        print_json(asdict(report))
    else:
        print(format_report(report))


def push(
    source: Annotated[Path, typer.Argument(help="Folder of a finished run, or a packed file.")],
    repo: Annotated[str, typer.Argument(help="Its name on the hub: user/name.")],
    private: Annotated[bool, typer.Option(help="Make a new repository private.")] = False,
    revision: Annotated[str | None, typer.Option(help="Branch to commit to (default: main).")] = None,
    licence: Annotated[str | None, typer.Option(help="Of the model, as the hub spells it: mit.")] = None,
    message: Annotated[str | None, typer.Option(help="Of the commit.")] = None,
    json: Json = False,
) -> None:
    """Put a trained network on the Hugging Face hub, with a model card; log in first: `hf auth login`."""
    from .cli_support import print_json
    from .hub import push_to_hub

    address = push_to_hub(source, repo, private=private, revision=revision, message=message, licence=licence)
    if json:
        print_json({"repo": repo, "commit": address})
    else:
        print(address)
