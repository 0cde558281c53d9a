"""Messages with special properties go elsewhere first: a table of rules, applied in order."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.broker.drafts import Draft
from headrace.broker.half_messages.book import half_draft, is_half
from headrace.broker.topics import DEAD_PREFIX, RETRY_PREFIX
from headrace.protocol.codes import SysFlag
from headrace.protocol.properties import (
    DELAY,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TRAN_MSG,
)

if TYPE_CHECKING:
    from headrace.broker.clients import QueueLocks
    from headrace.broker.delays import DelayedDelivery
    from headrace.broker.snapshots import BrokerTables
    from headrace.protocol.messages import StoredMessage


# Messages that a group could not process: when they come again, and where they end.

#: The first retry waits by this level, each further one by one more.
_FIRST_LEVEL = 3
_NO_DELAY = dict.fromkeys((DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, TIMER_OUT_MS))


@dataclass(frozen=True, slots=True)
class SendBackRequest:
    """A consumer's request to get a message again later."""

    group: str
    #: How often the group tries again before the message is dead.
    most_times: int
    #: Delay level; 0: the broker chooses; below 0: do not try again.
    level: int = 0
    #: Queue of the retry topic.
    queue_id: int = 0


def sent_back(message: StoredMessage, asked: SendBackRequest) -> Draft:
    """Make the message that the group gets again, or its dead letter.

    Its body must be as it was stored.

    Examples
    --------
    >>> from headrace.protocol.messages import StoredMessage
    >>> message = StoredMessage(topic="lines", reconsume_times=1)
    >>> again = sent_back(message, SendBackRequest("g", most_times=2))
    >>> again.topic, again.properties["DELAY"], again.reconsume_times
    ('%RETRY%g', '4', 2)
    >>> sent_back(message, SendBackRequest("g", most_times=1)).topic
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
    """Return whether a message that a consumer sends to its retry topic itself goes no further.

    A group that consumes in order sends one only when it has given up.

    >>> is_dead(16, 16, in_order=False), is_dead(17, 16, in_order=False)
    (False, True)
    """
    return in_order or reconsume_times > most_times


def dead_letter(draft: Draft, group: str) -> Draft:
    """Turn a message into a dead letter of a group."""
    return replace(draft.having(_NO_DELAY), topic=DEAD_PREFIX + group, queue_id=0)


_PROPERTIES = (DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, TRAN_MSG)
# As a plain number: it is looked at for every message.
_PREPARED = int(SysFlag.PREPARED)
_SPECIAL = re.compile(rf"(?:^|\x02)(?:{'|'.join(_PROPERTIES)})\x01")


def is_special(topic: str, sys_flag: int, properties: str) -> bool:
    r"""Return whether a rule may apply to a message: most take the short way.

    >>> is_special("lines", 0, "KEYS\x01k\x02"), is_special("lines", 0, "DELAY\x013\x02")
    (False, True)
    """
    return bool(
        _SPECIAL.search(properties) or sys_flag & _PREPARED or topic.startswith(RETRY_PREFIX)
    )


@dataclass(frozen=True, slots=True)
class Rewriting:
    """The rules, and what they need to know of the broker."""

    tables: BrokerTables
    locks: QueueLocks
    delays: DelayedDelivery

    def rewritten(self, draft: Draft, most_times: int | None) -> Draft:
        """Apply all rules to a message that was sent.

        Parameters
        ----------
        most_times
            How often a group tries again, if the request says so.

        Raises
        ------
        MessageRejectedError
            When what the message asks for cannot be.
        GroupNotFoundError
            When it is a retry of a group that does not exist.
        BrokerBusyError
            When too many messages wait.
        """
        for rule in _RULES:
            draft = rule(self, draft, most_times)
        return draft


def _retry(rewriting: Rewriting, draft: Draft, most_times: int | None) -> Draft:
    """Turn what a group has given up into a dead letter."""
    if not draft.topic.startswith(RETRY_PREFIX):
        return draft
    group = draft.topic.removeprefix(RETRY_PREFIX)
    config = rewriting.tables.groups.get(group)
    most = config.retry_max_times if most_times is None else most_times
    now = asyncio.get_running_loop().time()
    in_order = rewriting.locks.holds_any(group, now=now)
    if not is_dead(draft.reconsume_times, most, in_order=in_order):
        return draft
    letter = dead_letter(draft, group)
    rewriting.tables.ensure_topic(letter.topic, queues=1)
    return letter


def _half(_: Rewriting, draft: Draft, _most_times: int | None) -> Draft:
    """Let half messages wait for their producer's word."""
    return half_draft(draft) if is_half(draft) else draft


def _delay(rewriting: Rewriting, draft: Draft, _: int | None) -> Draft:
    return rewriting.delays.parked(draft)


_RULES: tuple[Callable[[Rewriting, Draft, int | None], Draft], ...] = (_retry, _half, _delay)
