"""What an operator does with records that it cannot handle."""

from __future__ import annotations

from typing import Literal

__all__ = ["DEAD_LETTER_PREFIX", "ErrorPolicy", "dead_letter_topic"]

ErrorPolicy = Literal["fail", "skip"] | str
"""``"fail"``, ``"skip"``, or ``"topic:NAME"``: send the message of such a record to that topic."""

DEAD_LETTER_PREFIX = "topic:"


def dead_letter_topic(policy: ErrorPolicy) -> str | None:
    """Name the topic of a policy's dead letters.

    >>> dead_letter_topic("topic:broken"), dead_letter_topic("skip")
    ('broken', None)
    """
    topic = policy.removeprefix(DEAD_LETTER_PREFIX)
    return None if topic == policy else topic
