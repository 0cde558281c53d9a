"""Numbers as Kafka Connect converts them: bits cut off, floats by the shortest digits."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np


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


def single(value: float | Decimal) -> float:
    """Round to single precision; what is too large becomes infinite.

    >>> single(0.1)
    0.10000000149011612
    """
    with np.errstate(over="ignore"):
        return float(np.float32(float(value)))


def shortest_float(value: float) -> float:
    """Return the double that prints as the single-precision number does.

    >>> shortest_float(single(0.1))
    0.1
    """
    return float(str(np.float32(value)))


def parse_float(text: str) -> float:
    """Read a float, which may have the f or d behind it that numbers have in Java.

    Raises
    ------
    ValueError
        It is not a float.
    """
    if "_" in text:
        raise ValueError(text)
    return float(text.strip().rstrip("fFdD"))


def float_text(value: float, *, is_single: bool = False) -> str:
    """Write a number as Kafka Connect does: with a point, and with E where it is large or small.

    >>> [float_text(one) for one in (0.1, 100.0, 12345678.9, -0.0001)]
    ['0.1', '100.0', '1.23456789E7', '-1.0E-4']
    >>> float_text(single(1.1), is_single=True)
    '1.1'
    """
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
    number = Decimal(str(np.float32(value)) if is_single else repr(value))
    exponent = number.adjusted() if number else 0
    is_plain = -3 <= exponent < 7
    digits = f"{number if is_plain else number.scaleb(-exponent).normalize():f}"
    return f"{digits}{'' if '.' in digits else '.0'}{'' if is_plain else f'E{exponent}'}"
