"""A report as one HTML page that needs nothing else: no script, no font, no picture from anywhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from importlib import resources

from .document import Section, Table
from .svg import DARK_VARIABLES, LIGHT_VARIABLES, PLOT_RULES, Figure
from .words import NONE, NOT_RUN


def style() -> str:
    """The page's whole style sheet: colours of both modes, the page, the plots."""
    page = (resources.files("fastslow.report") / "style.css").read_text()
    light = f":root{{color-scheme:light dark;{LIGHT_VARIABLES}--soft:#f4f6f9;--edge:#b6c0cc;--link:#1559a8}}"
    dark = f"@media(prefers-color-scheme:dark){{:root{{{DARK_VARIABLES}--soft:#1d252e;--edge:#4a5765;--link:#7cb8ff}}}}"
    return f"{light}{dark}\n{page}{PLOT_RULES}"


def render_html(title: str, intro: Sequence[str], sections: Sequence[Section]) -> str:
    links = "".join(f'<a href="#{s.name}">{escape(_short(s.title))}</a>' for s in sections)
    body = "".join(_section(section) for section in sections)
    words = "".join(f"<p>{_prose(text)}</p>" for text in intro)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>fastslow: {escape(title.lower())}</title>\n<style>{style()}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>{escape(title)}</h1>\n{words}\n<nav>{links}</nav>\n{body}</main>\n</body>\n</html>\n"
    )


def _section(section: Section) -> str:
    found = [_table(item) for item in section.items if isinstance(item, Table)]
    drawn = [_figure(item) for item in section.items if isinstance(item, Figure)]
    inside = "".join(found) + (f'<div class="figures">{"".join(drawn)}</div>' if drawn else "")
    if not section.items:
        inside = '<p class="note">Not run.</p>'
    if section.folded:
        inside = f"<details><summary>Show</summary>{inside}</details>"
    head = f"<h2>{escape(section.title)}</h2>" + (f"<p>{_prose(section.lead)}</p>" if section.lead else "")
    return f'<section id="{section.name}">{head}{inside}</section>\n'


def _table(table: Table) -> str:
    title = f"<b>{escape(table.title)}.</b> " if table.title and not table.rows else ""
    note = f'<p class="note">{title}{_prose(table.note)}</p>' if table.note else ""
    if not table.rows:
        return note
    head = "".join(f"<th{_left(i, table)}>{escape(name)}</th>" for i, name in enumerate(table.columns))
    caption = f"<caption>{escape(table.title)}</caption>" if table.title else ""
    rows, before = [], None
    for row in table.rows:
        cells = "".join(f"<td{_class(i, cell, table)}>{escape(cell)}</td>" for i, cell in enumerate(row))
        new = before is not None and table.labels > 1 and row[0] != before
        rows.append(f'<tr class="new">{cells}</tr>' if new else f"<tr>{cells}</tr>")
        before = row[0]
    return (
        f'<div class="scroll" tabindex="0"><table>{caption}'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>{note}"
    )


def _left(column: int, table: Table) -> str:
    return f' class="{_label_class(column, table)}"' if column < table.labels else ""


def _label_class(column: int, table: Table) -> str:
    """The last label stays in sight when the table is scrolled sideways."""
    return "l k" if column == table.labels - 1 else "l"


def _class(column: int, cell: str, table: Table) -> str:
    names = [_label_class(column, table)] if column < table.labels else []
    if cell in (NONE, NOT_RUN):
        names.append("no")
    elif table.columns[column].startswith("Ours, last epoch"):
        names.append("ours")
    return f' class="{" ".join(names)}"' if names else ""


def _figure(figure: Figure) -> str:
    return f"<figure>{figure.body}<figcaption>{escape(figure.title)}</figcaption></figure>"


def _short(title: str) -> str:
    return title.split(":")[0]


def _prose(text: str) -> str:
    """Text with `code` in backquotes."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
