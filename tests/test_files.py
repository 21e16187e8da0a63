"""Writing is all or nothing, also where several processes write the same file."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from fastslow.files import write_atomically

WRITER = """
import sys
from pathlib import Path
from fastslow.files import write_atomically
for _ in range(60):
    write_atomically(Path(sys.argv[1]), sys.argv[2].encode() * 20_000)
"""


def test_two_processes_that_write_one_file_never_show_a_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "shared.bin"
    write_atomically(path, b"a" * 20_000)
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), letter]) for letter in "ab"]
    seen = 0
    while any(writer.poll() is None for writer in writers):
        content = path.read_bytes()
        assert content in (b"a" * 20_000, b"b" * 20_000)
        seen += 1
    assert [writer.wait() for writer in writers] == [0, 0]
    assert seen > 0
    assert os.listdir(tmp_path) == ["shared.bin"]


def test_what_a_killed_writer_left_goes_with_the_next_write(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    host = socket.gethostname()[:50]
    (tmp_path / f".x.bin.{host}.{gone.pid}.1.tmp").write_bytes(b"half")
    kept = {f".x.bin.{host}.{os.getpid()}.1.tmp", f".x.bin.elsewhere.{gone.pid}.1.tmp", ".x.bin.notes.tmp"}
    for name in kept:  # of a process that lives, of another machine, somebody's own
        (tmp_path / name).write_bytes(b"half")
    write_atomically(tmp_path / "x.bin", b"whole")
    assert set(os.listdir(tmp_path)) == {"x.bin", *kept}


def test_a_long_name(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 250)
    write_atomically(path, b"whole")
    assert path.read_bytes() == b"whole"
