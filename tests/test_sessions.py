"""A run that several processes did says under which conditions each of them worked."""

from __future__ import annotations

import pytest
import torch

import tiny
from fastslow.report.small_tables import _devices
from fastslow.reproduce.record import failed_record
from fastslow.training.checkpoint import CheckpointError
from fastslow.training.conditions import Sessions

HERE, THERE = {"device": "a card", "torch": "2"}, {"device": "a processor", "torch": "2"}


def test_a_run_of_one_process_has_no_earlier_ones(tmp_path) -> None:
    trainer = tiny.trainer(tiny.config("ste"), tmp_path / "run")
    assert "earlier" not in trainer.fit()["conditions"]


def test_resumed_under_the_same_conditions_is_one_session(tmp_path) -> None:
    first = tiny.trainer(tiny.config("ste"), tmp_path / "run")
    tiny.step(first, 3)
    first.save()
    second = tiny.resumed(tmp_path / "run")
    assert "earlier" not in second.fit()["conditions"]
    assert [one["until_step"] for one in second.state_dict()["sessions"]] == [second.total_steps]


def test_resumed_with_other_threads_says_so(tmp_path) -> None:
    first = tiny.trainer(tiny.config("ste"), tmp_path / "run")
    tiny.step(first, 3)
    first.save()
    torch.set_num_threads(2)
    second = tiny.resumed(tmp_path / "run")
    found = second.fit()["conditions"]
    assert found["threads"] == 2
    assert found["earlier"] == [{"until_step": 3, "threads": 1}]


def test_every_session_is_kept_in_order() -> None:
    sessions = Sessions(HERE)
    for now, step in ((THERE, 10), (HERE, 20), (HERE, 30)):
        saved = sessions.until(step - 5)
        sessions = Sessions(now)
        sessions.load(saved)
    assert sessions.conditions() == {
        **HERE,
        "earlier": [{"until_step": 5}, {"until_step": 15, "device": "a processor"}],
    }
    assert _devices(sessions.conditions()) == "a card to step 5, then a processor to step 15, then a card"
    assert _devices(HERE) == "a card"


def test_a_run_that_diverged_says_what_its_checkpoint_tells(tmp_path) -> None:
    trainer = tiny.trainer(tiny.config("ste"), tmp_path / "run")
    tiny.step(trainer, 3)
    trainer.save()
    assert trainer.run is not None
    torch.set_num_threads(2)  # of the process that watches
    assert failed_record(trainer.run, "cpu", "diverged", {})["conditions"]["threads"] == 1
    for path in trainer.run.checkpoints.paths():
        path.write_bytes(b"cut short")
    assert failed_record(trainer.run, "cpu", "diverged", {})["conditions"]["threads"] == 2


def test_a_checkpoint_from_before_sessions_were_kept_is_resumed(tmp_path) -> None:
    first = tiny.trainer(tiny.config("ste"))
    tiny.step(first, 3)
    state = first.state_dict()
    del state["sessions"]
    second = tiny.trainer(tiny.config("ste"))
    second.load_state_dict(state)
    assert "earlier" not in second.fit()["conditions"]


@pytest.mark.parametrize("broken", [7, [7], [{"device": "x"}], [{"until_step": "x"}]])
def test_sessions_that_are_none_are_refused(broken, tmp_path) -> None:
    first = tiny.trainer(tiny.config("ste"), tmp_path / "run")
    tiny.step(first, 3)
    assert first.run is not None
    first.run.checkpoints.save(3, {**first.state_dict(), "sessions": broken})
    with pytest.raises(CheckpointError, match="sessions"):
        tiny.resumed(tmp_path / "run")
