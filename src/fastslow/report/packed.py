"""A packed file where a trained network is expected, to be measured like one."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from ..deploy import Engine, load_packed
from ..training.config import RunConfig
from ..weights import read_metadata


class PackedNetwork(nn.Module):
    """The engine of a packed file as a module. It computes on the CPU, wherever its input lies."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine

    @property
    def outputs(self) -> int:
        return self.engine.output_shape[-1]

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(self.engine(x.float().cpu().numpy())).to(x.device)


def is_packed(path: Path) -> bool:
    """Whether a file says that it is one. What is wrong with it otherwise, loading it tells."""
    try:
        return path.is_file() and {"fastslow", "sha256"} <= read_metadata(path).keys()
    except (SafetensorError, OSError):
        return False


def load_packed_network(path: Path, *, model: str | None, data: str | None) -> tuple[nn.Module, RunConfig]:
    """The network, and a config of the data it was trained on or is to be measured on."""
    if model is not None:
        raise ValueError(f"--model {model}: {path} is a packed file, which knows its network; leave it out")
    engine = load_packed(path)
    trained = engine.info.result.get("config")
    name = data or (trained.get("data") if isinstance(trained, dict) else None)
    if not isinstance(name, str):
        raise ValueError(f"{path} doesn't say which data it was trained on; name it with --data")
    if data is None and ":" in name:  # the last part of a path that its maker had
        raise ValueError(f"{path} was trained on images of its maker's, {name}; name a folder with --data")
    size = engine.input_shape[-1] if ":" in name else 0  # images of a folder are as large as one wants
    return PackedNetwork(engine), RunConfig(method=None, data=name, image_size=size)
