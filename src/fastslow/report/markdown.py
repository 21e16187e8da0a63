"""A report as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from .document import Section, Table


def render_markdown(title: str, intro: Sequence[str], sections: Sequence[Section]) -> str:
    parts = [f"# {title}", *intro]
    for section in sections:
        parts += [f"## {section.title}", *([section.lead] if section.lead else [])]
        for item in section.items:
            if isinstance(item, Table):
                parts.append(render_table(item))
            else:
                parts.append(f"![{_text(item.alt)}](figures/{item.name}.svg)")
        if not section.items:
            parts.append("Not run.")
    return "\n\n".join(parts) + "\n"


def render_table(table: Table) -> str:
    lines = []
    if table.title:
        lines += [f"**{_text(table.title)}**", ""]
    if table.rows:
        rule = [":---" if i < table.labels else "---:" for i in range(len(table.columns))]
        lines += [_row(table.columns), _row(rule), *(_row(_text(cell) for cell in row) for row in table.rows)]
    if table.note:
        lines += ["", table.note] if table.rows else [table.note]
    return "\n".join(lines)


def _row(cells: object) -> str:
    return "| " + " | ".join(cells) + " |"  # pyright: ignore[reportArgumentType, reportCallIssue]


def _text(text: str) -> str:
    return text.replace("|", "\\|")
