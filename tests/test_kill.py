"""SIGKILL at any moment, a full disk, a folder that can't be written: nothing that was saved is lost."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import tiny
from fastslow.training import checkpoint
from fastslow.training.config import RunConfig
from fastslow.training.run import RunError, RunFolder
from fastslow.weights import load_weights
from nursery import Nursery

KILLED = -signal.SIGKILL
Whole = Callable[[str], tuple[Path, float]]


@pytest.fixture(scope="module")
def nursery():
    nursery = Nursery()
    yield nursery
    nursery.close()


def config(method: str) -> RunConfig:
    return tiny.config(method, epochs=4, checkpoint_every="2steps")


@pytest.fixture(scope="module")
def whole(nursery, tmp_path_factory):
    """The run of a method that is never killed, and its seconds."""

    @cache
    def live(method: str) -> tuple[Path, float]:
        folder = tmp_path_factory.mktemp(method)
        RunFolder.create(folder / "run", config(method))
        began = time.monotonic()
        nursery.start("resume", folder / "run", log=folder / "log.txt")
        assert nursery.wait() == 0, (folder / "log.txt").read_text()
        return folder / "run", time.monotonic() - began

    return live


class Story:
    """A run that is killed again and again, beside the same run that never is."""

    def __init__(self, method: str, nursery: Nursery, whole: Whole, folder: Path) -> None:
        self.method, self.nursery, self.folder = method, nursery, folder
        self.whole, self.seconds = whole(method)
        self.path = folder / "run"
        RunFolder.create(self.path, config(method))

    def live(self, **trouble: Any) -> int:
        self.nursery.start("resume", self.path, log=self.folder / "log.txt", **trouble)
        return self.nursery.wait()

    def log(self) -> str:
        return (self.folder / "log.txt").read_text()

    def begin_again_if_finished(self) -> None:
        if (self.path / "result.json").exists():
            shutil.rmtree(self.path)
            RunFolder.create(self.path, config(self.method))

    def kill_after(self, seconds: float) -> bool:
        """SIGKILL after so long; False if the run was faster."""
        pid = self.nursery.start("resume", self.path, log=self.folder / "log.txt")
        time.sleep(seconds)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return self._killed(self.nursery.wait())

    def kill_inside_a_save(self, draw: random.Random) -> bool:
        """SIGKILL at one of the calls that make a file last, or in the middle of a write."""
        if draw.random() < 0.3:
            trouble: dict[str, Any] = {"kill_in_write": draw.randint(1, 8)}
        else:
            trouble = {"kill_at": [draw.randint(1, 24), draw.random() < 0.5]}
        return self._killed(self.live(**trouble))

    def _killed(self, code: int) -> bool:
        assert code in (0, KILLED), self.log()
        if code == 0:
            self.begin_again_if_finished()
        elif self.path.joinpath("checkpoints").is_dir() and RunFolder(self.path).checkpoints.paths():
            # What is under its name is whole.
            for path in RunFolder(self.path).checkpoints.paths():
                checkpoint.load(path)
        return code == KILLED

    def ends_as_if_nothing_had_happened(self) -> None:
        self.begin_again_if_finished()
        assert self.live() == 0, self.log()
        assert "Traceback" not in self.log()
        assert not list(self.path.rglob("*.tmp"))
        killed, whole = RunFolder.open(self.path), RunFolder.open(self.whole)
        (_, state), (_, expected) = killed.checkpoints.load_newest(), whole.checkpoints.load_newest()
        tiny.assert_same_state(state, expected)
        rows = [[{**row, "seconds": 0} for row in run.metrics()] for run in (killed, whole)]
        assert rows[0] == rows[1]
        tiny.assert_same_state(*(load_weights(run.path / "weights.safetensors") for run in (killed, whole)))


def survive(story: Story, kills: int, seed: int) -> None:
    """Kill a run so often, by turns inside a save and at a random moment; then let it end."""
    draw = random.Random(seed)
    done = 0
    for _ in range(20 * kills):
        if done == kills:
            break
        inside = done % 2 == 0
        done += story.kill_inside_a_save(draw) if inside else story.kill_after(draw.random() * story.seconds)
    assert done == kills
    story.ends_as_if_nothing_had_happened()


@pytest.mark.parametrize(("method", "kills"), [("fsg", 2), ("ste", 2), ("lstmfc", 1)])
def test_five_kills(tmp_path, nursery, whole, method, kills):
    survive(Story(method, nursery, whole, tmp_path), kills, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "kills"), [*zip(tiny.METHODS, [6, 3, 3, 3, 3, 3, 3, 3, 3], strict=True)])
def test_thirty_kills(tmp_path, nursery, whole, method, kills):
    survive(Story(method, nursery, whole, tmp_path), kills, seed=2)


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_every_call_that_makes_a_file_last(tmp_path, nursery, whole, after):
    story = Story("ste", nursery, whole, tmp_path)
    for call in range(1, 40):
        story._killed(story.live(kill_at=[call, after]))
    story.ends_as_if_nothing_had_happened()


# -- disks -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def half_way(tmp_path, nursery, whole) -> Story:
    """A run of which step 4 is saved."""
    story = Story("fsg", nursery, whole, tmp_path)
    story.live(kill_at=[12, True])
    assert RunFolder(story.path).checkpoints.paths()
    return story


def test_a_full_disk_ends_in_a_sentence_and_costs_nothing(half_way):
    before = RunFolder(half_way.path).checkpoints.paths()
    size = before[-1].stat().st_size
    assert half_way.live(no_longer_than=size // 2) == 2
    last = half_way.log().splitlines()[-1]
    assert last.startswith(f"fastslow: the checkpoint {half_way.path}/checkpoints/step-")
    assert f"can't be written (File too large); the newest one is {before[-1]}; make room" in last
    assert RunFolder(half_way.path).checkpoints.paths() == before
    half_way.ends_as_if_nothing_had_happened()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_disk_too_full_for_a_row(tmp_path):
    trainer = tiny.trainer(tiny.config(), tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").symlink_to("/dev/full")
    sentence = rf"the metrics {tmp_path}/run/metrics.jsonl can't be written \(No space left on device\); make room"
    with pytest.raises(RunError, match=sentence):
        trainer.fit()


def test_a_read_only_folder(half_way):
    folders = [half_way.path / "checkpoints", half_way.path]
    modes = [folder.stat().st_mode for folder in folders]
    log = half_way.folder / "log.txt"
    log.chmod(0o666)
    for folder in folders:
        folder.chmod(0o555)
    try:
        half_way.nursery.start("resume", ".", log=log, unprivileged=str(half_way.path))
        assert half_way.nursery.wait() == 2, half_way.log()
    finally:
        for folder, mode in zip(folders, modes, strict=True):
            folder.chmod(mode)
    assert half_way.log().splitlines()[-1].startswith("fastslow: .lock: Permission denied")
    half_way.ends_as_if_nothing_had_happened()
