"""The README.md of a network on the hub: what it is, how good it is, and under which conditions that was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .deploy.format import PackedModel

_CONDITIONS = {"fastslow": "fastslow", "torch": "PyTorch", "device": "Device", "commit": "Commit"}


def model_card(packed: PackedModel, repo_id: str, licence: str | None = None, latent_weights: bool = False) -> str:
    """Front matter for the hub's search, then the page. Everything is taken from the packed file itself."""
    result = packed.info.result
    config = _mapping(result.get("config"))
    return "\n".join(
        [
            *("---", *_front_matter(packed, repo_id, licence), "---", ""),
            f"# {repo_id.rpartition('/')[2]}",
            "",
            _sentence(packed, config),
            "",
            *_table(packed, result, config),
            "",
            *_usage(packed, repo_id, latent_weights),
        ]
    )


def _front_matter(packed: PackedModel, repo_id: str, licence: str | None) -> list[str]:
    """YAML, of which JSON is a part: no text in it can break out of its quotes."""
    result = packed.info.result
    config = _mapping(result.get("config"))
    bits = config.get("bits", 1)
    tags = [
        "binary-neural-network" if bits == 1 else "quantized",
        f"{bits}-bit",
        *([str(config["method"])] if config.get("method") else []),
    ]
    lines = ["library_name: fastslow", f"tags: {json.dumps(tags)}"]
    if licence is not None:
        lines.append(f"license: {json.dumps(licence)}")
    if _is_number(result.get("test_accuracy")):
        dataset = str(config.get("data", "unknown")).rpartition(":")[2]
        entry = {
            "task": {"type": "image-classification"},
            "dataset": {"type": dataset, "name": dataset},
            "metrics": [
                {"type": "accuracy", "name": result.get("metric", "accuracy"), "value": result["test_accuracy"]}
            ],
        }
        name = repo_id.rpartition("/")[2]
        lines += ["pipeline_tag: image-classification", "model-index:"]
        lines.append(f"- {json.dumps({'name': name, 'results': [entry]})}")
    return lines


def _sentence(packed: PackedModel, config: Mapping[str, Any]) -> str:
    what = config.get("model", "A network")
    images = f" on {config['data']}" if config.get("data") else ""
    trained = f", trained{images} with the method `{config['method']}`" if config.get("method") else ""
    bits = f"{config.get('bits', 1)}-bit"
    return f"{what} with {bits} weights{trained}, as one file of {packed.file_bytes} bytes that runs without PyTorch."


def _table(packed: PackedModel, result: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    rows: list[tuple[str, Any]] = []
    if _is_number(result.get("test_accuracy")):
        images = f" ({result['n_test']} images)" if "n_test" in result else ""
        rows.append((str(result.get("metric", "accuracy")).capitalize() + images, f"{result['test_accuracy']:.2f} %"))
    if _is_number(result.get("best_test_accuracy")):
        rows.append(("Best epoch on the same images, for comparison only", f"{result['best_test_accuracy']:.2f} %"))
    rows += [("Method", config.get("method")), ("Fields of the method", config.get("method_fields") or None)]
    rows += [(name.capitalize(), config.get(name)) for name in ("optimizer", "lr", "schedule", "epochs", "seed")]
    rows += [("Batch size", config.get("batch_size")), ("Binarizer", packed.info.binarizer or None)]
    if _is_number(result.get("seconds")):
        rows.append(("Training time", f"{result['seconds']:.0f} s"))
    conditions = _mapping(result.get("conditions"))
    rows += [(title, conditions.get(key)) for key, title in _CONDITIONS.items()]
    rows.append(("Key of the run", result.get("key")))
    known = [(title, _cell(value)) for title, value in rows if value is not None]
    if not _is_number(result.get("test_accuracy")):
        known.insert(0, ("Accuracy", "not recorded"))
    return ["| | |", "| :--- | :--- |", *(f"| {title} | {value} |" for title, value in known)]


def _mapping(value: Any) -> Mapping[str, Any]:
    """``result`` is free: what isn't as `fastslow pack` writes it is left out."""
    return value if isinstance(value, Mapping) else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: Any) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


def _usage(packed: PackedModel, repo_id: str, latent_weights: bool) -> list[str]:
    lines = [
        "```python",
        "import fastslow as fs",
        "",
        f'engine = fs.from_pretrained("{repo_id}")   # numpy and native kernels: no PyTorch',
        f"logits = engine(images)   # float32 (n, {', '.join(map(str, packed.graph.input_shape))})",
    ]
    if latent_weights:
        lines.append(f'model = fs.from_pretrained("{repo_id}", torch=True)   # the network in PyTorch, to train on')
    lines += ["```", ""]
    if packed.info.classes:
        lines += [f"Classes: {', '.join(_cell(name) for name in packed.info.classes)}.", ""]
    return lines
