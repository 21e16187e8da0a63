"""The loop, what it measures, and that it learns."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fastslow as fs
import tiny
from fastslow import data
from fastslow.data import Batches, Dataset, ImageSet
from fastslow.report.curves import draw_run
from fastslow.training import conditions as conditions_module
from fastslow.training.build import build_model
from fastslow.training.conditions import commit, conditions, device_name
from fastslow.training.config import RunConfig
from fastslow.training.evaluate import BitWatch, Evaluation, evaluate
from fastslow.training.finite import TrainingDiverged, broken_output, broken_state
from fastslow.training.loop import Trainer
from fastslow.training.precision import float32_products
from fastslow.training.run import RunFolder
from fastslow.training.sinks import ConsoleSink

# -- what is measured --------------------------------------------------------------------------------------------------


class Last(nn.Module):
    """Logits that are known: 2 at the class that the red channel of the first pixel names."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Dropout(0.9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert not self.training
        assert not torch.is_grad_enabled()
        classes = (x[:, 0, 0, 0] * 255).round().long()
        return self.inner(2.0 * F.one_hot(classes, 3))


def test_evaluation_by_hand():
    pictures = torch.zeros(5, 3, 2, 2, dtype=torch.uint8)
    pictures[:, 0, 0, 0] = torch.tensor([0, 1, 2, 2, 1])
    labels = torch.tensor([0, 1, 2, 0, 0])  # three are right
    image_set = ImageSet(images=pictures, labels=labels, classes=("a", "b", "c"), mean=(0, 0, 0), std=(1, 1, 1))
    model = Last()
    model.train()
    model.inner.eval()
    found = evaluate(model, Batches(image_set, 2))  # the last batch is a short one
    log_sum = math.log(math.exp(2) + 2)
    assert found == Evaluation(60.0, pytest.approx((5 * log_sum - 3 * 2) / 5), 5)
    assert [m.training for m in model.modules()] == [True, False]


def test_evaluation_puts_modes_back_after_an_error():
    model = nn.Sequential(nn.Flatten(), nn.Linear(7, 7))
    model[1].eval()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        evaluate(model, Batches(tiny.images(4, 0), 2))
    assert [m.training for m in model.modules()] == [True, True, False]


def test_evaluation_uses_the_committed_weights():
    trainer = tiny.trainer(tiny.config("fsg"))
    tiny.step(trainer, 3)
    frozen = fs.freeze(trainer.model)
    assert evaluate(trainer.model, trainer.test_batches) == evaluate(frozen, trainer.test_batches)


def test_flips_and_shares_by_hand():
    model = nn.Sequential(nn.Linear(4, 1, bias=False), nn.Linear(1, 4, bias=False))
    fs.binarize_(model, "ste")
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 2.0, -1.0, -2.0]]))
        model[1].weight.copy_(torch.tensor([[1.0], [1.0], [1.0], [1.0]]))
    watch = BitWatch(model)
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[-1.0, 0.5, -2.0, -2.0]]))  # one flips
        model[1].weight[3] = -1.0  # and another
    assert watch.look() == {"flip_ratio": 2 / 8, "share_plus": 4 / 8}
    assert watch.look() == {"flip_ratio": 0.0, "share_plus": 4 / 8}
    saved = [sign.clone() for sign in watch.state_dict()]
    with torch.no_grad():
        model[1].weight[3] = 1.0
    fresh = BitWatch(model)
    fresh.load_state_dict(saved)
    assert fresh.look() == {"flip_ratio": 1 / 8, "share_plus": 5 / 8}
    assert BitWatch(nn.Linear(2, 2)).look() == {}


def test_conditions_say_where_a_number_comes_from(monkeypatch):
    monkeypatch.delenv("FASTSLOW_COMMIT", raising=False)
    found = conditions(torch.device("cpu"))
    assert list(found) == ["fastslow", "torch", "python", "platform", "device", "threads", "commit"]
    assert (found["fastslow"], found["torch"]) == (fs.__version__, torch.__version__)
    assert found["device"] == device_name(torch.device("cpu")) != ""
    assert found["threads"] == torch.get_num_threads()
    json.dumps(found)
    monkeypatch.setenv("FASTSLOW_COMMIT", "0123abcd")
    assert conditions(torch.device("cpu"))["commit"] == "0123abcd"


