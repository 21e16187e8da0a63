"""tools/meta_train.py: evolution strategies that find a minimum, copies that begin anew, a gate that fsg-plus takes."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
import torch

import fastslow as fs
from fastslow.cli_support import parse_fields
from scripts import load_script

meta = load_script("tools/meta_train.py")

SMALL = ["--data", "mini", "--images", "64", "--held-out", "32", "--batch", "16", "--tasks", "2", "--task-steps", "8"]
SMALL += ["--window", "2", "--precision", "float32", "--seed", "4"]
ZEROS = (0.0,) * 6


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_the_strategy_finds_a_minimum_through_a_state():
    """A loss that only shows what windows long ago did: without memory of the perturbations there is no signal."""
    target = torch.tensor([1.0, -2.0])
    search = meta.EvolutionStrategy(torch.zeros(2), pairs=16, sigma=0.1, lr=0.05, seed=0)
    states = torch.zeros(16, 2, 2)  # what each copy has gathered, of which the loss sees what is one window old
    for update in range(400):
        if update % 4 == 0:
            states.zero_()
            for pair in range(16):
                search.forget(pair)
        noise = search.ask()
        losses = (states / 4 - target).square().sum(-1)
        states += torch.stack([search.theta + noise, search.theta - noise], 1)
        search.tell(losses[:, 0] - losses[:, 1])
    best = 12 / 7 * target  # least squares over 0, 1/4, 2/4 and 3/4 of theta, which is what the four losses see
    assert float((search.theta - best).norm()) < 0.2 * float(best.norm())


def run(path: Path, *more: str) -> dict:
    meta.main([*SMALL, "--out", str(path), *more])
    return json.loads(path.read_text())


def test_what_it_finds_is_what_fsg_plus_takes(tmp_path, capsys):
    record = run(tmp_path / "a.json", "--updates", "5", "--fresh", "1")
    printed = capsys.readouterr().out.splitlines()[-1]
    again = run(tmp_path / "b.json", "--updates", "5", "--fresh", "0")
    assert again["history"] == record["history"]
    assert len(record["history"]) == 5, "more than a task has: one of them began anew"
    assert any(record["theta"])
    mean = torch.tensor([entry["theta"] for entry in record["history"][2:]]).mean(0)
    torch.testing.assert_close(torch.tensor(record["theta"]), mean, rtol=0, atol=1e-4)
    assert record["fresh"][0].keys() == {"seed", "lr", "gate", "no gate", "ste"}
    assert record["options"]["sigma"] == 0.3
    assert again["comparison"] == {}
    assert printed.startswith("--set gate='[")
    given = printed.removeprefix("--set ").replace("'", "")
    fields = parse_fields("fsg-plus", [given])
    assert fs.get_method("fsg-plus", **fields).gate == tuple(record["theta"]) == tuple(ast.literal_eval(given[5:]))


def test_before_the_first_update_it_is_the_method_without_a_gate(tmp_path, capsys):
    (row,) = run(tmp_path / "c.json", "--updates", "0", "--fresh", "1")["fresh"]
    assert row["gate"] == row["no gate"]
    assert row["ste"].keys() == {"held-out loss", "held-out accuracy", "training loss"}
    capsys.readouterr()


def options(**changes) -> meta.argparse.Namespace:
    given = {"model": "resnet8", "data": "mini", "images": 64, "held_out": 32, "batch": 16, "task_steps": 8}
    return meta.argparse.Namespace(**given | {"strength": 0.5, "precision": "float32", "window": 2} | changes)


def test_a_copy_begins_anew():
    config, dataset = meta.task(options(), fs.data.load("mini", holdout=400), 0, gate=ZEROS)
    copy = meta.Copy(config, dataset, torch.device("cpu"))
    before = {key: value.clone() for key, value in copy._tensors().items()}
    (layer, *_) = fs.binary_layers(copy.trainer.model).values()
    for _ in range(4):
        copy.step()
    assert copy.share_done == float(layer._progress) == 0.5
    assert copy.trainer.model.training
    loss = float(copy.held_out_loss())
    assert loss == pytest.approx(meta_loss(copy), rel=1e-5)
    assert copy.trainer.model.training
    copy.begin()
    after = copy._tensors()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert all(not value.any() for key, value in after.items() if key not in before)
    assert copy.trainer.done == copy.optimizer.steps == copy.share_done == float(layer._progress) == 0
    for _ in range(8):
        copy.step()
    assert copy.share_done == float(layer._progress) == 1
    assert config.learning_rate(8, 4) == pytest.approx(0), "the cosine ends where the progress does"


def meta_loss(copy) -> float:
    return fs.training.evaluate.evaluate(copy.trainer.model, copy.trainer.test_batches).loss


def test_a_task_is_judged_by_images_that_it_does_not_train_on():
    whole = fs.data.load("mini", holdout=400)
    _, dataset = meta.task(options(), whole, 0)
    seen = {image.numpy().tobytes() for image in dataset.train.images}
    judged = {image.numpy().tobytes() for image in dataset.test.images}
    kept_back = {image.numpy().tobytes() for image in whole.test.images}
    assert (len(seen), len(judged)) == (64, 32)
    assert not seen & judged
    assert not (seen | judged) & kept_back
    with pytest.raises(SystemExit, match="together at most 3600"):
        meta.task(options(images=3590), whole, 0)
    with pytest.raises(SystemExit, match="a task has 8 steps"):
        meta.windows_of(options(window=3), 8)
