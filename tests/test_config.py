"""The config of a run: bad values, JSON, keys, learning rates; and the model and optimizer that are built from it."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from typing import Any

import pytest
import torch

import fastslow as fs
import tiny
from fastslow.training.build import build_base_optimizer, build_model, method_fields, shipped_weights
from fastslow.training.config import RunConfig
from fastslow.weights import save_weights

BAD: list[tuple[dict[str, Any], str]] = [
    ({"optimizer": "rmsprop"}, "optimizer='rmsprop': choose one of sgd, momentum, adam, adamw"),
    ({"schedule": "linear"}, "schedule='linear': choose one of step, cosine, "),
    ({"precision": "fp16"}, "precision='fp16': choose one of float32, tf32, bf16"),
    ({"epochs": 0}, "epochs=0: give a whole number of at least 1"),
    ({"epochs": 1.5}, "epochs=1.5: give a whole number"),
    ({"epochs": True}, "epochs=True: give a whole number"),
    ({"epochs": "3"}, "epochs='3': give a whole number"),
    ({"batch_size": 0}, "batch_size=0"),
    ({"batch_size": -8}, "batch_size=-8"),
    ({"step_epochs": 0}, "step_epochs=0"),
    ({"bits": 0}, "bits=0"),
    ({"holdout": -1}, "holdout=-1: give a whole number of at least 0"),
    ({"warmup_epochs": -1}, "warmup_epochs=-1"),
    ({"warmup_epochs": 100}, "warmup_epochs=100: must be fewer than epochs=100"),
    ({"seed": -1}, "seed=-1"),
    ({"seed": 2**63}, r"below 2\*\*63"),
    ({"seed": 0.5}, "seed=0.5"),
    ({"lr": 0.0}, "lr=0.0: give a positive learning rate"),
    ({"lr": -1.0}, "lr=-1.0"),
    ({"lr": math.inf}, "lr=inf"),
    ({"lr": math.nan}, "lr=nan"),
    ({"lr": 1e308}, "lr=1e.308: give a positive learning rate"),
    ({"lr": "fast"}, "lr='fast'"),
    ({"weight_decay": -1e-4}, "weight_decay=-0.0001: give a number of at least 0"),
    ({"weight_decay": math.nan}, "weight_decay=nan"),
    ({"momentum": 1.0}, "momentum=1.0: give a number from 0 up to, not including, 1"),
    ({"momentum": -0.1}, "momentum=-0.1"),
    ({"step_factor": 0.0}, "step_factor=0.0: give a number above 0 and at most 1"),
    ({"step_factor": 1.1}, "step_factor=1.1"),
    ({"distill": 1.1}, "distill=1.1: give a number from 0 to 1"),
    ({"distill_temperature": 0}, "distill_temperature=0: give a number above 0"),
    ({"ema": 1.0}, "ema=1.0: give a number from 0 up to, not including, 1"),
    ({"damping": -1e-3}, "damping=-0.001: give a number of at least 0"),
    ({"reestimate": 0.5}, "reestimate=0.5: give a whole number of at least 0"),
    ({"cutout": -1}, "cutout=-1: give a whole number of at least 0"),
    ({"model": 20}, "model=20: give the name of a network"),
    ({"data": None}, "data=None: give the name of a data set"),
    ({"weights": None}, "weights=None"),
    ({"method": 3}, "method=3: give the name of a method"),
    ({"model_fields": []}, r"model_fields=\[\]: give a dictionary"),
    ({"method_fields": "beta=1"}, "method_fields='beta=1'"),
    ({"skip": "conv1"}, "skip='conv1': give a list of patterns"),
    ({"skip": (1,)}, r"skip=\(1,\): give a list of patterns"),
    ({"augment": 1}, "augment=1: give True or False"),
]


@pytest.mark.parametrize(("fields", "why"), BAD)
def test_bad_values_are_named(fields, why):
    with pytest.raises(ValueError, match=why):
        RunConfig(**fields)


def test_a_config_goes_to_json_and_back():
    config = RunConfig(
        model="resnet8",
        model_fields={"bn_before_fc": True},
        method_fields={"beta": 0.5, "fast_nonlinearity": None},
        skip=["conv1", "fc"],  # pyright: ignore[reportArgumentType]
        lr=1e-300,
        seed=2**63 - 1,
    )
    assert config.skip == ("conv1", "fc")
    back = RunConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert back == config
    assert back.key == config.key
    assert RunConfig.from_dict({}) == RunConfig()
    with pytest.raises(ValueError, match="unknown config field 'colour'"):
        RunConfig.from_dict({"colour": "red"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.lr = 1.0  # pyright: ignore[reportAttributeAccessIssue]


def test_whole_numbers_are_real_ones_too():
    whole, real = RunConfig(lr=1, weight_decay=0, ema=0), RunConfig(lr=1.0, weight_decay=0.0, ema=0.0)
    assert whole == real
    assert whole.key == real.key
    assert type(whole.lr) is float


def test_keys_tell_configs_apart_and_stay_the_same():
    other: dict[str, Any] = {
        "model": "resnet8",
        "model_fields": {"bn_before_fc": True},
        "data": "mini",
        "image_size": 64,
        "holdout": 5,
        "weights": "shipped",
        "method": None,
        "method_fields": {"beta": 0.1},
        "binarizer": "sign",
        "bits": 2,
        "activations": "sign",
        "skip": (),
        "optimizer": "sgd",
        "lr": 0.5,
        "momentum": 0.5,
        "weight_decay": 0.1,
        "schedule": "cosine",
        "step_epochs": 7,
        "step_factor": 0.5,
        "warmup_epochs": 1,
        "epochs": 7,
        "batch_size": 7,
        "augment": False,
        "seed": 1,
        "precision": "bf16",
        "distill": 0.5,
        "distill_temperature": 1.0,
        "teacher": "other.safetensors",
        "teacher_model": "resnet44",
        "ema": 0.9,
        "damping": 1.0,
        "reestimate": 1,
        "cutout": 8,
    }
    no_number = {"metrics", "checkpoint_every", "keep", "on_nan", "workers"}
    assert {*other, *no_number} == {field.name for field in dataclasses.fields(RunConfig)}
    changed = [RunConfig(**{name: value}) for name, value in other.items()]
    keys = {config.key for config in [RunConfig(), *changed]}
    assert len(keys) == len(other) + 1
    assert RunConfig().key == RunConfig(epochs=100).key == "b65ad3e58d3b"  # recorded runs are known by it
    # The same in every process, whatever its hash seed.
    code = "from fastslow.training.config import RunConfig; print(RunConfig(method_fields={'b': 1, 'a': 2}).key)"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    assert found == RunConfig(method_fields={"a": 2, "b": 1}).key


LR: list[tuple[dict[str, Any], dict[int, float]]] = [
    ({"schedule": "constant", "epochs": 4}, {0: 1.0, 39: 1.0}),
    ({"schedule": "step", "epochs": 4, "step_epochs": 2}, {0: 1.0, 19: 1.0, 20: 0.1, 39: 0.1}),
    ({"schedule": "step", "epochs": 4, "step_epochs": 1, "step_factor": 0.5}, {9: 1.0, 10: 0.5, 20: 0.25, 39: 0.125}),
    ({"schedule": "cosine", "epochs": 4}, {0: 1.0, 10: 0.5 + 0.25 * math.sqrt(2), 20: 0.5, 39: 0.0015413331334360182}),
    ({"schedule": "constant", "epochs": 4, "warmup_epochs": 1}, {0: 0.1, 4: 0.5, 9: 1.0, 10: 1.0}),
    ({"schedule": "cosine", "epochs": 5, "warmup_epochs": 1}, {0: 0.1, 9: 1.0, 10: 1.0, 30: 0.5}),
    ({"schedule": "step", "epochs": 4, "step_epochs": 2, "warmup_epochs": 1}, {0: 0.1, 10: 1.0, 20: 0.1}),
    ({"schedule": "restarts", "epochs": 6}, {0: 1.0, 10: 0.5, 20: 1.0, 40: 0.5, 60: 1.0}),
]


@pytest.mark.parametrize(("fields", "table"), LR)
def test_learning_rates(fields, table):
    config = RunConfig(lr=1.0, **fields)
    assert {step: config.learning_rate(step, 10) for step in table} == pytest.approx(table, rel=1e-9)


def test_the_loop_sets_the_learning_rate_of_every_step():
    config = tiny.config(schedule="cosine", warmup_epochs=1)
    trainer = tiny.trainer(config)
    seen = []
    for _ in range(6):
        trainer.train_step(*next(iter(trainer.train_batches.epoch(0))))
        seen.append(trainer.optimizer.param_groups[0]["lr"])
    assert seen == [config.learning_rate(step, 5) for step in range(6)]


# -- parts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "momentum"),
    [("sgd", torch.optim.SGD, 0.0), ("momentum", torch.optim.SGD, 0.8), ("adam", torch.optim.Adam, None)],
)
def test_optimizers_by_name(name, kind, momentum):
    model = tiny.Tiny()
    model.c1.weight.requires_grad_(False)
    config = tiny.config(optimizer=name, momentum=0.8, weight_decay=0.25, lr=0.5)
    optimizer = build_base_optimizer(config, model)
    assert type(optimizer) is kind
    (group,) = optimizer.param_groups
    assert (group["lr"], group["weight_decay"], group.get("momentum")) == (0.5, 0.25, momentum)
    assert len(group["params"]) == len(list(model.parameters())) - 1
    assert type(build_base_optimizer(tiny.config(optimizer="adamw"), model)) is torch.optim.AdamW


def test_models_are_built_from_seed_and_weights(tmp_path):
    one, same, other = (build_model(tiny.config(seed=seed), 10) for seed in (1, 1, 2))
    tiny.assert_same_state(dict(one.state_dict()), dict(same.state_dict()))
    assert not torch.equal(one.c2.weight, other.c2.weight)
    assert list(fs.binary_layers(one)) == ["c2", "c3"]
    assert list(fs.binary_layers(build_model(tiny.config(skip=("c*",)), 10))) == ["fc"]
    assert not fs.binary_layers(build_model(tiny.config(None), 10))
    save_weights(other, tmp_path / "w.safetensors")
    loaded = build_model(tiny.config(seed=1, weights=str(tmp_path / "w.safetensors")), 10)
    tiny.assert_same_state(dict(loaded.state_dict()), dict(other.state_dict()))
    with pytest.raises(ValueError, match="model tiny doesn't take these fields"):
        build_model(tiny.config(model_fields={"depth": 3}), 10)
    with pytest.raises(ValueError, match=r"no float weights are shipped for tiny on mini .*--weights none"):
        shipped_weights("tiny", "mini")


def test_hypernetworks_get_the_seed_of_the_run():
    assert method_fields(tiny.config("fsg", seed=5))["seed"] == 5
    assert method_fields(tiny.config("fsg", seed=5, method_fields={"seed": 9}))["seed"] == 9
    assert "seed" not in method_fields(tiny.config("ste", seed=5))


def test_the_extra_batchnorm_starts_fresh_on_float_weights(tmp_path):
    fields = {"model": "resnet8", "data": "mini", "method": "ste"}
    save_weights(fs.models.resnet8(), tmp_path / "w.safetensors")
    weights = str(tmp_path / "w.safetensors")
    model = build_model(RunConfig(**fields, weights=weights, model_fields={"bn_before_fc": True}), 10)
    assert torch.equal(model.bn2.weight, torch.ones(64))
    with pytest.raises(ValueError, match="doesn't fit this ResNet"):
        build_model(RunConfig(**fields, weights=weights), 100)


@pytest.mark.parametrize(
    ("method", "was", "now"),
    [("fsg-plus", {"secant": False}, {"secant": True}), ("fsg-lstm", {"normalise": "none"}, {"normalise": "rms"})],
)
def test_a_changed_default_of_a_method_leaves_old_files_what_they_were(method, was, now):
    """fsg-plus without ``secant`` in a file means False, as it did then; a new config says True."""
    new, old = RunConfig(method=method), RunConfig.from_dict({"method": method, "method_fields": {}})
    assert new.method_fields == now == {name: getattr(fs.get_method(method), name) for name in now}
    assert old.method_fields == was
    assert RunConfig.from_dict(new.to_dict()) == new
    assert RunConfig.from_dict(old.to_dict()) == old
    assert new.key != old.key == RunConfig(method=method, method_fields=was).key
    assert RunConfig(method="ste").method_fields == {}
