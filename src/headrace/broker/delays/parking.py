"""Where a message waits that is not to be seen at once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from headrace.broker.topics import CLOSED_TOPICS, DELAY_TOPIC, TIMER_TOPIC
from headrace.errors import MessageRejectedError
from headrace.protocol.properties import (
    DELAY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
)

if TYPE_CHECKING:
    from headrace.broker.drafts import Draft

__all__ = ["delayed"]

_TIMERS = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)


def delayed(draft: Draft, levels: Sequence[int], longest: timedelta, now: int) -> Draft:
    """Park a message that asks for a delay; any other one stays as it is.

    A level counts before a time.  A time that has passed is no delay.

    Raises
    ------
    MessageRejectedError
        When the delay is too long or cannot be read.

    Examples
    --------
    >>> from headrace.broker.drafts import Draft
    >>> draft = Draft(topic="lines", properties={"DELAY": "2"})
    >>> delayed(draft, (1000, 5000), timedelta(days=3), now=0).queue_id
    1
    """
    if draft.topic in CLOSED_TOPICS:
        return draft
    level = _number(draft, DELAY) if DELAY in draft.properties else 0
    if level > 0:
        plain = draft.having(dict.fromkeys(_TIMERS))
        level = min(level, len(levels))
        return plain.having({DELAY: str(level)}).parked(DELAY_TOPIC, level - 1)
    due = _due(draft, now)
    if due is None or due <= now or TIMER_OUT_MS in draft.properties:
        return draft
    if due - now > longest // timedelta(milliseconds=1):
        message = f"a message for topic {draft.topic!r} is to wait for {due - now} ms:"
        most = f"the longest delay is {longest // timedelta(milliseconds=1)} ms"
        raise MessageRejectedError(f"timer message illegal, {message} {most}")
    return draft.having({TIMER_OUT_MS: str(due)}).parked(TIMER_TOPIC, 0)


def _due(draft: Draft, now: int) -> int | None:
    if TIMER_DELAY_SEC in draft.properties:
        return now + 1000 * _number(draft, TIMER_DELAY_SEC)
    if TIMER_DELAY_MS in draft.properties:
        return now + _number(draft, TIMER_DELAY_MS)
    if TIMER_DELIVER_MS in draft.properties:
        return _number(draft, TIMER_DELIVER_MS)
    return None


def _number(draft: Draft, name: str) -> int:
    text = draft.properties[name]
    try:
        return int(text)
    except ValueError:
        message = f"a message for topic {draft.topic!r} has {name}={text!r}, which is no integer"
        raise MessageRejectedError(f"timer message illegal: {message}") from None
