"""Small charts as SVG text, for figures that are worth a look: bars of several orders of magnitude, and curves.

Written by hand: two kinds of charts are no reason to depend on a plotting library.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

_WIDTH = 860
_LEFT, _RIGHT, _TOP, _BOTTOM = 230, 110, 48, 46
_BAR, _GAP = 18, 6
_CURVES = 300
COLOURS = ("#0b6e99", "#d1730f", "#4c8c2b", "#8b5fbf", "#8a8a8a")


@dataclass(frozen=True)
class Bar:
    label: str
    value: float
    text: str
    """What stands at its end."""
    colour: str = COLOURS[0]
    group: str = ""
    """Bars of one group stand together, under its name."""


@dataclass(frozen=True)
class Curve:
    label: str
    points: Sequence[tuple[float, float]]
    colour: str = COLOURS[0]
    marks: Sequence[float] = field(default=())
    """Places on the horizontal axis that are marked."""


def bars(title: str, shown: Sequence[Bar]) -> str:
    """On a logarithmic scale, from a power of ten below the least value."""
    values = [bar.value for bar in shown if bar.value > 0]
    low = math.floor(math.log10(min(values))) if values else 0
    high = math.log10(max(values)) if values else 1
    width = _WIDTH - _LEFT - _RIGHT
    drawn: list[str] = []
    y, group = _TOP, ""
    for bar in shown:
        if bar.group != group:
            group, y = bar.group, y + _BAR
            drawn.append(_text(12, y, group, weight="bold"))
            y += _GAP
        share = (math.log10(bar.value) - low) / max(high - low, 0.1) if bar.value > 0 else 0.0
        long = max(1.0, share * width)
        drawn.append(f'<rect x="{_LEFT}" y="{y}" width="{long:.1f}" height="{_BAR}" fill="{bar.colour}"/>')
        drawn.append(_text(_LEFT - 8, y + _BAR - 5, bar.label, anchor="end"))
        drawn.append(_text(_LEFT + long + 6, y + _BAR - 5, bar.text))
        y += _BAR + _GAP
    return _document(title, y + 20, drawn)


def curves(title: str, across: str, upwards: str, shown: Sequence[Curve], *, logarithmic: bool = False) -> str:
    """`logarithmic`: the horizontal axis, whose values are then above 0."""
    places = [x for curve in shown for x, _ in curve.points]
    heights = [y for curve in shown for _, y in curve.points]
    left, width = 80, _WIDTH - 80 - 30
    scale = math.log10 if logarithmic else float
    first, last = (scale(min(places)), scale(max(places))) if places else (0.0, 1.0)
    top = max(heights, default=1.0) or 1.0

    def across_at(value: float) -> float:
        return left + (scale(value) - first) / ((last - first) or 1.0) * width

    def up_at(value: float) -> float:
        return _TOP + _CURVES - value / top * _CURVES

    drawn = [f'<path d="M{left} {_TOP}V{_TOP + _CURVES}H{left + width}" fill="none" stroke="#444"/>']
    for share in (0.0, 0.5, 1.0):
        drawn.append(_text(left - 8, up_at(share * top) + 4, f"{share * top:,.3g}", anchor="end"))
    for value in _ticks(first, last, logarithmic):
        drawn.append(_text(across_at(value), _TOP + _CURVES + 18, f"{value:,.3g}", anchor="middle"))
    for number, curve in enumerate(shown):
        path = " ".join(f"{across_at(x):.1f},{up_at(y):.1f}" for x, y in curve.points)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{curve.colour}" stroke-width="2"/>')
        drawn.append(_text(left + 12, _TOP + 16 * (number + 1), curve.label, colour=curve.colour))
        for mark in curve.marks:
            x = across_at(mark)
            drawn.append(f'<path d="M{x:.1f} {_TOP + _CURVES}v-6" stroke="{curve.colour}"/>')
    drawn.append(_text(left + width, _TOP + _CURVES + 36, across, anchor="end"))
    drawn.append(_text(12, _TOP - 10, upwards))
    return _document(title, _TOP + _CURVES + _BOTTOM, drawn)


def _ticks(first: float, last: float, logarithmic: bool) -> Iterator[float]:
    if logarithmic:
        yield from (10.0**power for power in range(math.ceil(first), math.floor(last) + 1))
    else:
        yield from (first + (last - first) * step / 5 for step in range(6))


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal", colour: str = "#222") -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}" fill="{colour}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


def _document(title: str, height: float, drawn: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height:.0f}"'
        ' font-family="sans-serif" font-size="12">'
    )
    lines = [head, '<rect width="100%" height="100%" fill="white"/>', _text(12, 22, title, weight="bold"), *drawn]
    return "\n".join([*lines, "</svg>", ""])
