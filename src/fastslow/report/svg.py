"""Small plots as SVG text: lines with bands, points, ridges. Colours are CSS variables, so they follow light and dark.

A plot is drawn for about 440 pixels, so that its text keeps a readable size on a phone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

WIDTH, HEIGHT = 440, 300
LEFT, RIGHT, BOTTOM = 66, 14, 44
LEGEND_ROW = 19
COLOURS = 8

# One palette for both modes of a page; also put into a plot that is a file of its own.
LIGHT = ("#475569", "#d9480f", "#1971c2", "#2b8a3e", "#9c36b5", "#a16207", "#0c8599", "#c2255c")
DARK = ("#a9b4c2", "#ff922b", "#4dabf7", "#69db7c", "#da77f2", "#ffd43b", "#3bc9db", "#f783ac")


def variables(colours: Sequence[str], ink: str, faint: str, grid: str, paper: str) -> str:
    values = "".join(f"--c{i}:{colour};" for i, colour in enumerate(colours))
    return f"{values}--ink:{ink};--faint:{faint};--grid:{grid};--paper:{paper};"


LIGHT_VARIABLES = variables(LIGHT, "#1b2430", "#566171", "#e3e7ec", "#ffffff")
DARK_VARIABLES = variables(DARK, "#e8edf3", "#a3afbd", "#2d3743", "#161c23")
PLOT_RULES = (
    ".plot text{font:12.5px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:var(--ink)}"
    ".plot .tick{fill:var(--faint);font-size:12px}.plot .grid{stroke:var(--grid);stroke-width:1}"
    ".plot .mark{stroke:var(--faint);stroke-width:1.2;stroke-dasharray:3 3}"
    + "".join(
        f".plot .s{i}{{stroke:var(--c{i});fill:none;stroke-width:2;stroke-linejoin:round}}"
        f".plot .f{i}{{fill:var(--c{i})}}"
        for i in range(COLOURS)
    )
    + ".plot .band{opacity:.18;stroke:none}.plot .ridge{fill-opacity:.35;stroke-width:1.2}"
    ".plot .dash{stroke-dasharray:5 4}"
)


@dataclass(frozen=True)
class Figure:
    """A finished plot with the words around it. ``alt`` says in a sentence what can be seen."""

    name: str
    title: str
    alt: str
    body: str  # the <svg> element

    def standalone(self) -> str:
        """As a file of its own, following the reader's light or dark mode."""
        style = (
            f":root{{{LIGHT_VARIABLES}}}@media(prefers-color-scheme:dark){{:root{{{DARK_VARIABLES}}}}}"
            f".plot{{background:var(--paper)}}{PLOT_RULES}"
        )
        start = self.body.index(">") + 1
        return f"{self.body[:start]}<style>{style}</style>{self.body[start:]}\n"


@dataclass(frozen=True)
class Series:
    """A line, or points without a line. ``low`` and ``high`` are edges of its band, or ends of a point's bar."""

    label: str
    colour: int
    xs: Sequence[float]
    ys: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    points: bool = False
    line: bool = True
    dashed: bool = False


@dataclass(frozen=True)
class Axis:
    label: str
    log: bool = False
    limits: tuple[float, float] | None = None


class _Scale:
    """From values to pixels, with its ticks."""

    def __init__(self, axis: Axis, values: Sequence[float], start: float, end: float, margin: float) -> None:
        self.log, self.start, self.end = axis.log, start, end
        self._f = math.log10 if axis.log else float
        low, high = axis.limits or (min(values), max(values))
        if low == high:
            around = max(0.5, abs(low) * 1e-3)
            low, high = (low / 2, high * 2) if axis.log else (low - around, high + around)
        a, b = self._f(low), self._f(high)
        pad = 0.0 if axis.limits else margin * (b - a)
        self.low, self.high = a - pad, b + pad

    def __call__(self, value: float) -> float:
        return self.start + (self._f(value) - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        if not self.log:
            return nice_ticks(self.low, self.high)
        found = [10.0**e for e in range(math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9) + 1)]
        if len(found) >= 3:
            return found[:: math.ceil(len(found) / 6)]
        span = range(math.floor(self.low), math.floor(self.high) + 1)
        found = [m * 10.0**e for e in span for m in (1, 2, 5) if self.low <= math.log10(m * 10.0**e) <= self.high]
        # Within half a decade a logarithmic axis is nearly an even one.
        return found if len(found) >= 3 else nice_ticks(10.0**self.low, 10.0**self.high)


