"""What transactions keep in the log: half messages, marks of their ends, and what they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from headrace.broker.drafts import Draft
from headrace.broker.topics import DISCARD_TOPIC, HALF_TOPIC, MARK_TOPIC
from headrace.broker.transactions.book import Half, Outcome
from headrace.errors import MessageRejectedError, ProtocolError
from headrace.protocol.codes import SysFlag
from headrace.protocol.columns import decode_columns, stamp_records
from headrace.protocol.messages import decode_messages
from headrace.protocol.properties import (
    CHECK_IMMUNITY_TIME,
    DELAY,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_ID,
    UNIQ_KEY,
    encode_properties,
)
from headrace.protocol.records import encode_records
from headrace.store import QueueAppend

if TYPE_CHECKING:
    from headrace.protocol.frames import Buffer
    from headrace.protocol.messages import StoredMessage

__all__ = [
    "Mark",
    "check_marks",
    "committed",
    "discarded",
    "end_mark",
    "half_draft",
    "is_half",
    "question",
    "read_halves",
    "read_marks",
]

_ENDED, _CHECKED = "d", "c"
_OUTCOME = "HEADRACE_OUTCOME"
_TRANSACTION = int(SysFlag.ROLLED_BACK)
_COMMITTED = int(SysFlag.COMMITTED)
_DELAYS = (DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)


@dataclass(frozen=True, slots=True)
class Mark:
    """What a message of the queue of marks says."""

    #: How half messages ended; None: they were asked about.
    outcome: Outcome | None
    #: By half message how often it was asked about; 0 for one that ended.
    halves: dict[int, int]
    #: When it was stored, ms since 1970.
    stored: int


def is_half(draft: Draft) -> bool:
    """Tell whether a message that was sent is half a transaction."""
    prepared = draft.sys_flag & _TRANSACTION == SysFlag.PREPARED
    return prepared or draft.properties.get(TRAN_MSG, "").lower() == "true"


def half_draft(draft: Draft) -> Draft:
    """Let a message wait for its producer's word.

    Raises
    ------
    MessageRejectedError
        When it asks for a delay too, or nobody could be asked about it.
    """
    delays = [name for name in _DELAYS if draft.properties.get(name, "0") != "0"]
    if delays:
        message = f"a half message for topic {draft.topic!r} has the property {delays[0]}:"
        hint = "RocketMQ would delay the half message itself, and then never find it again."
        raise MessageRejectedError(f"{message} a transaction cannot be delayed", hint=hint)
    if not draft.properties.get(PGROUP):
        message = f"a half message for topic {draft.topic!r} lacks the property {PGROUP}:"
        raise MessageRejectedError(f"{message} no producer could be asked about it")
    noted = draft.having({TRANSACTION_ID: draft.properties.get(UNIQ_KEY)})
    return replace(noted.parked(HALF_TOPIC, 0), sys_flag=draft.sys_flag & ~_TRANSACTION)


def committed(message: StoredMessage) -> QueueAppend:
    """Make what a half message becomes when it is committed; its body must be as it was stored."""
    properties = dict(message.properties)
    topic, queue_id = properties.pop(REAL_TOPIC), int(properties.pop(REAL_QID))
    properties.pop(TRAN_MSG, None)
    return _again(
        message, topic, queue_id, properties, message.sys_flag & ~_TRANSACTION | _COMMITTED
    )


def discarded(message: StoredMessage, checks: int) -> QueueAppend:
    """Make what a half message becomes when nobody answers."""
    properties = {**message.properties, TRANSACTION_CHECK_TIMES: str(checks)}
    return _again(message, DISCARD_TOPIC, 0, properties, message.sys_flag)


def question(message: StoredMessage, checks: int) -> Buffer:
    """Make the body of a request to a producer: the message as it will be, with its places."""
    properties = {**message.properties, TRANSACTION_CHECK_TIMES: str(checks)}
    topic, queue_id = properties[REAL_TOPIC], int(properties[REAL_QID])
    records = _again(message, topic, queue_id, properties, message.sys_flag).records
    place = message.queue_offset, message.position
    stamp_records(records, *place, message.stored, message.store_host)
    return records.data


def _again(
    message: StoredMessage, topic: str, queue_id: int, properties: dict[str, str], sys_flag: int
) -> QueueAppend:
    draft = replace(
        Draft.of(message),
        topic=topic,
        queue_id=queue_id,
        properties=properties,
        sys_flag=sys_flag,
        prepared_offset=message.position,
    )
    return draft.append()


def end_mark(halves: Sequence[int], outcome: Outcome, now: int) -> QueueAppend:
    """Mark half messages as done, as RocketMQ does, and how they ended."""
    body = "".join(f"{offset}," for offset in halves)
    return _mark(body, {TAGS: _ENDED, _OUTCOME: outcome.value}, now)


def check_marks(asked: Mapping[int, int], now: int) -> QueueAppend:
    """Note how often producers have been asked, by half message."""
    body = "".join(f"{offset}:{checks}," for offset, checks in asked.items())
    return _mark(body, {TAGS: _CHECKED}, now)


def _mark(body: str, properties: dict[str, str], now: int) -> QueueAppend:
    records = encode_records(MARK_TOPIC, 0, [body.encode()], encode_properties(properties), now)
    return QueueAppend(MARK_TOPIC, 0, records)


def read_marks(block: Buffer) -> list[Mark]:
    """Read messages of the queue of marks.

    >>> from dataclasses import asdict
    >>> [mark] = read_marks(end_mark([3, 7], Outcome.COMMITTED, 0).records.data)
    >>> mark.outcome, mark.halves
    (<Outcome.COMMITTED: 'commit'>, {3: 0, 7: 0})
    >>> read_marks(check_marks({3: 2}, 0).records.data)[0].halves
    {3: 2}
    """
    return [_read_mark(message) for message in decode_messages(block)]


def _read_mark(message: StoredMessage) -> Mark:
    outcome = message.properties.get(_OUTCOME)
    halves: dict[int, int] = {}
    try:
        for word in message.body.decode().split(","):
            if word:
                offset, _, checks = word.partition(":")
                halves[int(offset)] = int(checks or 0)
        return Mark(Outcome(outcome) if outcome else None, halves, message.stored)
    except ValueError as error:
        message_ = f"message {message.queue_offset} of topic {MARK_TOPIC} cannot be read: {error}"
        raise ProtocolError(message_) from error


def read_halves(block: Buffer, timeout: int) -> list[Half]:
    """Read half messages, their places and times only.

    Parameters
    ----------
    block
        Stored messages.
    timeout
        What a producer gets that asks for the usual immunity, ms.
    """
    columns = decode_columns(block, unpack=False)
    given = columns.property(CHECK_IMMUNITY_TIME)
    wanted = given.to_pylist() if given.null_count < len(given) else [None] * len(given)
    places = np.stack((columns.queue_offset, columns.position, columns.stored), axis=1)
    return [
        Half(offset, position, stored, _immunity(immunity, timeout))
        for (offset, position, stored), immunity in zip(places.tolist(), wanted, strict=True)
    ]


def _immunity(seconds: bytes | None, timeout: int) -> int | None:
    try:
        wanted = -1 if seconds is None else int(seconds)
    except ValueError:
        return None
    return wanted * 1000 if wanted >= 0 else (None if seconds is None else timeout)
