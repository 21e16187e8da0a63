"""The documentation as a site: built strictly and without a network, and no link in it is dead."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pages import PAGES, ROOT


class _Page(HTMLParser):
    """What a page links to, what it loads, and which places in it can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in ("script", "img", "link", "iframe", "source"):
            self.loads += [given[name] for name in ("src", "href") if name in given]


def test_the_site(tmp_path):
    """One test, since the site is built once."""
    _build(tmp_path)
    _every_page_is_there(tmp_path)
    _links_lead_somewhere_and_nothing_is_loaded_from_elsewhere(tmp_path)
    _docstrings_are_in_the_reference(tmp_path)


def _build(folder: Path) -> None:
    nowhere = "http://127.0.0.1:9"
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "http_proxy": nowhere, "https_proxy": nowhere}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _target(site: Path, page: Path, path: str) -> Path:
    target = site / path.lstrip("/") if path.startswith("/") else page.parent / path
    return target / "index.html" if path.endswith("/") or target.is_dir() else target


def _every_page_is_there(site: Path) -> None:
    names = {page.stem.lower() for page in PAGES} - {"readme"} | {"tutorial"}
    assert all((site / name / "index.html").is_file() for name in names)
    for report in ("results.html", "diagnosis.html"):  # the reports that stand alone, as `fastslow report` wrote them
        assert (site / report).read_bytes() == (ROOT / "docs" / report).read_bytes()


def _links_lead_somewhere_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = {path.resolve(): _Page(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > len(PAGES)
    for path, page in pages.items():
        for link in (*page.links, *page.loads):
            address = urlsplit(link)
            if address.scheme or address.netloc:
                assert link not in page.loads or address.scheme == "data", f"{path}: loads {link}"
                continue
            target = _target(site, path, unquote(address.path)).resolve() if address.path else path
            assert target.is_file(), f"{path}: {link}"
            if address.fragment and target in pages and link in page.links:
                place = unquote(address.fragment)
                assert place in pages[target].places or place.startswith("__"), f"{path}: {link}"


def _docstrings_are_in_the_reference(site: Path) -> None:
    text = (site / "api" / "index.html").read_text()
    assert 'id="fastslow.binarize_"' in text
    assert "any <code>nn.Module</code>" in text
    assert ":func:" not in text
