"""The diagnosis: its numbers are right where the answer is known, and measuring changes nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fastslow as fs
from fastslow import data
from fastslow.diagnosis import (
    _left_by_bins,
    _left_by_line,
    driver_of,
    lookahead,
    measure,
    reach,
    slow_output,
    steps_until,
    watch,
)
from fastslow.methods.fsg import FSGDriver
from fastslow.report.diagnosis import diagnosis_sections, load_diagnoses
from fastslow.report.document import Table
from fastslow.report.markdown import render_markdown
from fastslow.report.page import write_report
from fastslow.report.results import Results
from fastslow.reproduce.diagnosing import record_diagnosis
from fastslow.training.config import RunConfig
from fastslow.training.loop import Trainer
from fastslow.training.run import RunFolder

SMALL = {"expand": 2, "d_state": 2, "length": 3}


def trained_driver(method: str, steps: int = 6, **fields: object) -> FSGDriver:
    """FSG on a small network and random images."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8 * 16, 10)
    )
    fs.binarize_(model, method, **fields)
    optimizer = fs.optimizer(model, torch.optim.Adam(model.parameters(), lr=1e-3))
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(16, 3, 8, 8, generator=generator)
        y = torch.randint(10, (16,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    (driver,) = optimizer.drivers
    assert isinstance(driver, FSGDriver)
    return driver


def fingerprint(driver: FSGDriver) -> list[torch.Tensor]:
    state = [*driver.nets.state_dict().values(), driver.stored.buffer, driver.hat, driver.gradient]
    return [tensor.clone() for tensor in state]


@pytest.mark.parametrize("method", ["fsg", "fsg-weight", "fsg-code", "fsg-lstm"])
def test_measuring_changes_nothing_and_is_finite(method: str) -> None:
    fields = {"length": 3, "slow_hidden": 4} if method == "fsg-lstm" else SMALL
    driver = trained_driver(method, **fields)
    before = fingerprint(driver)
    found = measure(driver)
    again = measure(driver)
    reached = reach(driver, 1)
    assert found == again
    assert all(math.isfinite(value) for value in found.values())
    assert all(torch.equal(a, b) for a, b in zip(before, fingerprint(driver), strict=True))
    assert len(reached["token"]) == len(reached["change"])
    assert 0 <= found["flipped_by_lookahead"] <= 1
    assert found["r2_history_linear"] >= found["r2_token_linear"] - 1e-9
    assert found["r2_token_any"] >= found["r2_token_linear"] - 1e-9


def test_the_gate_makes_a_mamba_of_width_one_follow_the_current_token() -> None:
    """Without a current gradient the gate is shut: the output is exactly zero, whatever the history."""
    found = measure(trained_driver("fsg", **SMALL))
    assert found["effect_no_current"] == pytest.approx(1.0)


def test_k_is_the_fast_nets_scalar() -> None:
    driver = trained_driver("fsg", **SMALL)
    assert measure(driver)["k"] == pytest.approx(driver.nets["fast"].scalar().item())  # pyright: ignore


def test_a_slow_net_that_reads_history_is_seen() -> None:
    """The measurements on outputs made by hand: the current gradient, and an honest momentum."""
    driver = trained_driver("fsg-weight", steps=8, **SMALL)

    class Made(type(driver.nets["slow"])):  # pyright: ignore[reportGeneralTypeIssues]
        weights = (0.0, 0.0, 1.0)

        def per_weight(self, history: torch.Tensor, *_: object, scales: object = None, **__: object) -> torch.Tensor:
            return sum(w * row for w, row in zip(self.weights, history, strict=True))  # pyright: ignore

    driver.nets["slow"].__class__ = Made
    only_current = measure(driver)
    assert only_current["r2_token_linear"] == pytest.approx(1.0)
    assert only_current["effect_zero"] == only_current["effect_shuffle"] == only_current["effect_lre"] == 0.0
    Made.weights = (0.5, 0.7, 1.0)
    momentum = measure(driver)
    assert momentum["r2_token_linear"] < 0.95
    assert momentum["r2_history_linear"] == pytest.approx(1.0)
    assert momentum["effect_zero"] > 0.1
    assert momentum["effect_repeat"] > 0.1
    assert momentum["effect_shuffle"] > 0.1


def test_slow_output_is_what_the_method_uses() -> None:
    for method in ("fsg", "fsg-weight"):
        driver = trained_driver(method, **SMALL)
        everything = range(len(driver.sizes))
        with torch.no_grad():
            own = driver.slow_gradient(everything)
            mine = slow_output(driver, driver.stored.ordered_together(everything))
        torch.testing.assert_close(mine, own)


def squares(left: torch.Tensor) -> float:
    return float(left.square().sum())


def test_regressions_by_hand() -> None:
    token = torch.linspace(-1, 1, 2000, dtype=torch.float64)
    assert squares(_left_by_line(2 * token + 1, token[None])) == pytest.approx(0.0, abs=1e-12)
    square = token.square()
    spread = squares(square - square.mean())
    left = _left_by_line(square, token[None])
    assert squares(left) == pytest.approx(spread)  # a line explains nothing of a parabola
    assert squares(_left_by_bins(left, token)) < 0.01 * spread  # a function of the token does
    twice = torch.stack([token, token, torch.zeros_like(token)])  # equal and empty rows are no trouble
    assert squares(_left_by_line(3 * token, twice)) == pytest.approx(0.0, abs=1e-12)


def test_lookahead_by_hand() -> None:
    driver = trained_driver("fsg-weight", **SMALL)
    for slot in driver.slots:
        slot.layer.weight.data.fill_(0.1)
        shift = slot.layer._shift
        assert shift is not None
        shift.fill_(0.01)
        shift.view(-1)[: shift.numel() // 2] = 0.2
    found = lookahead(driver)
    assert found["flipped_by_lookahead"] == 0.5
    assert found["shift_over_distance_99"] == pytest.approx(2.0)


def test_steps_until() -> None:
    assert steps_until(10) == [2, 4, 8, 10]
    assert steps_until(8) == [2, 4, 8]
    assert steps_until(1) == [2]


@pytest.fixture(scope="module")
def small_set() -> data.Dataset:
    mini = data.load("mini")
    return data.Dataset(name="mini", train=mini.train.subset(slice(0, 48)), test=mini.test.subset(slice(0, 16)))


def test_watching_a_training(small_set: data.Dataset) -> None:
    config = RunConfig(model="resnet8", data="mini", method="fsg-weight", method_fields=SMALL, batch_size=16)
    trainer = Trainer(config, small_set)
    told: list[object] = []
    rows = watch(trainer, [2, 4], told.append)
    assert [row["step"] for row in rows] == [2, 4]
    assert told == rows
    assert trainer.done == 4
    assert all(0 <= row["flips_of_a_step"] <= 1 for row in rows)
    plain = Trainer(RunConfig(model="resnet8", data="mini", method="ste", batch_size=16), small_set)
    with pytest.raises(ValueError, match="ste has no slow-net with a history"):
        driver_of(plain)
    with pytest.raises(ValueError, match="at least 2"):
        watch(trainer, [1])


def test_from_a_checkpoint_to_the_page(
    small_set: data.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "load", lambda *_, **__: small_set)
    config = RunConfig(model="resnet8", data="mini", method="fsg-weight", method_fields=SMALL, batch_size=16, epochs=1)
    run = RunFolder.create(tmp_path / "run", config)
    options = {"method": "fsg-weight", "model": "resnet8", "data": "mini", "seed": 0, "data_root": None}
    cpu = torch.device("cpu")
    with pytest.raises(ValueError, match="has no checkpoint"):
        record_diagnosis(tmp_path, cpu, run=run.path, steps=2, tell=print, **options)  # pyright: ignore
    trainer = Trainer(config, small_set, run=run)
    watch(trainer, [3])
    trainer.save()
    path, content = record_diagnosis(tmp_path, cpu, run=run.path, steps=2, tell=print, **options)  # pyright: ignore
    assert content["rows"]["step"] == [3]
    assert json.loads(path.read_text())["conditions"]["torch"]
    with pytest.raises(ValueError, match="recorded already"):
        record_diagnosis(tmp_path, cpu, run=run.path, steps=2, tell=print, **options)  # pyright: ignore
    record_diagnosis(tmp_path, cpu, run=None, steps=3, tell=print, **{**options, "method": "fsg-weight"})  # pyright: ignore

    record_diagnosis(tmp_path, cpu, run=None, optimizer="sgd", steps=2, tell=print, **options)  # pyright: ignore

    record_diagnosis(tmp_path, cpu, run=None, method_fields={"beta": 0.5}, steps=2, tell=print, **options)  # pyright: ignore

    assert len(load_diagnoses(tmp_path)) == 4
    write_report(tmp_path, tmp_path / "docs")
    text = (tmp_path / "docs" / "diagnosis.md").read_text()
    assert "fastslow diagnose --method fsg-weight --model resnet8 --data mini --steps 3" in text
    assert "fastslow diagnose --method fsg-weight --model resnet8 --data mini --optimizer sgd --steps 2" in text
    assert "fastslow diagnose --method fsg-weight --set beta=0.5 --model resnet8 --data mini --steps 2" in text
    assert "ResNet-8, SGD" in text
    assert "beta 0.5, ResNet-8" in text
    assert "![" in text


def test_the_page_without_measurements(tmp_path: Path) -> None:
    sections = diagnosis_sections(Results(tmp_path))
    assert all(not item.rows for section in sections for item in section.items if isinstance(item, Table))
    assert "Not run." in render_markdown("Why", [], sections)
