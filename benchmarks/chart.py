"""Small line charts as one SVG: a panel per measure, the amount of data from left to right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Panel", "charts"]

_WIDTH, _HEIGHT, _COLUMNS = 260, 186, 3
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 22, 58, 30
_INK, _FAINT, _LINE = "#24292f", "#d0d7de", "#0969da"


@dataclass(frozen=True, slots=True)
class Panel:
    """One measure at several amounts of data."""

    title: str
    unit: str
    #: Value by amount, e.g. ``{"1×": 0.2}``.
    values: Mapping[str, float]


def charts(panels: Sequence[Panel], title: str) -> str:
    """Draw panels in rows; every y axis begins at zero, so that growth looks as it is.

    Examples
    --------
    >>> drawn = charts([Panel("start", "s", {"1×": 0.1, "10×": 0.12})], "Growth")
    >>> drawn.startswith("<svg"), "start" in drawn
    (True, True)
    """
    rows = -(-len(panels) // _COLUMNS)
    width, height = _COLUMNS * _WIDTH, 34 + rows * _HEIGHT
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="sans-serif" font-size="11">'
        ),
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(12, 22, title, size=15, weight="bold"),
    ]
    for number, panel in enumerate(panels):
        row, column = divmod(number, _COLUMNS)
        parts.append(f'<g transform="translate({column * _WIDTH},{34 + row * _HEIGHT})">')
        parts += _panel(panel)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel) -> list[str]:
    amounts, values = list(panel.values), list(panel.values.values())
    top = _round_up(max(values) or 1.0)
    inner_width, inner_height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    step = inner_width / max(len(values) - 1, 1)
    points = [
        (_LEFT + number * step, _TOP + inner_height * (1 - value / top))
        for number, value in enumerate(values)
    ]
    parts = [
        _text(12, 22, panel.title, weight="bold"),
        _text(12, 36, panel.unit, fill="#57606a"),
    ]
    for share in (0.0, 0.5, 1.0):
        y = _TOP + inner_height * (1 - share)
        parts.append(
            f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="{_FAINT}"/>'
        )
        parts.append(_text(_LEFT - 6, y + 4, _number(top * share), anchor="end"))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts.append(f'<polyline points="{path}" fill="none" stroke="{_LINE}" stroke-width="2"/>')
    anchors = ["start", *["middle"] * (len(values) - 2), "end"]
    for (x, y), amount, value, anchor in zip(points, amounts, values, anchors, strict=False):
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{_LINE}"/>')
        parts.append(_text(x, y - 8, _number(value), anchor=anchor))
        parts.append(_text(x, _HEIGHT - _BOTTOM + 16, amount, anchor="middle"))
    return parts


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 11,
    weight: str = "normal",
    anchor: str = "start",
    fill: str = _INK,
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}" fill="{fill}">{escape(text)}</text>'
    )


def _round_up(value: float) -> float:
    """Give the next number that an axis may end with.

    >>> [_round_up(value) for value in (0.13, 7, 1030)]
    [0.2, 10.0, 2000.0]
    """
    scale = 1.0
    while scale < value:
        scale *= 10
    while scale / 10 >= value:
        scale /= 10
    return next(scale * share for share in (0.2, 0.5, 1.0) if scale * share >= value)


def _number(value: float) -> str:
    """Write a number with three digits.

    >>> [_number(value) for value in (0.00169, 178, 5000, 165_254, 4_413_470)]
    ['0.00169', '178', '5 k', '165 k', '4.41 M']
    """
    for unit, name in ((1_000_000, " M"), (1000, " k")):
        if value >= unit * 0.9995:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"
