"""A step that isn't finite: the run stops and names it, leaves it out, or goes back."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tiny
from fastslow import models
from fastslow.data import Dataset
from fastslow.training import finite
from fastslow.training.finite import TrainingDiverged
from fastslow.training.loop import Trainer
from fastslow.training.ranks import Ranks
from fastslow.training.recovery import LeftOut, RollBack
from fastslow.training.run import RunFolder
from fastslow.training.state import prepare_rollback, roll_back
from together import together

WHITE = 22  # an image of the third batch
# What happens to a batch that holds the white image, which no other image of the tiny set is.
POISONS = {"loss": (math.nan, 1.0), "gradient": (1.0, math.inf), "update": (1.0, 1e30)}


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factors: tuple[float, float]) -> Tensor:
        ctx.factor = factors[1]
        return x * factors[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient * ctx.factor, None


class Fragile(tiny.Tiny):
    """The tiny network, which in training breaks at the white image, in its output or in its gradient."""

    def __init__(self, num_classes: int = 10, poison: str = "loss") -> None:
        super().__init__(num_classes)
        self.factors = POISONS[poison]

    def forward(self, x: Tensor) -> Tensor:
        white = self.training and bool((x == 1).all(1).all(1).all(1).any())
        out = super().forward(x)
        return _Scale.apply(out, self.factors) if white else out  # pyright: ignore[reportReturnType]


class Hopeless(tiny.Tiny):
    """Breaks at every batch."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (math.nan if self.training else 1.0)


if "fragile" not in models.list_models():
    models._MODELS.add("fragile", Fragile)
    models._MODELS.add("hopeless", Hopeless)


def dataset() -> Dataset:
    """The tiny set with one image in white."""
    plain = tiny.dataset()
    plain.train.images[WHITE] = 255
    return plain


def trainer(method: str, poison: str, on_nan: str, run: Path | None = None, **fields: Any) -> Trainer:
    config = tiny.config(method, on_nan=on_nan, augment=False, **fields)
    config = type(config).from_dict({**config.to_dict(), "model": "fragile", "model_fields": {"poison": poison}})
    return Trainer(config, dataset(), run=None if run is None else RunFolder.create(run, config))


def bad_steps(of: Trainer) -> list[int]:
    """The steps whose batch holds the white image."""
    size, per_epoch = of.train_batches.batch_size, len(of.train_batches)
    places = [int((of.train_batches.plan(epoch)[0] == WHITE).nonzero()[0]) // size for epoch in range(of.config.epochs)]
    return [epoch * per_epoch + place + 1 for epoch, place in enumerate(places) if place < per_epoch]


WHERE = {
    "loss": r"the loss is nan at step {step}, first not finite: the loss itself",
    "gradient": r"a gradient is not finite at step {step}, first not finite: the gradient of c1\.weight",
    "update": r"the update is not finite at step {step}, first not finite: .*",
}


@pytest.mark.parametrize(
    ("method", "poison"),
    [("fsg", "loss"), ("fsg", "gradient"), ("fsg", "update"), ("multifc", "loss"), ("ste", "gradient")],
)
def test_stop_names_layer_and_step(tmp_path, method, poison):
    run = trainer(method, poison, "stop", tmp_path / "run", checkpoint_every="1step")
    first = bad_steps(run)[0]
    sentence = WHERE[poison].format(step=first)
    good = f"the last good checkpoint is .*step-{first - 1:09d}.safetensors; try a smaller lr, or --on-nan rollback"
    with pytest.raises(TrainingDiverged, match=f"^training diverged: {sentence}; {good}$"):
        run.fit()


@pytest.mark.parametrize("poison", ["loss", "gradient"])
@pytest.mark.parametrize("method", ["ste", "fsg", "lstmfc", "adabin"])
def test_skip_leaves_everything_untouched(method, poison):
    run = trainer(method, poison, "skip", schedule="constant")
    first = bad_steps(run)[0]
    tiny.step(run, first - 1)
    clone = {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}
    before = torch.utils._pytree.tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, clone)
    steps = before["optimizer"]["fastslow"].pop("steps")
    tiny.step(run, 1)
    after = {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}
    assert after["optimizer"]["fastslow"].pop("steps") == steps + 1  # schedules go on
    tiny.assert_same_state(after, before)
    assert run.left_out.steps == {first}
    assert run.done == first


@pytest.mark.parametrize(
    ("on_nan", "poison"),
    [("skip", "loss"), ("skip", "gradient"), ("rollback", "loss"), ("rollback", "gradient"), ("rollback", "update")],
)
@pytest.mark.parametrize("method", ["ste", "fsg"])
def test_the_run_ends_and_says_what_it_left_out(tmp_path, method, on_nan, poison, caplog):
    if (method, poison) == ("ste", "update"):
        pytest.skip("a large gradient is an ordinary step for Adam")
    whole = trainer(method, poison, on_nan, tmp_path / "whole", checkpoint_every="4steps")
    bad = bad_steps(whole)
    result = whole.fit()
    assert result["left_out"] == bad
    assert sum(row.get("left_out", 0) for row in result["curve"]) == len(bad)
    assert len(whole.run.metrics()) == whole.config.epochs
    assert f"at step {bad[0]}, first not finite: " in caplog.text
    assert finite.broken_state(whole.model) is None
    # Killed after any step and resumed, it is the same run.
    stopped = trainer(method, poison, on_nan, tmp_path / "stopped", checkpoint_every="4steps")
    prepare_rollback(stopped)
    for _ in range(bad[-1] - 1):
        try:
            tiny.step(stopped, 1)
        except RollBack as back:
            roll_back(stopped, back)
    stopped.save()
    continued = Trainer(stopped.config, dataset(), run=RunFolder.open(tmp_path / "stopped"))
    continued.resume()
    continued.fit()
    tiny.assert_same_state(continued.state_dict(), whole.state_dict())


