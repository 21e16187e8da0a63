"""Archives from their home page into the cache folder, once: bounded, checked, and either whole or not there at all."""

from __future__ import annotations

import hashlib
import os
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from .errors import DataError
from .progress import progress

_CHUNK = 1 << 20
_TIMEOUT = 30.0  # seconds without a byte
MAX_ARCHIVE = 256 << 20  # bytes; both CIFAR archives have about 170 MB


@dataclass(frozen=True)
class File:
    """One file of an archive."""

    name: str
    size: int
    md5: str


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A .tar.gz with `files` in one `folder`; all else in it is ignored."""

    url: str
    md5: str
    folder: str
    files: tuple[File, ...]


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Where data sets are kept: `root`, else the environment's FASTSLOW_DATA, else ~/.cache/fastslow."""
    return Path(root or os.environ.get("FASTSLOW_DATA") or "~/.cache/fastslow").expanduser()


def is_present(archive: Archive, root: str | os.PathLike[str] | None = None) -> bool:
    """Whether every file is in its place; their contents are checked when they are read."""
    folder = data_root(root) / archive.folder
    return all((folder / file.name).is_file() for file in archive.files)


def fetch_archive(
    archive: Archive, root: str | os.PathLike[str] | None = None, *, url: str | None = None, download: bool = True
) -> Path:
    """The folder of an archive's files, downloaded first if one of them is missing; `url` names a mirror."""
    base = data_root(root)
    folder = base / archive.folder
    if is_present(archive, root):
        return folder
    url = url or archive.url
    if not download:
        raise DataError(f"{folder} is missing or incomplete: allow the download, or unpack {url} into {base}")
    base.mkdir(parents=True, exist_ok=True)
    # Beside the target, hence on its file system: the renames at the end are atomic, and nothing half-written remains.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=base) as temporary:
        packed = Path(temporary) / "archive.tar.gz"
        _download(url, packed, archive.md5, remedy=f"try again, or unpack {archive.url} into {base} by hand")
        unpacked = _extract(packed, archive, Path(temporary), url)
        folder.mkdir(exist_ok=True)
        for path in unpacked:
            os.replace(path, folder / path.name)
    return folder


def _download(url: str, path: Path, md5: str, *, remedy: str) -> None:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("wb") as out:
        for chunk in _chunks(url, remedy):
            digest.update(chunk)
            out.write(chunk)
    if digest.hexdigest() != md5:
        raise DataError(f"{url} has MD5 {digest.hexdigest()}, not {md5}: {remedy}")


def _chunks(url: str, remedy: str) -> Iterator[bytes]:
    """The body behind `url`; a generator, so that only the network's errors are reported as such."""
    too_large = DataError(f"{url} is larger than {MAX_ARCHIVE >> 20} MiB and no archive of ours: {remedy}")
    try:
        with urlopen(url, timeout=_TIMEOUT) as response:
            total = int(response.headers["Content-Length"] or 0)  # 0: the server does not say
            if total > MAX_ARCHIVE:
                raise too_large
            received = 0
            with progress(f"downloading {url.rsplit('/', 1)[-1]}", total) as advance:
                while chunk := response.read(_CHUNK):
                    received += len(chunk)
                    if received > MAX_ARCHIVE:
                        raise too_large
                    advance(len(chunk))
                    yield chunk
    except HTTPError as error:
        raise DataError(f"could not download {url} (HTTP status {error.code}): {remedy}") from error
    except (OSError, HTTPException) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise DataError(f"could not download {url} ({reason}): {remedy}") from error
    if received < total:
        raise DataError(f"{url} ended after {received} of {total} bytes: {remedy}")


def _extract(packed: Path, archive: Archive, target: Path, url: str) -> list[Path]:
    """Write the expected members, and no others, into `target`: names in an archive are never used as paths."""
    wanted = {PurePosixPath(archive.folder, file.name): file for file in archive.files}
    written: dict[str, Path] = {}
    try:
        with tarfile.open(packed, "r:gz") as tar:
            for member in tar:
                file = wanted.get(PurePosixPath(member.name))
                if file is None or not member.isreg():
                    continue
                if member.size != file.size:
                    raise DataError(f"{file.name} in {url} has {member.size} bytes, not {file.size}")
                stream = tar.extractfile(member)
                assert stream is not None  # a regular member has contents
                data = stream.read()
                md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
                if md5 != file.md5:
                    raise DataError(f"{file.name} in {url} has MD5 {md5}, not {file.md5}")
                written[file.name] = target / file.name
                written[file.name].write_bytes(data)
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise DataError(f"{url} is not a readable .tar.gz: {error}") from error
    if missing := [file.name for file in archive.files if file.name not in written]:
        raise DataError(f"{url} holds no {archive.folder}/{missing[0]}")
    return list(written.values())
