"""Messages that a group could not process: when they come again, and where they end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.broker.drafts import Draft
from headrace.broker.topics import DEAD_PREFIX, RETRY_PREFIX
from headrace.protocol.properties import (
    DELAY,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
)

if TYPE_CHECKING:
    from headrace.protocol.messages import StoredMessage

__all__ = ["SendBack", "dead_letter", "is_dead", "sent_back"]

#: The first retry waits by this level, each further one by one more.
_FIRST_LEVEL = 3
_NO_DELAY = dict.fromkeys((DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, TIMER_OUT_MS))


@dataclass(frozen=True, slots=True)
class SendBack:
    """A consumer's request to get a message again later."""

    group: str
    #: How often the group tries again before the message is dead.
    most_times: int
    #: Delay level; 0: the broker chooses; below 0: do not try again.
    level: int = 0
    #: Queue of the retry topic.
    queue_id: int = 0


def sent_back(message: StoredMessage, asked: SendBack) -> Draft:
    """Make the message that the group gets again, or its dead letter.

    Its body must be as it was stored.

    Examples
    --------
    >>> from headrace.protocol.messages import StoredMessage
    >>> message = StoredMessage(topic="lines", reconsume_times=1)
    >>> again = sent_back(message, SendBack("g", most_times=2))
    >>> again.topic, again.properties["DELAY"], again.reconsume_times
    ('%RETRY%g', '4', 2)
    >>> sent_back(message, SendBack("g", most_times=1)).topic
    '%DLQ%g'
    """
    draft = Draft.of(message).having(_NO_DELAY)
    draft = draft.having(
        {
            RETRY_TOPIC: message.properties.get(RETRY_TOPIC) or message.topic,
            ORIGIN_MESSAGE_ID: message.properties.get(ORIGIN_MESSAGE_ID) or message.offset_id,
        }
    )
    draft = replace(draft, reconsume_times=message.reconsume_times + 1)
    if message.reconsume_times >= asked.most_times or asked.level < 0:
        return dead_letter(draft, asked.group)
    level = asked.level or _FIRST_LEVEL + message.reconsume_times
    draft = replace(draft, topic=RETRY_PREFIX + asked.group, queue_id=asked.queue_id)
    return draft.having({DELAY: str(level)})


def is_dead(reconsume_times: int, most_times: int, *, in_order: bool) -> bool:
    """Tell whether a message that a consumer sends to its retry topic itself goes no further.

    A group that consumes in order sends one only when it has given up.

    >>> is_dead(16, 16, in_order=False), is_dead(17, 16, in_order=False)
    (False, True)
    """
    return in_order or reconsume_times > most_times


def dead_letter(draft: Draft, group: str) -> Draft:
    """Turn a message into a dead letter of a group."""
    return replace(draft.having(_NO_DELAY), topic=DEAD_PREFIX + group, queue_id=0)
