"""Numbers as Java writes them, so that texts are equal to what Kafka Connect makes of them."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np

__all__ = ["double_text", "float_text", "shortest_float", "single"]


def double_text(value: float) -> str:
    """Write a double as Java's ``Double.toString`` does.

    >>> double_text(0.1), double_text(1e10), double_text(-0.0001), double_text(100.0)
    ('0.1', '1.0E10', '-1.0E-4', '100.0')
    """
    return _text(value, repr(value))


def float_text(value: float) -> str:
    """Write a single-precision number as Java's ``Float.toString`` does.

    >>> float_text(single(1.1)), float_text(1e10)
    ('1.1', '1.0E10')
    """
    return _text(value, str(np.float32(value)))


def single(value: float) -> float:
    """Round to single precision; what is too large becomes infinite.

    >>> single(0.1)
    0.10000000149011612
    """
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def shortest_float(value: float) -> float:
    """Give the double that prints as the single-precision number does.

    >>> shortest_float(single(0.1))
    0.1
    """
    return float(str(np.float32(value)))


def _text(value: float, digits: str) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    number = Decimal(digits)
    if not number:
        return "-0.0" if math.copysign(1, value) < 0 else "0.0"
    exponent = number.adjusted()
    if -3 <= exponent < 7:
        text = f"{number:f}"
        return text if "." in text else f"{text}.0"
    mantissa = f"{number.scaleb(-exponent).normalize():f}"
    return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}E{exponent}"
