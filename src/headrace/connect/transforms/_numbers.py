"""Numbers as Java converts them: bits cut off, floats by the shortest digits."""

from __future__ import annotations

import math
import re
import struct
from decimal import Decimal

_FLOAT = re.compile(r"\s*[+-]?(NaN|Infinity|(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[fFdD]?)\s*", re.ASCII)


def whole(value: float | Decimal, bits: int) -> int:
    """Return a number as a whole one of that many bits.

    What is behind the point is cut off, and so are the bits that do not fit; a float beyond the
    range becomes the nearest number in it first.

    >>> whole(300, 8), whole(-2.5, 16), whole(1e30, 32)
    (44, -2, 2147483647)
    """
    if isinstance(value, float):
        value = _within(value, 64 if bits == 64 else 32)
    low = int(value) & ((1 << bits) - 1)
    return low - (1 << bits) if low >> (bits - 1) else low


def _within(value: float, bits: int) -> int:
    if math.isnan(value):
        return 0
    most = (1 << (bits - 1)) - 1
    if math.isinf(value):
        return most if value > 0 else -most - 1
    return max(-most - 1, min(most, int(value)))


def float32(value: float | Decimal) -> float:
    """Return the nearest float of 32 bits.

    >>> float32(0.1)
    0.10000000149011612
    """
    try:
        return float(struct.unpack("<f", struct.pack("<f", float(value)))[0])
    except OverflowError:
        return math.copysign(math.inf, float(value))


def parse_float(text: str) -> float:
    """Read a float as Java does.

    Raises
    ------
    ValueError
        It is none.
    """
    if _FLOAT.fullmatch(text) is None:
        raise ValueError(text)
    return float(text.strip().rstrip("fFdD"))


def double_text(value: float) -> str:
    """Write a float as Java does.

    >>> double_text(100.0), double_text(12345678.9), double_text(0.000012)
    ('100.0', '1.23456789E7', '1.2E-5')
    """
    return _java(value, repr(value))


def float_text(value: float) -> str:
    """Write a float of 32 bits as Java does.

    >>> float_text(float32(0.1))
    '0.1'
    """
    digits = next(
        text for text in (f"{value:.{count}g}" for count in range(1, 18)) if _is(text, value)
    )
    return _java(value, digits)


def _is(text: str, value: float) -> bool:
    return math.isnan(value) or float32(float(text)) == value


def _java(value: float, shortest: str) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    sign, digits, exponent = Decimal(shortest).normalize().as_tuple()
    assert isinstance(exponent, int)
    minus = "-" if sign else ""
    figures = "".join(map(str, digits))
    if value == 0:
        return f"{minus}0.0"
    point = len(figures) + exponent
    if -3 < point <= 7:
        padded = figures.rjust(len(figures) + max(0, 1 - point), "0").ljust(point, "0")
        cut = max(point, 1)
        return f"{minus}{padded[:cut]}.{padded[cut:] or '0'}"
    return f"{minus}{figures[0]}.{figures[1:] or '0'}E{point - 1}"
