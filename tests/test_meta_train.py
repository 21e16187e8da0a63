"""tools/meta_train.py: evolution strategies that find a minimum, and networks that fsg-plus takes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch

import fastslow as fs
from fastslow.weights import load_weights

_spec = importlib.util.spec_from_file_location("meta_train", Path(__file__).parent.parent / "tools" / "meta_train.py")
assert _spec is not None
assert _spec.loader is not None
meta = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(meta)

SMALL = ["--data", "mini", "--images", "64", "--batch", "16", "--tasks", "2", "--task-steps", "8", "--window", "2"]
SMALL += ["--precision", "float32", "--hidden", "3", "--seed", "4"]


def test_the_strategy_finds_a_minimum_through_a_state():
    """A loss that only shows what windows long ago did: without memory of the perturbations there is no signal."""
    target = torch.tensor([1.0, -2.0, 0.5])
    free = torch.tensor([1.0, 1.0, 0.0])
    search = meta.EvolutionStrategy(torch.zeros(3), free, pairs=16, sigma=0.1, lr=0.05, seed=0)
    states = torch.zeros(16, 2, 3)  # what each copy has gathered, of which the loss sees what is one window old
    for update in range(400):
        if update % 4 == 0:
            states.zero_()
            for pair in range(16):
                search.forget(pair)
        noise = search.ask()
        losses = (states / 4 - target).square().sum(-1)
        states += torch.stack([search.theta + noise, search.theta - noise], 1)
        search.tell(losses[:, 0] - losses[:, 1])
    assert float(search.theta[2]) == 0
    best = 12 / 7 * target[:2]  # least squares over 0, 1/4, 2/4 and 3/4 of theta, which is what the four losses see
    assert float((search.theta[:2] - best).norm()) < 0.2 * float(best.norm())


def run(tmp_path: Path, name: str, *more: str) -> Path:
    meta.main([*SMALL, "--out", str(tmp_path / name), *more])
    return tmp_path / name


def test_what_it_writes_is_what_fsg_plus_reads(tmp_path, capsys):
    trained = run(tmp_path, "a.safetensors", "--updates", "3", "--fresh", "1", "--json", str(tmp_path / "a.json"))
    again = run(tmp_path, "b.safetensors", "--updates", "3", "--fresh", "0")
    weights, same = load_weights(trained), load_weights(again)
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    assert "slow.lre" not in weights
    assert trained.stat().st_size < 200_000
    record = json.loads((tmp_path / "a.json").read_text())
    assert record["fresh"][0].keys() == {"seed", "ste loss", "ste accuracy", "fsg-plus loss", "fsg-plus accuracy"}
    model = torch.nn.Sequential(torch.nn.Linear(4, 3))
    fs.binarize_(model, fs.get_method("fsg-plus", hidden=3, net_lr=0.0, nets=str(trained)))
    optimizer = fs.optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1), total_steps=2)
    assert torch.equal(optimizer.drivers[0].nets.parts(optimizer.drivers[0].tensors["theta"])["bias"], weights["bias"])
    capsys.readouterr()


def test_before_the_first_update_it_is_ste(tmp_path, capsys):
    run(tmp_path, "c.safetensors", "--updates", "0", "--fresh", "1", "--json", str(tmp_path / "c.json"))
    row = json.loads((tmp_path / "c.json").read_text())["fresh"][0]
    assert row["ste loss"] == row["fsg-plus loss"]
    assert row["ste accuracy"] == row["fsg-plus accuracy"]
    capsys.readouterr()


def test_a_copy_begins_anew(capsys):
    args = meta.argparse.Namespace(model="resnet8", data="mini", images=64, batch=16, task_steps=8, hidden=3)
    args.precision = "float32"
    copy = meta.Copy(*meta.task(args, meta.data_sets.load("mini", holdout=400), 0), torch.device("cpu"))
    before = {key: value.clone() for key, value in copy._tensors().items()}
    for _ in range(3):
        copy.step()
    assert copy.take_loss(3) > 0
    copy.begin(0)
    after = copy._tensors()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert all(not value.any() for key, value in after.items() if key not in before)
    assert copy.trainer.done == copy.trainer.optimizer.steps == 0


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
