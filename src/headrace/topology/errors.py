"""What an operator does with records that it cannot handle."""

from __future__ import annotations

from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from typing import Any, Literal

# Addition without silent rounding.

# Python's own context silently rounds to 28 digits; this one keeps all, or raises if it cannot.
_EXACT = Context(prec=10_000, traps=[Inexact, InvalidOperation, Overflow])


def add_numbers(left: Any, right: Any) -> Any:
    """Add two numbers: ints and decimals exactly, floats as Python does.

    Raises
    ------
    TypeError
        One is a decimal and the other a float.
    decimal.Inexact
        The exact sum of two decimals has more than 10,000 digits.

    Examples
    --------
    >>> add_numbers(2**63, 1), add_numbers(1.5, 1)
    (9223372036854775809, 2.5)
    >>> add_numbers(Decimal("1e30"), Decimal("1e-30"))
    Decimal('1000000000000000000000000000000.000000000000000000000000000001')
    """
    if type(left) is Decimal or type(right) is Decimal:
        if isinstance(left, float) or isinstance(right, float):
            return left + right
        return _EXACT.add(left, right)
    return left + right


ErrorPolicy = Literal["fail", "skip"] | str
"""``"fail"``, ``"skip"``, or ``"topic:NAME"``, which sends the record's message to that topic."""

DEAD_LETTER_PREFIX = "topic:"


def dead_letter_topic(policy: ErrorPolicy) -> str | None:
    """Return the topic of a policy's dead letters; None if it has none.

    >>> dead_letter_topic("topic:broken"), dead_letter_topic("skip")
    ('broken', None)
    """
    topic = policy.removeprefix(DEAD_LETTER_PREFIX)
    return None if topic == policy else topic
