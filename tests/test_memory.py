"""Out of memory ends in a sentence that says which setting to lower."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor

import tiny
from fastslow import cli, models
from fastslow.training.loop import Trainer
from fastslow.training.memory import OutOfMemory, advice, explained, give_back, is_out_of_memory
from fastslow.training.run import RunFolder


class Greedy(tiny.Tiny):
    """Asks for an eighth of an exbibyte in its forward pass, which the allocator really refuses."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.empty(1 << 55).sum()


if "greedy" not in models.list_models():
    models._MODELS.add("greedy", Greedy)


def greedy(run=None, **fields):
    config = tiny.config("fsg", **fields)
    config = type(config).from_dict({**config.to_dict(), "model": "greedy"})
    return Trainer(config, tiny.dataset(), run=None if run is None else RunFolder.create(run, config))


def test_a_step_that_needs_too_much(tmp_path):
    with pytest.raises(OutOfMemory) as error:
        greedy(tmp_path / "run").fit()
    assert str(error.value) == (
        "out of memory on cpu (134217728.00 GiB more were asked for); lower --batch-size (now 8), --set length=... "
        "(now 3), --set expand=... (now 4), --set d_state=... (now 2), --set slow_hidden=... (now 4), --set "
        "fast_hidden=... (now 5), or raise --set horizon_tol=..., with which the slow-net reads less of the history, "
        f"or use --precision bf16, or free memory and continue with `fastslow resume {tmp_path / 'run'}`"
    )


@pytest.mark.parametrize("field", ["length", "fast_hidden", "slow_hidden", "expand"])
def test_a_method_that_needs_too_much_on_the_command_line(tmp_path, monkeypatch, capsys, field):
    method = ["--method", "fsg-lstm" if field == "slow_hidden" else "fsg", "--set", f"{field}={1 << 45}"]
    command = ["train", "--model", "resnet8", "--data", "mini", *method, "--run", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["fastslow", *command])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("fastslow: out of memory on cpu")
    assert f"--set {field}=... (now {1 << 45})" in last
    assert not (tmp_path / "run").exists()


def test_what_is_advised():
    cpu = torch.device("cpu")
    assert advice(tiny.config(), cpu) == "out of memory on cpu; lower --batch-size (now 8), or use --precision bf16"
    assert advice(tiny.config(None, precision="bf16"), cpu) == "out of memory on cpu; lower --batch-size (now 8)"
    weight = advice(tiny.config("fsg-weight"), cpu)
    assert "length" in weight
    assert "horizon_tol" not in weight
    message = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 139.80 GiB"
    with (
        pytest.raises(OutOfMemory, match=r"on cuda \(2.50 GiB more were asked for\)"),
        explained(tiny.config(), torch.device("cuda")),
    ):
        raise torch.OutOfMemoryError(message)


def test_other_errors_stay_what_they_are():
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert is_out_of_memory(MemoryError())
    with pytest.raises(RuntimeError, match=r"^other$"), explained(tiny.config(), torch.device("cpu")):
        raise RuntimeError("other")


def test_freed_memory_can_be_handed_back():
    give_back()  # nothing to see but that it works, here and where the C library has no such thing
