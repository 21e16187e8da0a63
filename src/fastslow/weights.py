"""Float weights on disk: safetensors files, loaded strictly."""

from __future__ import annotations

from pathlib import Path

import safetensors
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from .convert import plain_name, unwrap


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
    return {plain_name(key): value for key, value in weights.items()}


def save_weights(model: nn.Module, path: str | Path, metadata: dict[str, str] | None = None) -> None:
    """Write a model's ``state_dict`` (parameters and buffers, latent float weights) as one safetensors file."""
    state = unwrap(model).state_dict()
    save_file({key: value.detach().cpu().contiguous().clone() for key, value in state.items()}, path, metadata)


def load_strictly(model: nn.Module, weights: dict[str, Tensor], origin: str | Path) -> None:
    """``load_state_dict(strict=True)`` whose error is one sentence."""
    wanted = unwrap(model).state_dict()
    missing, surplus = sorted(wanted.keys() - weights.keys()), sorted(weights.keys() - wanted.keys())
    shapes = [key for key in wanted.keys() & weights.keys() if wanted[key].shape != weights[key].shape]
    problems = []
    if missing:
        problems.append(f"{len(missing)} keys are missing ({', '.join(missing[:3])})")
    if surplus:
        problems.append(f"{len(surplus)} keys are not the model's ({', '.join(surplus[:3])})")
    for key in sorted(shapes)[:3]:
        problems.append(f"{key} is {tuple(weights[key].shape)}, the model needs {tuple(wanted[key].shape)}")
    if problems:
        raise ValueError(f"{origin} doesn't fit this {type(unwrap(model)).__name__}: {'; '.join(problems)}")
    unwrap(model).load_state_dict(weights)