def test_an_environment_inside_of_a_repository_is_not_that_repository(tmp_path, monkeypatch):
    monkeypatch.delenv("FASTSLOW_COMMIT", raising=False)
    installed = tmp_path / "lib" / "conditions.py"
    installed.parent.mkdir()
    installed.write_text("")
    monkeypatch.setattr(conditions_module, "__file__", str(installed))
    assert commit() is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "somebody else's"], check=True)
    assert commit() is None
    subprocess.run([*git, "add", "lib"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "ours"], check=True)
    assert len(commit() or "") == 12
    monkeypatch.setenv("PATH", "")
    assert commit() is None


@pytest.mark.parametrize("method", [None, "ste", "fsg-weight"])
def test_the_result_carries_its_conditions(tmp_path, method):
    config = tiny.config(method, epochs=2)
    trainer = tiny.trainer(config, tmp_path / "run")
    result = trainer.fit()
    assert RunFolder.open(tmp_path / "run").result() == result
    assert list(result)[:13] == [
        "test_accuracy",
        "best_test_accuracy",
        "best_epoch",
        "test_loss",
        "train_accuracy",
        "train_loss",
        "n_test",
        "metric",
        "seconds",
        "config",
        "key",
        "conditions",
        "curve",
    ]
    rows = result["curve"]
    assert [row["epoch"] for row in rows] == [1, 2]
    assert [row["step"] for row in rows] == [5, 10]
    assert result["test_accuracy"] == rows[-1]["test_accuracy"]
    assert result["best_test_accuracy"] == max(row["test_accuracy"] for row in rows)
    assert result["best_epoch"] == 1 + max(range(2), key=lambda i: rows[i]["test_accuracy"])
    assert result["train_loss"] == rows[-1]["train_loss"]
    assert result["seconds"] == pytest.approx(sum(row["seconds"] for row in rows), abs=0.01)
    assert (result["n_test"], result["metric"]) == (20, "test accuracy of the last epoch")
    assert RunConfig.from_dict(result["config"]) == config
    assert result["key"] == config.key
    assert result["conditions"].keys() == conditions(torch.device("cpu")).keys()
    expected = {"epoch", "step", "lr", "train_loss", "train_accuracy", "test_accuracy", "test_loss", "seconds"}
    expected |= {"flip_ratio", "share_plus"} if method else set()
    expected |= {"gradient_cosine"} if method == "fsg-weight" else set()
    assert set(rows[-1]) == expected
    # The last numbers are those of the weights that were left.
    assert evaluate(trainer.model, trainer.test_batches).accuracy == result["test_accuracy"]


def test_the_training_loss_is_the_mean_over_what_was_shown():
    trainer = tiny.trainer(tiny.config(epochs=1, lr=1e-12))
    losses = []
    step = trainer.train_step
    trainer.train_step = lambda x, y: losses.append(step(x, y)) or losses[-1]
    row = trainer.fit()["curve"][0]
    assert len(losses) == 5
    assert row["train_loss"] == pytest.approx(sum(losses) / 5, rel=1e-6)


def test_held_out_images_are_named_in_the_result():
    config = tiny.config(holdout=20, epochs=1)
    held_out = dataclasses.replace(tiny.dataset(), holdout=20)
    result = Trainer(config, held_out).fit()
    assert result["metric"] == "test accuracy of the last epoch on held-out training images"
    with pytest.raises(ValueError, match=r"holds out 20 training images and the data set 0: .*holdout=20\)"):
        Trainer(config, tiny.dataset())


def test_a_small_set_is_one_batch():
    trainer = tiny.trainer(tiny.config(batch_size=1000, epochs=1))
    assert len(trainer.train_batches) == 1
    trainer.fit()
    assert trainer.done == 1


