"""Files that are whole or not there, and where those of the package lie."""

from __future__ import annotations

import errno
import os
import shlex
import socket
import threading
from importlib import resources
from pathlib import Path

PRETRAINED = Path(str(resources.files("fastslow") / "pretrained"))  # networks that come with the package


def how_to_resume(run: Path) -> str:
    """As it can be pasted into a shell, in the backquotes of a message."""
    return f"`fastslow resume {shlex.quote(str(run))}`"


def write_atomically(path: Path, content: bytes) -> None:
    """Write, flush to disk, rename: a reader sees the old file or the new one, never a part.

    On failure (a full disk, a read-only folder) the old file is untouched, nothing half-written stays behind, and the
    OSError names ``path``.
    """
    if not path.name:  # "." or "/"
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    mine = f".{path.name[:150]}.{socket.gethostname()[:50]}."
    temporary = path.with_name(f"{mine}{os.getpid()}.{threading.get_ident()}.tmp")  # nobody else writes this one
    try:
        try:
            _remove_strays(path.parent, mine)
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from error
    _flush_folder(path.parent)


def _remove_strays(folder: Path, start: str) -> None:
    """What processes of this machine left behind that were killed while they wrote."""
    for name in os.listdir(folder):
        writer = name.removeprefix(start).split(".")[0]
        if name.startswith(start) and name.endswith(".tmp") and writer.isdigit() and not _is_alive(int(writer)):
            (folder / name).unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it is somebody else's
    return True


def make_folder(path: Path) -> None:
    """Make a folder, and its parents, that are still there after a power cut."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        _flush_folder(folder.parent)


def _flush_folder(path: Path) -> None:
    """Names, too, are data that a file system writes later."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
