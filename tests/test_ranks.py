"""The training loop on several ranks: shares, agreement, what the first one writes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tiny
from fastslow.training.finite import TrainingDiverged
from fastslow.training.interrupt import Interrupted
from fastslow.training.loop import Trainer
from fastslow.training.ranks import ALONE, Ranks, joint_batch_norm, own_device, restarted, world
from fastslow.training.run import RunFolder
from fastslow.training.sinks import Silent
from fastslow.weights import save_weights
from together import together

METHODS = ["ste", "fsg-weight"]
RECIPE = {"distill": 0.5, "ema": 0.9, "damping": 1.0}


class StopAt(Silent):
    """Sends this process a signal when a step is done."""

    def __init__(self, done: int) -> None:
        self.at = done

    def step(self, done: int, loss: float | None) -> None:
        if done == self.at:
            os.kill(os.getpid(), signal.SIGTERM)


def _trainer(rank: int, folder: str | None, method: str = "ste", **fields: Any) -> Trainer:
    sink = fields.pop("sink", None)
    config = tiny.config(method, **fields)
    run = RunFolder.create(folder, config) if folder is not None and rank == 0 else None
    return Trainer(config, tiny.dataset(), run=run, sink=sink, ranks=Ranks(rank, 2))


def _scenarios(rank: int, folder: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for method in METHODS:
        for batch_size in (8, 7):  # also in shares of 3 and 4
            trainer = _trainer(rank, None, method, model="bare", batch_size=batch_size)
            result = trainer.fit()
            found[f"{method} {batch_size}"] = {
                "weights": trainer.model.state_dict(),
                "rows": trainer.rows,
                "processes": result["conditions"]["processes"],
            }
    recipe = {**RECIPE, "weights": f"{folder}/float.safetensors"}
    trainer = _trainer(rank, None, model="bare", **recipe)
    trainer.fit()
    found["recipe"] = {"weights": trainer._shown.state_dict()["average"], "rows": trainer.rows}
    trainer = _trainer(rank, None, reestimate=3, ema=0.9)
    trainer.fit()  # all ranks take part in the last statistics, of their own shares
    assert int(trainer._shown.state_dict()["statistics"]["bn.num_batches_tracked"]) == 3
    # With dropout and BatchNorm: a signal to the second rank alone, in the middle of an epoch.
    whole = _trainer(rank, None, "fsg-weight")
    whole.fit()
    stopped = _trainer(rank, f"{folder}/run", "fsg-weight", sink=StopAt(7) if rank == 1 else None)
    with pytest.raises(Interrupted, match="stopped by SIGTERM after step 7"):
        stopped.fit()
    continued = Trainer(stopped.config, tiny.dataset(), run=stopped.run, ranks=stopped.ranks)
    continued.resume()
    continued.fit()
    # BatchNorm's statistics are each rank's own until the next forward pass.
    states = [{k: v for k, v in t.model.state_dict().items() if "running" not in k} for t in (whole, continued)]
    tiny.assert_same_state(*states)
    tiny.assert_same_state(whole.optimizer.state_dict(), continued.optimizer.state_dict())
    tiny.assert_same_state(whole.rows, continued.rows)
    found["interrupted"] = {"weights": states[0]}
    # A loss that isn't finite on one rank stops both before it reaches a weight.
    broken = _trainer(rank, None)
    if rank == 1:
        nn.Module.register_forward_hook(broken._network, lambda module, inputs, out: out * float("nan"))
    with pytest.raises(TrainingDiverged, match="the loss is nan at step 1"):
        broken.fit()
    with pytest.raises(ValueError, match="a batch of 1 images can't be shared by 2 processes"):
        _trainer(rank, None, batch_size=1)
    with pytest.raises(ValueError, match="--metrics"):
        _trainer(rank, None, metrics=True)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("together")
    torch.manual_seed(5)
    save_weights(tiny.bare(), folder / "float.safetensors")
    return folder


@pytest.fixture(scope="module")
def ranks(folder) -> list[dict[str, Any]]:
    return together(_scenarios, 2, folder, str(folder))


def test_ranks_agree_bit_for_bit(ranks):
    for name, found in ranks[0].items():
        tiny.assert_same_state(dict(found["weights"]), dict(ranks[1][name]["weights"]), name)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("batch_size", [8, 7])
def test_ranks_equal_one_process(ranks, method, batch_size):
    found = ranks[0][f"{method} {batch_size}"]
    alone = tiny.trainer(tiny.config(method, model="bare", batch_size=batch_size))
    alone.fit()
    assert found["processes"] == 2
    for key, value in alone.model.state_dict().items():
        torch.testing.assert_close(found["weights"][key], value, rtol=1e-4, atol=1e-5)
    for row, expected in zip(found["rows"], alone.rows, strict=True):
        assert row["train_accuracy"] == expected["train_accuracy"]
        assert row["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-5)
        assert row["test_accuracy"] == expected["test_accuracy"]


def test_a_recipe_on_ranks_equals_one_process(ranks, folder):
    alone = tiny.trainer(tiny.config(model="bare", weights=str(folder / "float.safetensors"), **RECIPE))
    alone.fit()
    for key, value in alone._shown.state_dict()["average"].items():
        torch.testing.assert_close(ranks[0]["recipe"]["weights"][key], value, rtol=1e-4, atol=1e-5)
    for row, expected in zip(ranks[0]["recipe"]["rows"], alone.rows, strict=True):
        assert row["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-5)
        assert row["test_accuracy"] == expected["test_accuracy"]


def test_the_first_rank_has_written_a_whole_run(ranks, folder):
    run = RunFolder.open(folder / "run")
    assert [row["epoch"] for row in run.metrics()] == [1, 2, 3]
    assert run.result()["conditions"]["processes"] == 2
    # Its checkpoints also open in one process.
    state = run.checkpoints.load_newest()[1]
    alone = tiny.trainer(run.config())
    alone.load_state_dict(state)
    assert alone.done == 15


def test_shares_follow_each_other_without_a_gap():
    for count in (1, 5, 8, 128):
        for size in (1, 2, 3, 7):
            parts = [Ranks(rank, size).share(count) for rank in range(size)]
            assert [i for part in parts for i in range(count)[part]] == list(range(count))
            lengths = [part.stop - part.start for part in parts]
            assert max(lengths) - min(lengths) <= 1


def test_every_rank_draws_random_numbers_of_its_own():
    assert ALONE.seed(5) == 5
    assert len({Ranks(rank, 8).seed(2**63 - 1) for rank in range(8)}) == 8


def test_what_torchrun_says(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    assert world() == ALONE
    assert not restarted()
    values = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert world() == Ranks(5, 8, 1)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert world() == ALONE
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert restarted()


def test_a_gpu_each(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    cuda, second, third = torch.device("cuda"), Ranks(5, 8, 1), Ranks(6, 8, 2)
    assert own_device(second, cuda) == torch.device("cuda:1")
    assert own_device(third, torch.device("cpu")) == torch.device("cpu")
    assert own_device(ALONE, torch.device("cuda:1")) == torch.device("cuda:1")
    with pytest.raises(ValueError, match=r"more processes than this machine has GPUs \(2\)"):
        own_device(third, cuda)
    with pytest.raises(ValueError, match="--device cuda:1: torchrun gives each process its own GPU"):
        own_device(second, torch.device("cuda:1"))


def test_batch_norm_becomes_joint_on_gpus():
    model = tiny.Tiny()
    keys = list(model.state_dict())
    assert joint_batch_norm(model, ALONE, torch.device("cuda")) is model
    assert type(joint_batch_norm(model, Ranks(0, 2), torch.device("cpu")).bn) is nn.BatchNorm2d
    joint = joint_batch_norm(model, Ranks(0, 2), torch.device("cuda"))
    assert isinstance(joint.bn, nn.SyncBatchNorm)
    assert list(joint.state_dict()) == keys
