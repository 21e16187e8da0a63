"""The conditions of a run: what a number needs beside it to be checked."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from .. import __version__


def conditions(device: torch.device) -> dict[str, Any]:
    """Versions, device and commit of this process."""
    return {
        "fastslow": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "commit": commit(),
    }


class Sessions:
    """A run may be done in several processes, each under conditions of its own: those of all of them, in order."""

    def __init__(self, now: dict[str, Any]) -> None:
        self.now = now
        self._before: list[dict[str, Any]] = []

    @classmethod
    def told_by(cls, saved: list[dict[str, Any]]) -> Sessions:
        """Those of a checkpoint, as its own process saw them."""
        found = cls({name: value for name, value in saved[-1].items() if name != "until_step"})
        found.load(saved[:-1])
        return found

    def until(self, step: int) -> list[dict[str, Any]]:
        """What a checkpoint of this step says: each session's conditions and the step that it got to."""
        before = self._different()
        if before and before[-1]["until_step"] >= step:  # this process has done nothing yet
            return before
        return [*before, {**self.now, "until_step": step}]

    def load(self, saved: list[dict[str, Any]]) -> None:
        """Go on after those of a checkpoint."""
        self._before = list(saved)

    def conditions(self) -> dict[str, Any]:
        """This process's, and under ``earlier`` in what the ones before it differed, up to which step."""
        earlier = [
            {"until_step": one["until_step"]} | {k: v for k, v in one.items() if self.now.get(k) != v}
            for one in self._different()
        ]
        return self.now | ({"earlier": earlier} if earlier else {})

    def _different(self) -> list[dict[str, Any]]:
        """The sessions before this one; those at the end that were like it are a part of it."""
        before = self._before
        while before and {k: v for k, v in before[-1].items() if k != "until_step"} == self.now:
            before = before[:-1]
        return before


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{model} ({os.cpu_count()} cores)"


def commit() -> str | None:
    """The commit of the source tree this package runs from, with ``+`` if it has changes; None outside of one."""
    if given := os.environ.get("FASTSLOW_COMMIT"):  # for machines that get the tree without its history
        return given
    here = Path(__file__).resolve()
    git = ["git", "-C", str(here.parent)]
    try:
        # Installed into an environment inside of somebody's repository, we are no part of that repository.
        subprocess.run([*git, "ls-files", "--error-unmatch", here.name], capture_output=True, check=True)
        head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        status = subprocess.run(
            [*git, "status", "--porcelain", "--", ":/src"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("+" if status.stdout.strip() else "")
