"""What a report is made of, before it is Markdown or HTML."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from .svg import Figure

NOT_RUN = "not run"


@dataclass(frozen=True)
class Table:
    """Cells are plain text. The first ``labels`` columns name the row, the others hold numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: int = 1
    note: str = ""

    def only_run(self) -> Table:
        """Without the rows that say “not run”, which the note names instead."""
        missing: dict[str, list[str]] = {}
        for row in self.rows:
            if NOT_RUN in row:
                missing.setdefault(row[0], []).extend(row[1 : self.labels])
        if not missing:
            return self
        named = "; ".join(f"{first} ({' / '.join(more)})" if more else first for first, more in missing.items())
        rows = tuple(row for row in self.rows if NOT_RUN not in row)
        return replace(self, rows=rows, note=f"Not run: {named}. {self.note}".rstrip())


@dataclass(frozen=True)
class Section:
    """A heading with what belongs under it. ``folded`` ones open on demand in a browser."""

    name: str
    title: str
    lead: str
    items: tuple[Table | Figure, ...] = field(default_factory=tuple)
    folded: bool = False
