"""Train for hours and watch the process: does its memory stay where it is?

    python tools/soak.py --hours 2 --json results/benchmarks/soak.json [-- OPTIONS OF fastslow train]

Starts `fastslow train` in a process of its own, notes its resident memory, open files, threads and the size of the run
folder every so many seconds, and stops it with SIGTERM when the time is over. The JSON holds all samples, the
conditions and the verdict: the slope of the resident memory after the warm-up, in MiB an hour. A step needs memory and
gives it back, so the slope is that of the lowest sample of every few minutes, by least squares.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastslow.files import write_atomically
from fastslow.training.conditions import conditions

MIB = 2**20
OPTIONS = ["--model", "resnet8", "--data", "mini", "--method", "fsg-weight", "--batch-size", "64"]
OPTIONS += ["--epochs", "1000000", "--checkpoint-every", "1min"]


def sample(pid: int, folder: Path) -> dict[str, float]:
    """What Linux says of a process now, and what its run folder takes."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "rss_mib": int(status["VmRSS"].split()[0]) / 1024,
        "files": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(status["Threads"]),
        "folder_mib": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / MIB,
    }


def verdict(samples: list[dict[str, float]], warm_up: float, window: float, limit: float) -> dict[str, Any]:
    """The slope of the memory after ``warm_up`` hours, and whether it is below ``limit`` MiB an hour."""
    late = [one for one in samples if one["hours"] >= warm_up]
    lowest: dict[int, dict[str, float]] = {}
    for one in late:
        part = int((one["hours"] - warm_up) * 60 / window)
        lowest[part] = min(lowest.get(part, one), one, key=lambda sample: sample["rss_mib"])
    lowest.pop(max(lowest, default=0), None)  # it may be only a part of a window
    if len(lowest) < 3:
        return {"constant": None, "why": f"only {len(lowest)} windows of {window:g} minutes after the warm-up"}
    hours, memory = np.array([[one["hours"], one["rss_mib"]] for one in lowest.values()]).T
    slope = float(np.polyfit(hours - hours.mean(), memory, 1)[0])
    memory = np.array([one["rss_mib"] for one in late])
    return {
        "constant": slope < limit and len({one["threads"] for one in late}) == 1,
        "slope_mib_per_hour": round(slope, 3),
        "limit_mib_per_hour": limit,
        "hours": round(late[-1]["hours"], 3),
        "warm_up_hours": warm_up,
        "window_minutes": window,
        "rss_mib": {"least": memory.min(), "median": float(np.median(memory)), "most": memory.max()},
        "files": [min(one["files"] for one in late), max(one["files"] for one in late)],
        "threads": [min(one["threads"] for one in late), max(one["threads"] for one in late)],
    }


def soak(options: list[str], folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "fastslow", "train", *options, "--run", str(folder / "run")]
    found: dict[str, Any] = {"command": ["fastslow", "train", *options], "every_seconds": args.every, "samples": []}
    found |= {"conditions": conditions(torch.device("cpu")), "load_average_before": list(os.getloadavg())}
    began = time.monotonic()
    with open(folder / "log.txt", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        while process.poll() is None and time.monotonic() - began < 3600 * args.hours:
            time.sleep(args.every)
            try:
                now = sample(process.pid, folder / "run")
            except (OSError, KeyError):  # it has just ended, or a checkpoint has just been dropped
                continue
            found["samples"].append({"hours": round((time.monotonic() - began) / 3600, 5), **now})
            found["verdict"] = verdict(found["samples"], args.warm_up, args.window, args.limit)
            write(args.json, found)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        process.kill()
    metrics = folder / "run" / "metrics.jsonl"
    found["epochs"] = len(metrics.read_text().splitlines()) if metrics.is_file() else 0
    found["exit_code"] = process.returncode  # 143: it saved and stopped when it was asked to
    found["last_words"] = (folder / "log.txt").read_text().strip().splitlines()[-1:]
    write(args.json, found)
    return found


def write(path: Path, found: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(found, indent=1) + "\n").encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two samples")
    parser.add_argument("--warm-up", type=float, default=0.25, help="hours that don't count")
    parser.add_argument("--window", type=float, default=5.0, help="minutes of which the lowest sample counts")
    parser.add_argument("--limit", type=float, default=4.0, help="MiB an hour that still count as constant")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("options", nargs="*", metavar="OPTION", help="of fastslow train, after --")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        found = soak(args.options or OPTIONS, Path(folder), args)
    print(json.dumps(found["verdict"] if "verdict" in found else found["last_words"]))


if __name__ == "__main__":
    main()
