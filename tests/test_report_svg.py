"""Axes, ticks and values of the figures."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

from fastslow.report.svg import Axis, Series, chart, nice_ticks, tick_text


def test_axes() -> None:
    assert nice_ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert nice_ticks(88.9, 90.6) == [89.0, 89.5, 90.0, 90.5]
    for low, ticks in ((0.52, ("0.6", "0.8", "1")), (0.15, ("0.2", "0.5", "1")), (1e-4, ("0.001", "0.01", "0.1"))):
        body = chart([Series("a", 0, [0, 1], [low, 1.1])], Axis("x"), Axis("y", log=True), alt="")
        assert all(f">{tick}<" in body for tick in ticks), low
    assert [tick_text(v) for v in (0, -0.5, 1e-4, 2e5, 1000)] == ["0", "−0.5", "10⁻⁴", "2·10⁵", "1000"]
    flat = chart([Series("one point", 0, [1], [5.0], points=True)], Axis("x", log=True), Axis("y"), alt="a point")
    ElementTree.fromstring(flat)


def test_values_that_have_no_place_are_left_out() -> None:
    for ys, low in (([0.0, 0.1, 0.2], None), ([math.nan, 0.1, math.inf], None), ([0.3, 0.1, 0.2], [0.1, 0.0, 0.1])):
        high = None if low is None else [1.0, 1.0, 1.0]
        body = chart([Series("a", 0, [1, 2, 3], ys, low, high)], Axis("x"), Axis("y", log=True), alt="")
        ElementTree.fromstring(body)
        assert "nan" not in body
        assert "inf" not in body
    hints = chart([Series("a", 0, [1, 2, 3], [0, 0.1, 0.2], points=True)], Axis("x"), Axis("y", log=True), alt="")
    assert re.findall(r"<title>a: (.*?)</title>", hints) == ["2, 0.1", "3, 0.2"]
    for nothing in ([0.0, 0.0], [math.nan, math.nan], []):
        empty = chart([Series("a", 0, [1, 2][: len(nothing)], nothing)], Axis("x"), Axis("y", log=True), alt="")
        assert "no value can be drawn" in empty
    for low, high in ((1e-12, 3e-12), (1e-11, 2e-11), (1e17, 1e17), (1e5, 1.2e5)):
        for log in (False, True):
            ElementTree.fromstring(chart([Series("a", 0, [1, 2], [low, high])], Axis("x"), Axis("y", log=log), alt=""))
    assert len(set(nice_ticks(1e-12, 3e-12))) == 5
    assert [tick_text(v) for v in (2.5e-5, 1.05e5, -2.5e-4)] == ["2.5·10⁻⁵", "1.05·10⁵", "−2.5·10⁻⁴"]
