"""Distillation, averaging, damping, re-estimation: each against its formula in a plain loop, and all through a stop."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fastslow as fs
import tiny
from fastslow import cli
from fastslow.methods import list_methods
from fastslow.report import load
from fastslow.reproduce.record import start_of
from fastslow.training.loop import Trainer
from fastslow.weights import load_weights, save_weights

ALL = {"distill": 0.7, "distill_temperature": 3.0, "ema": 0.8, "damping": 5.0, "reestimate": 7, "cutout": 3}


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> str:
    torch.manual_seed(9)
    path = tmp_path_factory.mktemp("float") / "float.safetensors"
    save_weights(tiny.Tiny(), path)
    return str(path)


def plain_loop(trainer: Trainer) -> tuple[dict[str, Any], dict[str, Any]]:
    """The run of a trainer written down once more, number by number; returns weights and their average."""
    config, batches = trainer.config, trainer.train_batches
    model = tiny.Tiny()
    model.load_state_dict(load_weights(config.weights))
    teacher = copy.deepcopy(model).eval()
    if config.teacher:
        teacher.load_state_dict(load_weights(config.teacher))
    fs.binarize_(model, "ste", skip=["c1", "fc"])
    optimizer = fs.optimizer(model, torch.optim.Adam(model.parameters()), total_steps=trainer.total_steps)
    average = {key: value.clone() for key, value in model.state_dict().items()}
    d, t = config.distill, config.distill_temperature
    torch.manual_seed(config.seed)
    for step in range(trainer.total_steps):
        x, y = next(iter(batches.epoch(*divmod(step, len(batches)))))
        lr = config.learning_rate(step, len(batches))
        optimizer.param_groups[0]["lr"] = lr
        model.train()
        logits = model(x)
        with torch.no_grad():
            p = F.softmax(teacher(x) / t, 1)
        q = F.softmax(logits / t, 1)
        loss = (1 - d) * F.cross_entropy(logits, y) + d * t * t * (p * (p.log() - q.log())).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ramp = (1 - math.cos(math.pi * step / trainer.total_steps)) / 2
        with torch.no_grad():
            for layer in fs.binary_layers(model).values():
                layer.weight -= lr * config.damping * ramp * (layer.weight - torch.where(layer.weight > 0, 1.0, -1.0))
        for key, value in model.state_dict().items():
            average[key] = (
                value.clone() if key.endswith("tracked") else config.ema * average[key] + (1 - config.ema) * value
            )
    return dict(model.state_dict()), average


@pytest.mark.parametrize(
    "names", [["distill", "distill_temperature"], ["ema"], ["damping"], list(ALL)[:4]], ids="-".join
)
def test_a_plain_loop_gives_the_same_numbers(names, weights, tmp_path):
    fields = {name: ALL[name] for name in names}
    trainer = tiny.trainer(tiny.config(weights=weights, **fields), tmp_path / "run")
    result = trainer.fit()
    trained, average = plain_loop(trainer)
    shown = average if "ema" in fields else trained
    for found, expected in (
        (dict(trainer.model.state_dict()), trained),
        (load_weights(tmp_path / "run" / "weights.safetensors"), shown),
    ):
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=1e-5, atol=1e-6)
    assert ("raw_test_accuracy" in result) == ("ema" in fields)
    assert result["metric"] == "test accuracy of the last epoch" + (
        ", weights averaged with 0.8" if "ema" in fields else ""
    )


def test_another_network_may_teach(weights, tmp_path):
    torch.manual_seed(10)
    other = tmp_path / "other.safetensors"
    save_weights(tiny.Tiny(), other)
    trainer = tiny.trainer(tiny.config(weights=weights, distill=0.7, teacher=str(other)))
    trainer.fit()
    trained, _ = plain_loop(trainer)
    for key, value in trained.items():
        torch.testing.assert_close(trainer.model.state_dict()[key], value, rtol=1e-5, atol=1e-6)
    assert set(start_of(trainer.config)) == {"weights_sha256", "teacher_sha256"}


def test_another_kind_of_network_teaches_one_from_scratch(tmp_path):
    file = tmp_path / "bare.safetensors"
    save_weights(tiny.bare(), file)
    config = tiny.config(distill=0.7, teacher=str(file), teacher_model="bare")
    taught, alone = tiny.trainer(config), tiny.trainer(tiny.config())
    assert taught.fit()["train_loss"] != alone.fit()["train_loss"]
    assert set(start_of(config)) == {"teacher_sha256"}
    with pytest.raises(ValueError, match=r"bare\.safetensors"):  # the file is the other network's
        tiny.trainer(tiny.config(distill=0.7, teacher=str(file)))


def test_the_averaged_network_is_the_one_reported(weights, tmp_path):
    plain = tiny.trainer(tiny.config(weights=weights))
    averaged = tiny.trainer(tiny.config(weights=weights, ema=0.8), tmp_path / "run")
    plain.fit()
    result = averaged.fit()
    for row, raw in zip(averaged.rows, plain.rows, strict=True):
        assert row["raw_test_loss"] == raw["test_loss"] != row["test_loss"]
        assert {**raw, "seconds": 0} == {
            **{key: row[key] for key in raw},
            "test_loss": row["raw_test_loss"],
            "test_accuracy": row["raw_test_accuracy"],
            "seconds": 0,
        }
    assert json.loads((tmp_path / "run" / "result.json").read_text())["raw_test_loss"] == result["raw_test_loss"]


def test_statistics_are_recomputed_at_the_end_and_change_nothing_else(weights, tmp_path):
    plain, anew = tiny.trainer(tiny.config(weights=weights)), tiny.config(weights=weights, reestimate=7)
    anew = tiny.trainer(anew, tmp_path / "run")
    plain.fit()
    result = anew.fit()
    state = anew.state_dict()
    assert state.pop("config")["reestimate"] == 7
    assert list(state.pop("statistics")) == ["bn.running_mean", "bn.running_var", "bn.num_batches_tracked"]
    last = state["rows"][-1]
    assert all("raw_test_loss" not in row for row in state["rows"][:-1])
    assert last["test_loss"] == result["test_loss"] != last["raw_test_loss"]
    last["test_loss"], last["test_accuracy"] = last.pop("raw_test_loss"), last.pop("raw_test_accuracy")
    for row in [*state["rows"], *plain.rows]:
        row["seconds"] = 0
    tiny.assert_same_state({k: v for k, v in plain.state_dict().items() if k != "config"}, state)
    # By hand: batches of the epochs that would have followed, seven of five an epoch.
    model = anew.model.eval()
    later = [x for epoch in (3, 4) for x, _ in anew.train_batches.epoch(epoch)][:7]
    with torch.no_grad():
        seen = [model.c2(F.relu(model.c1(x))) for x in later]
    kept = load_weights(tmp_path / "run" / "weights.safetensors")
    torch.testing.assert_close(kept["bn.running_mean"], torch.stack([h.mean((0, 2, 3)) for h in seen]).mean(0))
    torch.testing.assert_close(kept["bn.running_var"], torch.stack([h.var((0, 2, 3)) for h in seen]).mean(0))
    assert model.bn.momentum == 0.1


@pytest.mark.parametrize("method", ["ste", "fsg-weight", None])
def test_a_run_with_everything_resumes_bit_for_bit(method, weights, tmp_path):
    fields = {**ALL, "weights": weights, "damping": 5.0 if method else 0.0}
    whole = tiny.trainer(tiny.config(method, **fields), tmp_path / "whole")
    whole.fit()
    stopped = tiny.trainer(tiny.config(method, **fields), tmp_path / "run")
    tiny.step(stopped, 7)
    stopped.save()
    stopped.keep_images()
    unfinished, _ = load.load_trained(tmp_path / "run")
    tiny.assert_same_state(dict(unfinished.state_dict()), stopped._shown.state_dict()["average"])
    continued = tiny.resumed(tmp_path / "run")
    continued.fit()
    tiny.assert_same_state(whole.state_dict(), continued.state_dict())
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("whole", "run")]
    assert results[0]["test_loss"] == results[1]["test_loss"] == whole.rows[-1]["test_loss"]
    # A run that is finished again from its last checkpoint has the same weights: the statistics are in it.
    (tmp_path / "run" / "result.json").unlink()
    first = load_weights(tmp_path / "run" / "weights.safetensors")
    tiny.resumed(tmp_path / "run").fit()
    tiny.assert_same_state(first, load_weights(tmp_path / "run" / "weights.safetensors"))
    tiny.assert_same_state(first, load_weights(tmp_path / "whole" / "weights.safetensors"))


@pytest.mark.parametrize("method", [info.name for info in list_methods()])
def test_every_method_takes_them_all(method, weights):
    trainer = tiny.trainer(tiny.config(method, weights=weights, epochs=1, **ALL))
    result = trainer.fit()
    assert math.isfinite(result["test_loss"])
    assert result["test_loss"] != result["raw_test_loss"]


BAD = [
    ({"distill": 0.5}, "distill=0.5: the teacher is the float network that the run starts from, and weights is"),
    ({"distill": 0.5, "teacher": "none"}, 'teacher="none": a teacher needs weights'),
    ({"distill": 0.5, "weights": "w", "teacher_model": "tiny"}, "teacher_model='tiny': name its weights, too"),
    ({"teacher": "w"}, "teacher='w' teaches through distill, which is 0"),
    ({"damping": 0.5, "method": None}, "damping=0.5 acts on binary weights, and a float network has none"),
    ({"reestimate": 5, "model": "bare"}, "reestimate=5: the network has no BatchNorm statistics; leave it at 0"),
]


@pytest.mark.parametrize(("fields", "why"), BAD)
def test_what_a_recipe_lacks_is_said(fields, why):
    with pytest.raises(ValueError, match=why):
        tiny.trainer(tiny.config(**fields))


def test_the_command_line_says_it_before_it_loads_data(monkeypatch, capsys, tmp_path):
    words = ["train", "--method", "ste", "--distill", "0.5", "--weights", "none", "--data-root", str(tmp_path / "no")]
    monkeypatch.setattr("sys.argv", ["fastslow", *words])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert "name float weights, or a teacher's, or leave distill at 0" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["ste", "fsg-weight"])
def test_a_captured_step_does_the_same(method, weights):
    fields = {**ALL, "weights": weights}
    eager, graphed = (tiny.trainer(tiny.config(method, **fields), device="cuda") for _ in range(2))
    eager._graphed = None
    eager.fit()
    graphed.fit()
    assert graphed._graphed is not None
    assert graphed._graphed.graph is not None
    # A bit may turn a step earlier or later, so distances are compared, not numbers.
    for name in ("average", "statistics"):
        for key, value in eager._shown.state_dict()[name].items():
            other = graphed._shown.state_dict()[name][key].double()
            error = float((other - value).norm() / value.double().norm().clamp_min(1e-9))
            assert error < 0.05, f"{name} {key}: off by {error:.1e}"
