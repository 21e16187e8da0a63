"""What a report is made of, before it is Markdown or HTML."""

from __future__ import annotations

from dataclasses import dataclass, field

from .svg import Figure


@dataclass(frozen=True)
class Table:
    """Cells are plain text. The first ``labels`` columns name the row, the others hold numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: int = 1
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A heading with what belongs under it. ``folded`` ones open on demand in a browser."""

    name: str
    title: str
    lead: str
    items: tuple[Table | Figure, ...] = field(default_factory=tuple)
    folded: bool = False