def test_skip_cannot_mend_what_a_step_has_done(tmp_path):
    run = trainer("fsg", "update", "skip", tmp_path / "run")
    with pytest.raises(TrainingDiverged, match=r"the update is not finite at step .*or --on-nan rollback"):
        run.fit()


@pytest.mark.parametrize("on_nan", ["skip", "rollback"])
def test_a_run_that_only_leaves_out_gives_up(tmp_path, on_nan):
    config = tiny.config(on_nan=on_nan)
    config = type(config).from_dict({**config.to_dict(), "model": "hopeless", "batch_size": 3})
    run = Trainer(config, dataset(), run=RunFolder.create(tmp_path / "run", config))
    with pytest.raises(TrainingDiverged, match="11 of the last 100 steps before step 11 were not finite and left out"):
        run.fit()


def test_an_epoch_without_a_step_is_none(tmp_path):
    config = tiny.config(on_nan="skip")
    config = type(config).from_dict({**config.to_dict(), "model": "hopeless"})
    with pytest.raises(TrainingDiverged, match="no step of the epoch that ends at step 5 was finite"):
        Trainer(config, dataset()).fit()


def test_rollback_needs_a_folder():
    with pytest.raises(ValueError, match="give the trainer a run folder"):
        tiny.trainer(tiny.config(on_nan="rollback")).fit()


def test_a_run_without_trouble_is_the_same_run(tmp_path):
    plain = tiny.trainer(tiny.config("fsg"))
    plain.fit()
    for on_nan in ("skip", "rollback"):
        config = tiny.config("fsg", on_nan=on_nan)
        assert config.key == plain.config.key
        careful = tiny.trainer(config, tmp_path / on_nan)
        assert "left_out" not in careful.fit()
        tiny.assert_same_state(careful.state_dict(), plain.state_dict())


def test_old_steps_are_forgiven():
    left_out = LeftOut()
    for step in range(0, 1000, 10):
        left_out.add(step)
    assert left_out.of_epoch(1, 50) == 5


def _net(driver: Any) -> Tensor:
    return next(driver.nets.parameters())


@pytest.mark.parametrize(
    ("method", "poison", "where"),
    [
        ("fsg", _net, "the hypernetwork "),
        ("multifc", _net, "the hypernetwork meta"),
        ("fsg", lambda driver: driver.stored.buffer[0, -1:], "the gradient history of c3"),
        ("fsg", lambda driver: driver.hat[:1], "What of c2"),
        ("fcgrad", lambda driver: driver.gradient[300:301], "the last gradient of c3"),
        ("lstmfc", lambda driver: driver.memory.h[-1:], "the memory of c3"),
        ("fsg-plus", lambda driver: driver.tensors["squares"][-1:], "the squared gradient's average of c3"),
        ("fsg-lstm", lambda driver: driver.stored.buffer[-1, :1], "the gradient history of c2"),
    ],
)
def test_what_a_method_keeps_is_looked_at_and_never_saved(tmp_path, method, poison, where):
    run = tiny.trainer(tiny.config(method), tmp_path / "run")
    tiny.step(run, 3)
    assert finite.broken_method(run.optimizer) is None
    with torch.no_grad():
        poison(run.optimizer.drivers[0]).fill_(math.nan)
    assert str(finite.broken_method(run.optimizer)).startswith(where)
    with pytest.raises(TrainingDiverged, match=f"by step 3, first not finite: {where}"):
        run.save()
    assert not run.run.checkpoints.paths()


def test_a_float_network_has_no_method():
    assert finite.broken_method(torch.optim.SGD(nn.Linear(1, 1).parameters())) is None


# -- several processes -------------------------------------------------------------------------------------------------


def _on_two_ranks(rank: int, folder: str) -> dict[str, Any]:
    """The white image is in the share of one rank only: both leave its step out."""
    found: dict[str, Any] = {}
    for on_nan, poison in (("skip", "loss"), ("rollback", "loss"), ("rollback", "update")):
        alone = trainer("fsg", poison, on_nan)
        run = RunFolder.create(f"{folder}/{on_nan}-{poison}", alone.config) if rank == 0 else None
        pair = Trainer(alone.config, dataset(), run=run, ranks=Ranks(rank, 2))
        pair.fit()
        weights = {key: value for key, value in pair.model.state_dict().items() if "running" not in key}
        found[f"{on_nan} {poison}"] = {"weights": weights, "left_out": sorted(pair.left_out.steps)}
    return found


@pytest.mark.slow
def test_two_ranks_leave_out_the_same_steps(tmp_path):
    first, second = together(_on_two_ranks, 2, tmp_path, str(tmp_path))
    tiny.assert_same_state(first, second)
    expected = bad_steps(trainer("fsg", "loss", "skip"))
    assert {name: part["left_out"] for name, part in first.items()} == dict.fromkeys(first, expected)
