"""Float weights on disk: safetensors files, loaded strictly."""

from __future__ import annotations

from pathlib import Path

import safetensors
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from .convert import binary_layers, plain_name, unwrap
from .files import write_atomically

_NAMES = "fastslow.names"  # in the metadata of files that are written here: keys are the model's own


def load_weights(path: str | Path) -> dict[str, Tensor]:
    """A ``state_dict`` from a safetensors file, ready for ``model.load_state_dict``."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no weights at {path}; give the path of a .safetensors file")
    try:
        weights = load_file(path)
    except safetensors.SafetensorError as error:
        raise ValueError(
            f"{path} is no readable safetensors file ({error}); it may be truncated: copy it again"
        ) from error
    return weights if _NAMES in _metadata(path) else _without_wrappers(weights)


def _without_wrappers(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of a file that wasn't written here, and may be that of a compiled or a parallel model."""
    plain = {".".join(part for part in key.split(".") if part != "_orig_mod"): key for key in weights}
    while plain and all(key.startswith("module.") for key in plain):
        plain = {key.removeprefix("module."): old for key, old in plain.items()}
    return {key: weights[old] for key, old in plain.items()}


def read_metadata(path: str | Path) -> dict[str, str]:
    """What was written beside the weights of a safetensors file."""
    return {key: value for key, value in _metadata(path).items() if key != _NAMES}


def _metadata(path: str | Path) -> dict[str, str]:
    with safetensors.safe_open(path, framework="numpy") as file:
        return file.metadata() or {}


def save_weights(model: nn.Module, path: str | Path, metadata: dict[str, str] | None = None) -> None:
    """Write a model's ``state_dict`` (parameters and buffers, latent float weights) as one safetensors file.

    Examples:
        >>> from torch import nn
        >>> import fastslow as fs
        >>> fs.save_weights(nn.Linear(8, 4), "linear.safetensors", {"origin": "a doctest"})
        >>> {name: tuple(weight.shape) for name, weight in sorted(fs.load_weights("linear.safetensors").items())}
        {'bias': (4,), 'weight': (4, 8)}
    """
    model = unwrap(model)
    copies = {
        plain_name(model, key): value.detach().cpu().contiguous().clone() for key, value in model.state_dict().items()
    }
    write_atomically(Path(path), to_bytes(copies, {_NAMES: "plain", **(metadata or {})}))


def load_strictly(model: nn.Module, weights: dict[str, Tensor], origin: str | Path) -> None:
    """``load_state_dict(strict=True)`` whose error is one sentence."""
    model = unwrap(model)
    state = model.state_dict()
    names = {plain_name(model, key): key for key in state}
    wanted = {name: state[key] for name, key in names.items()}
    own = {f"{name}.{key}" for name, layer in binary_layers(model).items() for key in layer._own}
    missing = sorted(wanted.keys() - weights.keys() - own)  # a method's own parameters are made from the weights
    surplus = sorted(weights.keys() - wanted.keys())
    shapes = [key for key in wanted.keys() & weights.keys() if wanted[key].shape != weights[key].shape]
    problems = []
    if missing:
        problems.append(f"{len(missing)} keys are missing ({', '.join(missing[:3])})")
    if surplus:
        problems.append(f"{len(surplus)} keys are not the model's ({', '.join(surplus[:3])})")
    for key in sorted(shapes)[:3]:
        problems.append(f"{key} is {tuple(weights[key].shape)}, the model needs {tuple(wanted[key].shape)}")
    if problems:
        raise ValueError(f"{origin} doesn't fit this {type(model).__name__}: {'; '.join(problems)}")
    model.load_state_dict({names[name]: value for name, value in weights.items()})
