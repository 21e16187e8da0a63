"""Hooks of mkdocs.yml: pages that live outside of docs/, and Markdown as GitHub reads it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
OUTSIDE = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
_ITEM = re.compile(r"(?:[-*]|\d+\.) ")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """README and changelog become pages; the examples, which pages link to, are served as files."""
    for source, target in OUTSIDE.items():
        text = re.sub(r"\]\(docs/", "](", (ROOT / source).read_text(encoding="utf-8"))
        files.append(File.generated(config, target, content=_site_links(text)))
    for example in sorted((ROOT / "examples").glob("*.py")):
        files.append(File.generated(config, f"examples/{example.name}", abs_src_path=str(example)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    return lists_apart(_site_links(markdown))


def on_page_content(html: str, *, page: Page, **_: Any) -> str:
    """What MkDocs leaves: a notebook's links to pages, and how docstrings name other things in reStructuredText."""
    if page.file.src_uri.endswith(".ipynb"):
        html = re.sub(r'href="(\w+)\.md', r'href="../\1/', html)
    return re.sub(r":(?:func|class|meth|mod):(?=<code)", "", html)


def _site_links(text: str) -> str:
    for source, target in OUTSIDE.items():
        text = re.sub(rf"\]\((?:\.\./)?{re.escape(source)}", f"]({target}", text)
    return text.replace("](../examples/", "](examples/")


def lists_apart(markdown: str) -> str:
    """An empty line before every list: GitHub needs none behind a paragraph, Python-Markdown does."""
    lines: list[str] = []
    fenced = False
    for line in markdown.split("\n"):
        fenced ^= line.startswith("```")
        before = lines[-1] if lines else ""
        if not fenced and _ITEM.match(line) and before and not _ITEM.match(before) and not before.startswith(" "):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)
