"""The documentation as data: pages, their code blocks, and the commands that they show."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]

_BLOCK = re.compile(r"^(?:<!-- not run: (.+?) -->\n+)?```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"`(fastslow [^`]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block. One behind ``<!-- not run: reason -->`` isn't executed."""

    language: str
    code: str
    line: int  # of its first line of code, from 1
    not_run: str | None


def blocks(text: str, language: str | None = None) -> list[Block]:
    found = (
        Block(match[2], match[3], text[: match.start(3)].count("\n") + 1, match[1]) for match in _BLOCK.finditer(text)
    )
    return [block for block in found if language in (None, block.language)]


def commands(text: str) -> list[str]:
    """Every ``fastslow ...`` that a reader could type: in bash blocks, in indented lines, and inside of sentences."""
    lines = [line for block in blocks(text, "bash") for line in block.code.splitlines()]
    prose = re.sub(r"<!--.*?-->", "", _BLOCK.sub("", text), flags=re.DOTALL)
    lines += [line.strip() for line in re.findall(r"^    +fastslow .+$", prose, re.MULTILINE)]
    lines += [" ".join(span.split()) for span in _SPAN.findall(prose)]
    shown = [line[line.index("fastslow ") :] for line in lines if re.match(r"(?:torchrun .*-- )?fastslow ", line)]
    return list(dict.fromkeys(shown))


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()
