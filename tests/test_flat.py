"""Many tensors as one vector: the same whatever way they lie in memory."""

from __future__ import annotations

import pytest
import torch

from fastslow.methods.flat import join, write


def tensors(layout: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = [(4, 3, 3, 3), (5, 2, 1, 1), (1, 1, 3, 3), (6, 7), (3, 2, 5), (2, 1, 3, 3), (9,)]
    made = [torch.randn(shape) for shape in shapes]
    if layout == "channels last":
        return [t.to(memory_format=torch.channels_last) if t.dim() == 4 else t for t in made]
    if layout == "with gaps":
        return [torch.stack([t, t], -1)[..., 0] for t in made]
    return [t.transpose(0, -1).contiguous().transpose(0, -1) for t in made] if layout == "turned" else made


@pytest.mark.parametrize("layout", ["natural", "channels last", "turned", "with gaps"])
def test_layouts_change_nothing(layout: str) -> None:
    natural = torch.cat([t.reshape(-1) for t in tensors("natural")])
    mine = tensors(layout)
    assert torch.equal(join(mine), natural)
    strides = [t.stride() for t in mine]
    write(mine, natural + 1)
    assert torch.equal(torch.cat([t.reshape(-1) for t in mine]), natural + 1)
    assert [t.stride() for t in mine] == strides


def test_one_tensor_and_other_types() -> None:
    x = torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last)
    assert torch.equal(join([x]), x.reshape(-1))
    half = torch.zeros_like(x, dtype=torch.bfloat16)
    write([half], x.reshape(-1))
    assert torch.equal(half, x.to(torch.bfloat16))
