import hashlib
import io
import os
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fastslow.data import DataError, data_root, fetch_archive, is_present, load
from fastslow.data.fetch import Archive, File

CONTENTS = {"one.bin": b"first file", "two.bin": b"second" * 1000}


def pack(members, compression="gz"):
    """A tar of (name, contents or TarInfo) pairs as bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=f"w:{compression}") as tar:
        for name, data in members:
            if isinstance(data, tarfile.TarInfo):
                tar.addfile(data)
                continue
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def describe(packed, contents=CONTENTS):
    files = tuple(File(name, len(data), hashlib.md5(data).hexdigest()) for name, data in contents.items())
    md5 = hashlib.md5(packed).hexdigest()
    return Archive(url="http://127.0.0.1:9/home.tar.gz", md5=md5, folder="the-files", files=files)


GOOD = pack([("the-files/" + name, data) for name, data in CONTENTS.items()])


@pytest.fixture
def server():
    """A web server on this machine: `serve(body, **headers)` returns a URL, `serve.requests` counts."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            serve.requests += 1
            status, body, headers = pages[self.path]
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format, *args):
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    pages = {}

    def serve(body, status=200, length=True):
        path = f"/{len(pages)}.tar.gz"
        headers = {"Content-Length": str(len(body) if length is True else length)} if length else {}
        pages[path] = (status, body, headers)
        return f"http://127.0.0.1:{httpd.server_port}{path}"

    serve.requests = 0
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield serve
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def assert_nothing_left(root: Path):
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("length", [True, False])
def test_downloads_once(server, tmp_path, length):
    url = server(GOOD, length=length)
    archive = describe(GOOD)
    root = tmp_path / "new" / "cache"
    assert not is_present(archive, root)
    folder = fetch_archive(archive, root, url=url)
    assert folder == root / "the-files"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == CONTENTS
    assert [path.name for path in root.iterdir()] == ["the-files"]
    assert is_present(archive, root)
    assert fetch_archive(archive, root, url=url) == folder
    assert server.requests == 1


def test_a_folder_placed_by_hand_needs_no_network(tmp_path):
    folder = tmp_path / "the-files"
    folder.mkdir()
    for name, data in CONTENTS.items():
        (folder / name).write_bytes(data)
    assert fetch_archive(describe(GOOD), tmp_path) == folder


def test_an_incomplete_folder_is_completed(server, tmp_path):
    folder = tmp_path / "the-files"
    folder.mkdir()
    (folder / "two.bin").write_bytes(b"old")
    (folder / "notes.txt").write_text("mine")
    fetch_archive(describe(GOOD), tmp_path, url=server(GOOD))
    assert {name: (folder / name).read_bytes() for name in CONTENTS} == CONTENTS
    assert (folder / "notes.txt").read_text() == "mine"


def test_no_download_says_where_to_put_it(tmp_path):
    with pytest.raises(DataError, match=r"the-files is missing.*unpack http://127\.0\.0\.1:9/home\.tar\.gz into"):
        fetch_archive(describe(GOOD), tmp_path, download=False)
    with pytest.raises(DataError, match=r"cifar-10-batches-bin is missing"):
        load("cifar10", tmp_path, download=False)
    assert_nothing_left(tmp_path)


def test_no_network(tmp_path):
    with pytest.raises(DataError, match=r"could not download http://127\.0\.0\.1:9/.*refused.*by hand"):
        fetch_archive(describe(GOOD), tmp_path)
    assert_nothing_left(tmp_path)


def test_not_found(server, tmp_path):
    with pytest.raises(DataError, match=r"could not download .*404.*by hand"):
        fetch_archive(describe(GOOD), tmp_path, url=server(b"no", status=404))
    assert_nothing_left(tmp_path)


def test_wrong_archive_checksum(server, tmp_path):
    with pytest.raises(DataError, match=r"0\.tar\.gz has MD5 .*, not .*try again"):
        fetch_archive(describe(GOOD), tmp_path, url=server(GOOD + b"\0"))
    assert_nothing_left(tmp_path)


