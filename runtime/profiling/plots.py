"""Plots as SVG elements, drawn by hand: no script, no font file, nothing to load.

matplotlib would be an extra of tens of megabytes for three kinds of plots, and libraries that embed
plots bring scripts of megabytes. Colours and fonts are the style sheet's of the page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree as ET

# As wide as a narrow page: a plot that is shrunk is not readable.
_WIDTH, _LEFT, _RIGHT = 460, 156, 98
_ROW, _BAR = 30, 18


def bars(rows: Mapping[str, Mapping[str, float]], unit: str, title: str) -> str:
    """Horizontal bars, several series a row.

    Args:
        rows: for each row the values of its series, at least 0; every row may have other series.
        unit: behind the numbers.
        title: read out to those who do not see the plot.
    """
    names = _series(rows)
    largest = max((v for row in rows.values() for v in row.values()), default=0.0)
    thin = _BAR if all(len(row) == 1 for row in rows.values()) else 13
    heights = [len(row) * (thin + 2) + 12 for row in rows.values()]
    svg = _svg(sum(heights) + 8, title)
    y = 4.0
    for (label, row), height in zip(rows.items(), heights, strict=True):
        _text(svg, _LEFT - 8, y + height / 2, label, "end")
        for index, (name, value) in enumerate(row.items()):
            top = y + 6 + index * (thin + 2)
            width = _scaled(value, largest)
            _rect(svg, _LEFT, top, width, thin, names.index(name), f"{label}, {name}")
            _text(svg, _LEFT + width + 5, top + thin / 2, f"{_number(value)} {unit}", "start")
        y += height
    return _string(svg)


def stacks(rows: Mapping[str, Mapping[str, float]], unit: str, title: str) -> str:
    """One horizontal bar a row, made of its series; see ``bars``. Negative values are left out."""
    names = _series(rows)
    largest = max((sum(max(v, 0) for v in row.values()) for row in rows.values()), default=0.0)
    svg = _svg(len(rows) * _ROW + 8, title)
    for index, (label, row) in enumerate(rows.items()):
        top = 4 + index * _ROW
        _text(svg, _LEFT - 8, top + _ROW / 2, label, "end")
        x = float(_LEFT)
        for name, value in row.items():
            width = _scaled(max(value, 0), largest)
            note = f"{label}, {name}: {_number(value)} {unit}"
            _rect(svg, x, top + (_ROW - _BAR) / 2, width, _BAR, names.index(name), note)
            x += width
        total = sum(row.values())
        _text(svg, x + 5, top + _ROW / 2, f"{_number(total)} {unit}", "start")
    return _string(svg)


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]], x_title: str, y_title: str, title: str
) -> str:
    """Curves with points over one pair of axes; y begins at 0, x at the first point.

    Args:
        series: for each curve its points (x, y), x ascending, none negative.
    """
    height, bottom, left, top = 260, 40, 60, 16
    svg = _svg(height, title)
    points = [point for curve in series.values() for point in curve]
    first, last = min((x for x, _ in points), default=0.0), max((x for x, _ in points), default=1.0)
    x_ticks = [tick for tick in _ticks(last, whole=True) if first <= tick <= last]
    y_ticks = _ticks(max((y for _, y in points), default=1.0))
    width = _WIDTH - left - 20

    def place(x: float, y: float) -> tuple[float, float]:
        across = left + width * (x - first) / max(last - first, 1e-6)
        return across, height - bottom - (height - bottom - top) * y / y_ticks[-1]

    for tick in y_ticks:
        x, y = place(first, tick)
        _line(svg, x, y, x + width, y, "grid")
        _text(svg, x - 6, y, _number(tick), "end")
    for tick in x_ticks:
        x, y = place(tick, 0)
        _line(svg, x, y, x, y + 4, "grid")
        _text(svg, x, y + 14, _number(tick), "middle")
    _text(svg, left + width / 2, height - 6, x_title, "middle")
    _text(svg, left, 6, y_title, "start")
    for index, (name, curve) in enumerate(series.items()):
        places = [place(x, y) for x, y in curve]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        ET.SubElement(svg, "polyline", {"points": path, "class": f"curve s{index}"})
        for (x, y), (across, down) in zip(curve, places, strict=True):
            dot = ET.SubElement(
                svg,
                "circle",
                {"cx": f"{across:.1f}", "cy": f"{down:.1f}", "r": "3.5", "class": f"s{index}"},
            )
            ET.SubElement(dot, "title").text = f"{name}: {_number(x)}, {_number(y)}"
    return _string(svg)


def _series(rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows.values() for name in row))


def _scaled(value: float, largest: float) -> float:
    return (_WIDTH - _LEFT - _RIGHT) * value / largest if largest > 0 else 0.0


def _number(value: float) -> str:
    """Three significant digits, no exponent."""
    if value == 0 or not math.isfinite(value):
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _ticks(largest: float, *, whole: bool = False) -> list[float]:
    """About five round numbers from 0 to at least ``largest``."""
    largest = max(largest, 1e-6)
    raw = largest / 5
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= raw)
    step = max(1.0, math.ceil(step)) if whole else step
    return [index * step for index in range(math.ceil(largest / step) + 1)]


def _svg(height: float, title: str) -> ET.Element:
    attributes = {"viewBox": f"0 0 {_WIDTH} {height:.0f}", "role": "img"}
    svg = ET.Element("svg", attributes)
    ET.SubElement(svg, "title").text = title
    return svg


def _rect(
    svg: ET.Element, x: float, y: float, width: float, height: float, series: int, note: str
) -> None:
    box = {"x": x, "y": y, "width": width, "height": height}
    attributes = {name: f"{value:.1f}" for name, value in box.items()} | {"class": f"s{series}"}
    ET.SubElement(ET.SubElement(svg, "rect", attributes), "title").text = note


def _line(svg: ET.Element, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
    ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    attributes = {name: f"{value:.1f}" for name, value in ends.items()} | {"class": kind}
    ET.SubElement(svg, "line", attributes)


def _text(svg: ET.Element, x: float, y: float, text: str, anchor: str) -> None:
    attributes = {"x": f"{x:.1f}", "y": f"{y + 4:.1f}", "text-anchor": anchor}
    ET.SubElement(svg, "text", attributes).text = text


def _string(svg: ET.Element) -> str:
    return ET.tostring(svg, encoding="unicode")
