"""Numbers as Kafka Connect converts them, bits cut off, and floats as text."""

from __future__ import annotations

import math
import re
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
    """Read a float as Python or Java writes it; Java's may have an f or a d behind it.

    Raises
    ------
    ValueError
        It is not a float.

    Examples
    --------
    >>> [parse_float(text) for text in ("1.0E10", "1e+16", "2.5f", "-Infinity", "inf")]
    [10000000000.0, 1e+16, 2.5, -inf, inf]
    """
    if "_" in text:
        raise ValueError(text)
    return float(re.sub(r"(?<=[\d.])[fFdD]+$", "", text.strip()))


def float_text(value: float, *, is_single: bool = False) -> str:
    """Write a number as Python does, by its shortest digits.

    >>> [float_text(one) for one in (0.1, 100.0, 1e16, float("inf"))]
    ['0.1', '100.0', '1e+16', 'inf']
    >>> float_text(single(1.1), is_single=True)
    '1.1'
    """
    return repr(shortest_float(value) if is_single else value)
