"""When checkpoints are taken, and how many stay."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiny
from fastslow.training import interval
from fastslow.training.checkpoint import Checkpoints
from fastslow.training.interval import Interval, SaveClock


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("500steps", Interval(steps=500)),
        ("1 step", Interval(steps=1)),
        ("2epochs", Interval(epochs=2)),
        ("0.5min", Interval(minutes=0.5)),
        ("1epoch,5min", Interval(epochs=1, minutes=5)),
        ("3epochs, 10 min, 7 steps", Interval(steps=7, epochs=3, minutes=10)),
    ],
)
def test_texts(text, parsed):
    assert Interval.parse(text) == parsed


@pytest.mark.parametrize("text", ["", "5", "0steps", "1.5steps", "-1min", "2hours", "1min,2min", "1epoch,", "9" * 400])
def test_texts_that_say_nothing(text):
    with pytest.raises(ValueError, match="give steps, epochs or minutes, for example 500steps"):
        tiny.config(checkpoint_every=text)


def saved_steps(run: Path, monkeypatch: pytest.MonkeyPatch, **fields: object) -> list[int]:
    """The steps at which a run of 3 epochs of 5 steps takes a checkpoint."""
    seen: list[int] = []
    save = Checkpoints.save

    def note(self: Checkpoints, step: int, state: object) -> Path:
        seen.append(step)
        return save(self, step, state)

    monkeypatch.setattr(Checkpoints, "save", note)
    tiny.trainer(tiny.config(**fields), run).fit()
    return seen


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        ("1epoch,5min", [5, 10, 15]),
        ("4steps", [4, 8, 12, 15]),
        ("2epochs", [10, 15]),
        ("9epochs", [15]),
        ("2epochs,7steps", [7, 10, 14, 15]),
        ("5min", [15]),
    ],
)
def test_a_run_saves_when_it_was_told_to_and_at_its_end(tmp_path, monkeypatch, every, expected):
    assert saved_steps(tmp_path / "run", monkeypatch, checkpoint_every=every) == expected


def test_minutes_count_from_the_last_checkpoint_across_epochs(tmp_path, monkeypatch):
    class Clock:
        now = 0.0

        @classmethod
        def monotonic(cls) -> float:
            cls.now += 10.0  # seconds, from one look at the clock to the next
            return cls.now

    monkeypatch.setattr(interval, "time", Clock)
    # A look a step and one a checkpoint: six steps after a checkpoint, a minute has passed.
    assert saved_steps(tmp_path / "run", monkeypatch, checkpoint_every="1min") == [6, 12, 15]


@pytest.mark.parametrize("keep", [1, 3])
def test_so_many_are_kept(tmp_path, keep):
    trainer = tiny.trainer(tiny.config(checkpoint_every="2steps", keep=keep), tmp_path / "run")
    trainer.fit()
    steps = [int(path.stem.removeprefix("step-")) for path in trainer.run.checkpoints.paths()]
    assert steps == [12, 14, 15][-keep:]


def test_none_of_it_is_part_of_the_key():
    assert tiny.config(checkpoint_every="3steps", keep=7).key == tiny.config().key


def test_an_interval_of_nothing_is_never_due():
    clock = SaveClock(Interval())
    assert not clock.due_after_step(1)
    assert not clock.due_after_epoch(1)