def test_seeds_repeat_a_run_and_methods_see_the_same_data():
    one, same, other = (tiny.trainer(tiny.config(seed=seed)) for seed in (1, 1, 2))
    for trainer in (one, same, other):
        trainer.fit()
    tiny.assert_same_state(one.state_dict(), same.state_dict())
    assert one.rows[-1]["train_loss"] != other.rows[-1]["train_loss"]
    learned = tiny.trainer(tiny.config("fsg", seed=1))
    batches = [next(iter(t.train_batches.epoch(2, 1))) for t in (one, learned)]
    assert torch.equal(batches[0][0], batches[1][0])


@pytest.mark.parametrize("method", ["ste", "fsg-weight", "reste"])
def test_measuring_the_indicators_changes_nothing_else(method):
    plain, measured = (tiny.trainer(tiny.config(method, metrics=metrics)) for metrics in (False, True))
    assert plain.config.key == measured.config.key
    for trainer in (plain, measured):
        trainer.fit()
    extra = {"estimating_error", "gradient_stability", "sign_entropy", "cosine_to_float"}
    for row in measured.rows:
        found = {name: row.pop(name) for name in extra}
        assert all(math.isfinite(value) for value in found.values())
        assert -1 <= found["cosine_to_float"] <= 1
    tiny.assert_same_state(plain.state_dict(), measured.state_dict())


def test_bf16_trains_on_the_cpu():
    result = tiny.trainer(tiny.config(precision="bf16", epochs=1)).fit()
    assert math.isfinite(result["train_loss"])
    assert result["train_loss"] != tiny.trainer(tiny.config(epochs=1)).fit()["train_loss"]


def test_precision_switches_are_of_a_gpu():
    before = torch.backends.cuda.matmul.allow_tf32
    with float32_products(torch.device("cpu"), tf32=True):
        assert torch.backends.cuda.matmul.allow_tf32 == before


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_an_epochs_evaluation_is_that_of_plain_torch(precision):
    config = RunConfig(model="resnet8", data="mini", method="fsg-plus", epochs=1, batch_size=64, precision=precision)
    trainer = Trainer(config, data.load("mini"), device="cuda")
    trainer.fit()
    plain = evaluate(trainer.model, trainer.test_batches)
    assert trainer.rows[-1]["test_loss"] == pytest.approx(plain.loss, rel=2e-3)
    assert trainer.rows[-1]["test_accuracy"] == pytest.approx(plain.accuracy, abs=1)


@pytest.mark.gpu
def test_precision_switches_on_a_gpu():
    device = torch.device("cuda")
    x = torch.rand(512, 512, device=device, generator=torch.Generator(device).manual_seed(0))
    exact = (x.double() @ x.double()).float()
    errors = []
    for tf32 in (False, True):
        with float32_products(device, tf32):
            errors.append(float((x @ x - exact).abs().max()))
    assert 10 * errors[0] < errors[1]


# -- divergence --------------------------------------------------------------------------------------------------------


def test_an_absurd_learning_rate_is_stopped_and_named(tmp_path):
    trainer = tiny.trainer(tiny.config(lr=1e38, schedule="constant", optimizer="sgd"), tmp_path / "run")
    with pytest.raises(TrainingDiverged) as error:
        trainer.fit()
    text = str(error.value)
    assert text.startswith("training diverged: the ")
    assert " at step " in text
    assert "first not finite: " in text
    assert text.endswith("there is no checkpoint yet; try a smaller lr, or --on-nan rollback")


