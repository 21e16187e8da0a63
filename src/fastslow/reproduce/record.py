"""``results/``: one small JSON a finished run. What is there is evidence, and never written twice."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from ..files import write_atomically
from ..training.build import weights_file
from ..training.checkpoint import CheckpointError
from ..training.conditions import Sessions, conditions
from ..training.config import NONE, RunConfig
from ..training.named_weights import file_digest
from ..training.run import WEIGHTS, RunFolder

HISTOGRAM_BINS = 40
RETIRED_FOLDER = "retired"  # runs whose code is gone: a config there may look like that of a run of today
REPEATED_FOLDER = "repeated"  # runs that were done a second time: the first one counts


def record_path(results: Path, place: Path) -> Path:
    return results / f"{place}.json"


def finished_starts(results: Path) -> dict[str, set[str]]:
    """Keys of the runs that ``results`` holds, in whatever folder below it, and the weights each was started from.

    Retired and repeated runs are left out, see :func:`read_records`.

    Keys are computed from their configs, not read from their names: a config gets fields as the library grows, and a
    run recorded before has their defaults. Weights are told by their SHA-256, since a name may mean another file on
    another machine.
    """
    found: dict[str, set[str]] = {}
    for _, record in read_records(results):
        key = RunConfig.from_dict(record["config"]).key
        found.setdefault(key, set()).add(told_by(record["conditions"]))
    return found


def told_by(digests: Mapping[str, Any]) -> str:
    """What tells runs of one config apart: the contents of the weights files that it names."""
    return "".join(digests.get(name, "") for name in ("teacher_sha256", "weights_sha256"))


def read_records(results: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """All recorded runs in a fixed order, without the retired and the repeated ones."""
    for path in sorted(results.rglob("*-seed*-*.json")):
        if path.name.startswith(".") or path.relative_to(results).parts[0] in (RETIRED_FOLDER, REPEATED_FOLDER):
            continue
        try:
            record = json.loads(path.read_text())
            RunConfig.from_dict(record["config"])
            told_by(record["conditions"])
        except (ValueError, LookupError, TypeError, AttributeError, OSError, RecursionError) as error:
            raise ValueError(f"{path} is no result of a run ({error}); move it out of {results}") from error
        yield path, record


def write_record(path: Path, result: dict[str, Any]) -> None:
    """One line a field, so that a difference between two files can be read."""
    lines = [f" {json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in result.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def finished_record(run: RunFolder, noted: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a finished run as it is kept: all conditions, the curve as columns."""
    result = run.result()
    assert result is not None
    record = {**result, "curve": columns(result["curve"])}
    record["conditions"] = {**result["conditions"], **_noted_conditions(run, noted)}
    if run.config().method is None:  # what starts from these weights names them so
        record["written_sha256"] = file_digest(run.path / WEIGHTS)
    elif run.config().seed == 0:  # one seed is enough for a picture
        record["latent_weights"] = latent_histograms(run.path / WEIGHTS)
    return record


def failed_record(run: RunFolder, device: str, sentence: str, noted: Mapping[str, Any]) -> dict[str, Any]:
    """A run that diverged is a result too: repeating it would only hide it."""
    config = run.config()
    return {
        "failed": sentence,
        "config": config.to_dict(),
        "key": config.key,
        "conditions": {**_conditions_of(run, device), **_noted_conditions(run, noted)},
        "curve": columns(run.metrics()),
    }


def _conditions_of(run: RunFolder, device: str) -> dict[str, Any]:
    """Those that the run's last checkpoint tells; without one, this process's, which started the run's."""
    try:
        sessions = run.checkpoints.load_newest()[1].get("sessions") if run.checkpoints.paths() else None
    except CheckpointError:  # that it diverged is still worth recording
        sessions = None
    return Sessions.told_by(sessions).conditions() if sessions else conditions(_torch_device(device))


def _noted_conditions(run: RunFolder, noted: Mapping[str, Any]) -> dict[str, Any]:
    """Of the weights as they were when the run began, which may not be those that their names mean now."""
    start = noted["start"] if "start" in noted else start_of(run.config())
    return {**start, "jobs": noted.get("jobs", 1)}


def columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Rows of an epoch each as one list a quantity; six digits say more than a run repeats."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [_short(row.get(name)) for row in rows] for name in names}


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def latent_histograms(path: Path) -> dict[str, list[int]]:
    """Counts of ``tanh(W) / max|tanh W|`` in equal bins from -1 to 1, for each convolution and linear layer."""
    import numpy as np

    found = {}
    for name, weight in sorted(load_file(path).items()):
        if name.endswith(".weight") and weight.ndim >= 2:
            squashed = np.tanh(weight.astype(np.float64))
            squashed /= max(float(np.abs(squashed).max()), 1e-12)
            counts, _ = np.histogram(squashed, HISTOGRAM_BINS, (-1.0, 1.0))
            found[name.removesuffix(".weight")] = counts.tolist()
    return found


def start_of(config: RunConfig) -> dict[str, str]:
    """The weights files of a config by content, as they stand among a record's conditions."""
    return {f"{use}_sha256": file_digest(path) for use, path in weights_files(config).items()}


def weights_files(config: RunConfig) -> dict[str, Path]:
    """The float weights that a run starts from, and those of another network that teaches it."""
    files = {} if config.weights == NONE else {"weights": weights_file(config)}
    return {**files, "teacher": weights_file(config.of_teacher)} if config.teacher else files


def _torch_device(name: str) -> Any:
    from ..cli_support import choose_device

    return choose_device(name)