def nice_ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Multiples of 1, 2, 2.5 or 5 times a power of ten between two values."""
    raw = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    digits = max(0, 2 - math.floor(math.log10(step)))  # of the step and two more: sums of it are a little off
    return [round(i * step, digits) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def tick_text(value: float) -> str:
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        mantissa, exponent = f"{value:.2e}".split("e")
        mantissa = f"{float(mantissa):g}".replace("-", "−")
        power = f"10{_superscript(int(exponent))}"
        return power if mantissa == "1" else f"{mantissa}·{power}"
    return f"{value:g}".replace("-", "−")


def _superscript(number: int) -> str:
    return str(number).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def chart(
    series: Sequence[Series], x: Axis, y: Axis, *, alt: str, marks: Sequence[tuple[float, str]] = (), title: str = ""
) -> str:
    """An ``<svg>`` with axes, a legend above, and vertical ``marks`` with their words."""
    legend, rows = _legend(series)
    top = 12 + (20 if title else 0) + rows * LEGEND_ROW
    height = HEIGHT + rows * LEGEND_ROW + (20 if title else 0)
    series = _drawable(series, x, y)
    xs = [v for s in series for v in s.xs] + [at for at, _ in marks]
    ys = [v for s in series for part in (s.ys, s.low, s.high) if part is not None for v in part]
    if not ys:
        nothing = f'<text x="{WIDTH / 2:g}" y="{height / 2:g}" text-anchor="middle">no value can be drawn</text>'
        return f"{_open(height, alt)}{nothing}</svg>"
    to_x = _Scale(x, xs, LEFT, WIDTH - RIGHT, 0.03)
    to_y = _Scale(y, ys, height - BOTTOM, top, 0.06)
    parts = [_open(height, alt)]
    if title:
        parts.append(f'<text x="{LEFT}" y="17" font-weight="600">{escape(title)}</text>')
    parts += [f'<g transform="translate({LEFT},{14 + (20 if title else 0)})">{legend}</g>']
    parts += _axes(to_x, to_y, x, y, height, top)
    for at, words in marks:
        px = to_x(at)
        parts.append(f'<line class="mark" x1="{px:.1f}" x2="{px:.1f}" y1="{top}" y2="{height - BOTTOM}"/>')
        parts.append(f'<text class="tick" x="{px + 4:.1f}" y="{top + 12}">{escape(words)}</text>')
    # An inner <svg> cuts off what lies outside of the axes' limits.
    left, upper, wide, deep = LEFT - 5, top - 5, WIDTH - LEFT - RIGHT + 10, height - BOTTOM - top + 5
    box = f'x="{left}" y="{upper}" width="{wide}" height="{deep}" viewBox="{left} {upper} {wide} {deep}"'
    drawn = "".join(part for s in series for part in _draw(s, to_x, to_y))
    return "".join([*parts, f"<svg {box}>{drawn}</svg></svg>"])


def _fits(value: float, axis: Axis) -> bool:
    return math.isfinite(value) and (value > 0 or not axis.log)


def _drawable(series: Sequence[Series], x: Axis, y: Axis) -> list[Series]:
    """Without values that have no place on the axes; a band that reaches to such a value ends at the lowest drawn."""
    edges = [v for s in series for part in (s.ys, s.low, s.high) if part is not None for v in part if _fits(v, y)]
    floor = min(edges, default=0.0)
    found = []
    for s in series:
        kept = [i for i, (a, b) in enumerate(zip(s.xs, s.ys, strict=True)) if _fits(a, x) and _fits(b, y)]
        bands = [part and [part[i] if _fits(part[i], y) else floor for i in kept] for part in (s.low, s.high)]
        xs, ys = ([part[i] for i in kept] for part in (s.xs, s.ys))
        found.append(replace(s, xs=xs, ys=ys, low=bands[0], high=bands[1]))
    return found


def _open(height: float, alt: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" viewBox="0 0 {WIDTH} {height:g}" role="img" '
        f'aria-label="{escape(alt)}">'
    )


def _legend(series: Sequence[Series]) -> tuple[str, int]:
    parts, column, row = [], 0.0, 0
    for s in series:
        if not s.label:
            continue
        width = 34 + 7.0 * len(s.label)
        if column and column + width > WIDTH - LEFT - RIGHT + 12:
            column, row = 0.0, row + 1
        y = row * LEGEND_ROW
        dash = " dash" if s.dashed else ""
        key = (
            f'<line class="s{s.colour}{dash}" x1="{column:g}" x2="{column + 16:g}" y1="{y}" y2="{y}"/>'
            if s.line
            else f'<circle class="f{s.colour}" cx="{column + 8:g}" cy="{y}" r="4"/>'
        )
        parts.append(f'{key}<text x="{column + 21:g}" y="{y + 4}">{escape(s.label)}</text>')
        column += width
    return "".join(parts), row + 1 if parts else 0


def _axes(to_x: _Scale, to_y: _Scale, x: Axis, y: Axis, height: float, top: float) -> list[str]:
    parts = []
    for value in to_y.ticks():
        py = to_y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{py:.1f}" y2="{py:.1f}"/>')
        text = tick_text(value)
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{py + 4:.1f}" text-anchor="end">{text}</text>')
    floor = height - BOTTOM
    for value in to_x.ticks():
        px = to_x(value)
        parts.append(f'<line class="grid" x1="{px:.1f}" x2="{px:.1f}" y1="{floor}" y2="{floor + 4}"/>')
        text = tick_text(value)
        parts.append(f'<text class="tick" x="{px:.1f}" y="{floor + 17}" text-anchor="middle">{text}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle:g}" y="{height - 8:g}" text-anchor="middle">{escape(x.label)}</text>')
    centre = (top + floor) / 2
    turned = f'text-anchor="middle" transform="rotate(-90 14 {centre:g})"'
    parts.append(f'<text x="14" y="{centre:g}" {turned}>{escape(y.label)}</text>')
    return parts


def _draw(s: Series, to_x: _Scale, to_y: _Scale) -> list[str]:
    parts = []
    if s.low is not None and s.high is not None and s.points:
        for a, low, high in zip(s.xs, s.low, s.high, strict=True):
            parts.append(f'<path class="s{s.colour}" d="{_path([(to_x(a), to_y(low)), (to_x(a), to_y(high))])}"/>')
    elif s.low is not None and s.high is not None and len(s.xs):
        edge = [(to_x(a), to_y(b)) for a, b in zip(s.xs, s.high, strict=True)]
        edge += [(to_x(a), to_y(b)) for a, b in reversed(list(zip(s.xs, s.low, strict=True)))]
        parts.append(f'<path class="band f{s.colour}" d="{_path(edge)}Z"/>')
    places = [(to_x(a), to_y(b)) for a, b in zip(s.xs, s.ys, strict=True)]
    if s.line and places:
        parts.append(f'<path class="s{s.colour}{" dash" if s.dashed else ""}" d="{_path(places)}"/>')
    if s.points:
        for (px, py), a, b in zip(places, s.xs, s.ys, strict=True):
            hint = f"<title>{escape(s.label)}: {a:g}, {b:.4g}</title>"
            parts.append(f'<circle class="f{s.colour}" cx="{px:.1f}" cy="{py:.1f}" r="4">{hint}</circle>')
    return parts


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in places)


def ridges(rows: Sequence[tuple[str, Sequence[Sequence[float]]]], labels: Sequence[str], *, x: str, alt: str) -> str:
    """One row a layer, in each a filled outline for every label: shares in equal bins from -1 to 1."""
    step, lift, top = 21, 34, 58
    left = max(118, 14 + 6.4 * max((len(name) for name, _ in rows), default=0))  # room for the longest name
    height = top + step * len(rows) + BOTTOM - 6
    wide = WIDTH - left - RIGHT
    legend, _ = _legend([Series(label, colour, (), ()) for colour, label in enumerate(labels)])
    parts = [_open(height, alt), f'<g transform="translate({LEFT},16)">{legend}</g>']
    peak = max((value for _, shares in rows for share in shares for value in share), default=1.0) or 1.0
    for number, (name, shares) in enumerate(rows):
        floor = top + step * (number + 1) - 6
        parts.append(f'<line class="grid" x1="{left}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>')
        parts.append(f'<text class="tick" x="{left - 6}" y="{floor}" text-anchor="end">{escape(name)}</text>')
        for colour, share in enumerate(shares):
            places = [(left + wide * (i + 0.5) / len(share), floor - lift * v / peak) for i, v in enumerate(share)]
            outline = [(left, floor), *places, (WIDTH - RIGHT, floor)]
            parts.append(f'<path class="ridge f{colour}" stroke="var(--c{colour})" d="{_path(outline)}"/>')
    floor = top + step * len(rows) - 6
    for value in (-1, -0.5, 0, 0.5, 1):
        px = left + wide * (value + 1) / 2
        parts.append(f'<text class="tick" x="{px:.1f}" y="{floor + 16}" text-anchor="middle">{tick_text(value)}</text>')
    parts.append(f'<text x="{left + wide / 2:g}" y="{height - 6:g}" text-anchor="middle">{escape(x)}</text>')
    return "".join([*parts, "</svg>"])