@pytest.mark.parametrize("method", ["ste", "fsg"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_poisoned_weight_is_named_with_step_and_checkpoint(tmp_path, method, value):
    trainer = tiny.trainer(tiny.config(method), tmp_path / "run")
    tiny.step(trainer, 2)
    trainer.save()
    tiny.step(trainer, 1)
    before = trainer.run.checkpoints.paths()
    with torch.no_grad():
        trainer.model.c3.weight[0, 0, 0, 0] = value
    with pytest.raises(TrainingDiverged) as error:
        trainer.fit()
    assert "at step 4" in str(error.value)
    assert "first not finite: c3.weight" in str(error.value)
    assert str(error.value).endswith(
        f"the last good checkpoint is {before[-1]}; try a smaller lr, or --on-nan rollback"
    )
    # A poisoned state never becomes a checkpoint.
    with pytest.raises(TrainingDiverged, match=r"a weight stopped being finite by step 3, .*: c3\.weight"):
        trainer.save()
    assert trainer.run.checkpoints.paths() == before
    tiny.resumed(tmp_path / "run").fit()


def test_a_step_that_poisons_the_end_of_an_epoch_is_no_row(tmp_path):
    trainer = tiny.trainer(tiny.config(), tmp_path / "run")
    tiny.step(trainer, 5)
    with torch.no_grad():
        trainer.model.bn.running_var[0] = math.nan
    with pytest.raises(TrainingDiverged, match=r"by step 5, first not finite: bn.running_var; there is no checkpoint"):
        trainer.fit()
    assert trainer.run.metrics() == []


def test_where_numbers_stop_being_finite():
    model = build_model(tiny.config("fsg"), 10)
    x = torch.rand(2, 3, 8, 8)
    assert broken_state(model) is None
    assert broken_output(model, x) is None
    with torch.no_grad():
        model.bn.weight.fill_(3e38)
    assert broken_state(model) is None
    assert broken_output(model, 1e6 * x) == "the output of bn"
    assert all(not m._forward_hooks for m in model.modules())
    model.c2._shift[0] = math.inf
    assert broken_state(model) == "the look-ahead of c2"
    model.c1.bias.data[1] = -math.inf
    assert broken_state(nn.DataParallel(model)) == "c1.bias"


# -- showing -----------------------------------------------------------------------------------------------------------


def test_the_console_shows_a_line_an_epoch(capsys):
    result = tiny.trainer(tiny.config(epochs=2), sink=ConsoleSink()).fit()
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert lines[0] == "tiny tiny ste adam"
    assert [line.split()[:2] for line in lines[1:]] == [["epoch", "1"], ["epoch", "2"]]
    assert f"test {result['test_accuracy']:.2f} %" in lines[-1]
    assert "flips" in lines[-1]


def test_the_console_shows_a_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    tiny.trainer(tiny.config(None, epochs=2), sink=ConsoleSink()).fit()
    error = capsys.readouterr().err
    assert "10/10" in error or "/10" in error
    assert "flips" not in error


def test_curves_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    for method in ("ste", None):
        rows = tiny.trainer(tiny.config(method, epochs=2)).fit()["curve"]
        path = draw_run(rows, tmp_path / f"{method}.png")
        assert path is not None
        assert path.read_bytes().startswith(b"\x89PNG")


# -- learning ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def half_size() -> Dataset:
    """The mini set at 16 x 16 pixels: a quarter of the time."""
    mini = data.load("mini")

    def halved(image_set: ImageSet) -> ImageSet:
        pooled = F.avg_pool2d(image_set.images.float(), 2).round().to(torch.uint8)
        return dataclasses.replace(image_set, images=pooled)

    return Dataset(name="mini", train=halved(mini.train), test=halved(mini.test))


# Chance is 10 %, with a standard deviation of 1 % on 1,000 images. Seen: 34.6 (ste), 33.7 (fsg-weight), 31.4 (fsg).
@pytest.mark.parametrize(
    ("model", "method", "fields", "batch_size"),
    [
        ("resnet8", "ste", {}, 128),
        ("resnet8", "fsg-weight", {"expand": 4, "d_state": 2, "length": 4, "fast_hidden": 8}, 128),
        ("small", "fsg", {**tiny.SMALL, "length": 4}, 64),
    ],
)
def test_a_few_epochs_learn_from_scratch(half_size, model, method, fields, batch_size):
    config = RunConfig(
        model=model,
        data="mini",
        method=method,
        method_fields=fields,
        lr=3e-3,
        schedule="cosine",
        epochs=3,
        batch_size=batch_size,
    )
    trainer = Trainer(config, half_size)
    if method == "fsg":
        assert sum(layer.weight.numel() for layer in fs.binary_layers(trainer.model).values()) < 5000
    result = trainer.fit()
    assert result["test_accuracy"] > 25.0
    losses = [row["train_loss"] for row in result["curve"]]
    assert losses == sorted(losses, reverse=True)
    assert result["curve"][0]["flip_ratio"] > 0.02  # it is the bits that learn
