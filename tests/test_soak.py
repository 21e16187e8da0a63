"""tools/soak.py watches a real training process; the recorded soak is the evidence that memory stays constant."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from scripts import ROOT, load_script

RECORDED = ROOT / "results" / "benchmarks" / "soak.json"
soak = load_script("tools/soak.py")


def samples(slope: float, threads: int = 1) -> list[dict[str, float]]:
    """Two hours, a sample every half minute: a saw-tooth of 60 MiB on a line of ``slope`` MiB an hour."""
    hours = [i / 120 for i in range(241)]
    return [
        {"hours": h, "rss_mib": 500 + slope * h + 10 * (i % 7), "files": 3, "threads": threads}
        for i, h in enumerate(hours)
    ]


@pytest.mark.parametrize(("slope", "constant"), [(0.0, True), (-5.0, True), (8.0, False), (100.0, False)])
def test_a_leak_is_seen_below_the_ups_and_downs_of_a_step(slope, constant):
    found = soak.verdict(samples(slope), 0.25, 5, limit=4)
    assert found["constant"] is constant
    assert found["slope_mib_per_hour"] == pytest.approx(slope, abs=2)


def test_growing_threads_are_not_constant():
    assert soak.verdict(samples(0)[:200] + samples(0, threads=2)[200:], 0.25, 5, 4)["constant"] is False


def test_too_short_to_say():
    assert soak.verdict(samples(0)[:40], 0.25, 5, 4)["constant"] is None


@pytest.mark.slow
def test_a_soak_of_seconds(tmp_path):
    out = tmp_path / "soak.json"
    command = [sys.executable, ROOT / "tools" / "soak.py", "--hours", "0.005", "--every", "0.5", "--json", out]
    options = ["--model", "resnet8", "--data", "mini", "--method", "ste", "--epochs", "9999", "--batch-size", "16"]
    subprocess.run([*command, "--", *options], check=True, capture_output=True, timeout=120)
    found = json.loads(out.read_text())
    assert found["exit_code"] == 143
    assert "stopped by SIGTERM" in found["last_words"][0]
    assert found["verdict"]["constant"] is None
    last = found["samples"][-1]
    assert last["rss_mib"] > 100
    assert last["files"] >= 3
    assert last["folder_mib"] > 0


@pytest.mark.skipif(not RECORDED.is_file(), reason="no soak is recorded yet")
def test_the_recorded_soak_has_constant_memory():
    found = json.loads(RECORDED.read_text())
    again = soak.verdict(found["samples"], *(found["verdict"][key] for key in SETTINGS))
    assert again == found["verdict"]
    assert found["verdict"]["constant"] is True
    assert found["verdict"]["hours"] >= 1.99
    assert found["exit_code"] == 143
    assert found["conditions"]["commit"]


SETTINGS = ("warm_up_hours", "window_minutes", "limit_mib_per_hour")