def test_truncated_download(server, tmp_path):
    url = server(GOOD[:-5], length=len(GOOD))
    with pytest.raises(DataError, match=rf"(ended after {len(GOOD) - 5} of {len(GOOD)} bytes|could not download).*try"):
        fetch_archive(describe(GOOD), tmp_path, url=url)
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize("length", [True, False])
def test_download_is_bounded(server, tmp_path, monkeypatch, length):
    monkeypatch.setattr("fastslow.data.fetch.MAX_ARCHIVE", len(GOOD) - 1)
    with pytest.raises(DataError, match="larger than"):
        fetch_archive(describe(GOOD), tmp_path, url=server(GOOD, length=length))
    assert_nothing_left(tmp_path)


def link(name, target, kind=tarfile.SYMTYPE):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return name, info


def test_only_expected_members_are_written(server, tmp_path):
    root = tmp_path / "root"
    packed = pack(
        [
            ("../escaped.bin", b"x"),
            ("/tmp/absolute.bin", b"x"),
            ("the-files/../../escaped.bin", b"x"),
            ("the-files/extra.txt", b"x"),
            ("one.bin", b"in the wrong place"),
            link("the-files/one.bin", "/etc/passwd"),  # not a regular file, so not ours
            *(("./the-files/" + name, data) for name, data in CONTENTS.items()),
        ]
    )
    folder = fetch_archive(describe(packed), root, url=server(packed))
    assert sorted(path.name for path in folder.iterdir()) == sorted(CONTENTS)
    assert not (folder / "one.bin").is_symlink()
    assert [path.name for path in tmp_path.iterdir()] == ["root"]
    assert [path.name for path in root.iterdir()] == ["the-files"]


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        (pack([("the-files/one.bin", CONTENTS["one.bin"])]), "holds no the-files/two.bin"),
        (pack([link("the-files/one.bin", "the-files/two.bin", tarfile.LNKTYPE)]), "holds no the-files/one.bin"),
        (pack([("the-files/one.bin", b"longer than it should")]), "one.bin in .* has 21 bytes, not 10"),
        (pack([("the-files/one.bin", b"FIRST FILE")]), "one.bin in .* has MD5 .*, not "),
        (b"this is not an archive", "not a readable .tar.gz"),
        (pack([("the-files/one.bin", os.urandom(5000))])[:3000], "not a readable .tar.gz|has 5000 bytes"),
        (b"", "not a readable .tar.gz"),
    ],
    ids=["missing", "hard link", "size", "checksum", "no archive", "cut", "empty"],
)
def test_bad_archives(server, tmp_path, packed, message):
    with pytest.raises(DataError, match=message):
        fetch_archive(describe(packed), tmp_path, url=server(packed, length=len(packed) or False))
    assert_nothing_left(tmp_path)


def test_a_failed_write_is_not_blamed_on_the_network(server, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fastslow.data.fetch.os.replace", full)
    with pytest.raises(OSError, match="No space left") as caught:
        fetch_archive(describe(GOOD), tmp_path, url=server(GOOD))
    assert not isinstance(caught.value, DataError)
    assert not is_present(describe(GOOD), tmp_path)
    assert not list(tmp_path.glob(".fetch-*"))


def test_data_root(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FASTSLOW_DATA", raising=False)
    assert data_root() == tmp_path / ".cache" / "fastslow"
    monkeypatch.setenv("FASTSLOW_DATA", "~/elsewhere")
    assert data_root() == tmp_path / "elsewhere"
    assert data_root("here") == Path("here")


def test_progress_bar_is_for_terminals(server, tmp_path, monkeypatch, capsys):
    archive = describe(GOOD)
    fetch_archive(archive, tmp_path / "quiet", url=server(GOOD))
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    fetch_archive(archive, tmp_path / "shown", url=server(GOOD))
    out, err = capsys.readouterr()
    assert out == ""
    assert "downloading" in err
