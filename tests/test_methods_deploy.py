"""What each method trains is what the packed model computes, or packing is refused with the reason."""

from __future__ import annotations

import pytest
import torch

import fastslow as fs
from fastslow.deploy.engine import load_packed
from fastslow.deploy.errors import UnsupportedLayerError
from fastslow.deploy.pack import pack
from fastslow.methods import METHODS
from toy import toy_data, toy_net

CASES = [(name, activations) for name, info in METHODS.items() for activations in (None, *info.cls.activations)]
REFUSED = {("xnor", "sign"), ("dorefa", "clip"), ("rbnn", None), ("rbnn", "sign"), ("adabin", "sign")}


@pytest.mark.parametrize(("name", "activations"), CASES)
def test_packed_equals_torch_or_is_refused(name, activations, tmp_path):
    model = toy_net()
    fs.binarize_(model, name, skip=["stem", "out"], activations=activations)
    with torch.no_grad():
        for layer in fs.binary_layers(model).values():
            for own in layer._own:
                parameter = getattr(layer, own)
                if isinstance(parameter, torch.nn.Parameter):  # as if trained: scales of either sign, shifts, twins
                    parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))
        for norm in (model.norm0, model.norm1, model.norm2):  # no sums that are zero up to rounding, as at the start
            norm.bias.uniform_(-0.1, 0.1)
    model.eval()
    path = tmp_path / "model.safetensors"
    if (name, activations) in REFUSED:
        with pytest.raises(UnsupportedLayerError, match="conv can't be packed: "):
            pack(model, path, input_shape=(1, 6, 6))
        with pytest.raises(ValueError, match=f"a plain layer can't hold what {name} computes"):
            fs.freeze(model)
        return
    pack(model, path, input_shape=(1, 6, 6))
    x, _ = toy_data()
    with torch.no_grad():
        expected = model(x)
    packed = torch.from_numpy(load_packed(path, backend="numpy")(x.numpy()))
    torch.testing.assert_close(packed, expected, rtol=1e-4, atol=1e-4)
