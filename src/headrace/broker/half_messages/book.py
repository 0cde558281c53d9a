"""Half messages: which are open, how each of the others ended, and when to ask its producer.

No I/O: what the logs say goes in, by :meth:`HalfMessageBook.prepared`, :meth:`~HalfMessageBook.ended`
and :meth:`~HalfMessageBook.checked`, also when a broker starts and reads them again; what comes out
are the checks that are due.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from headrace.broker.drafts import Draft
from headrace.broker.topics import DISCARD_TOPIC, HALF_TOPIC, MARK_TOPIC
from headrace.errors import MessageRejectedError, ProtocolError
from headrace.protocol.codes import SysFlag
from headrace.protocol.columns import decode_columns
from headrace.protocol.messages import StoredMessage, decode_messages
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
from headrace.protocol.stamps import stamp_records
from headrace.store import QueueAppend

if TYPE_CHECKING:
    from headrace.protocol.frames import Buffer


#: How half messages ended is remembered for so many, to answer repeated requests.
_REMEMBERED = 65_536


class Outcome(Enum):
    """How a half message ended."""

    COMMITTED = "commit"
    ROLLED_BACK = "rollback"
    #: Nobody answered: it lies in a topic of its own now.
    DISCARDED = "discard"


class HalfMessageState(Enum):
    """What can be done about a half message that has not ended, or ended long ago."""

    OPEN = "open"
    #: Its end is being written.
    ENDING = "ending"
    #: It ended, but nobody remembers how.
    PAST = "past"
    #: There is no such half message.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Half:
    """A half message, as the queue of half messages holds it."""

    #: Its offset in the queue of half messages.
    offset: int
    #: Its place in the commit log.
    position: int
    #: When it was stored, ms since 1970.
    stored: int
    #: How long its producer is left alone, ms; None: as long as any other.
    immunity: int | None = None


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """From where on the two queues must be read after a restart."""

    #: No half message before this offset is open.
    halves: int = 0
    #: All ends and checks of half messages that count are at or behind this offset.
    marks: int = 0


@dataclass(slots=True)
class _Open:
    half: Half
    due: int
    checks: int = 0
    is_ending: bool = False
    #: End of the queue of marks when the half message was found.
    marks: int = 0


class HalfMessageBook:
    """All half messages of a broker.

    Parameters
    ----------
    timeout
        Age at which a half message's producer is asked for the first time, ms.
    interval
        Time from one question to the next, ms.
    progress
        Where an earlier run stood.

    Examples
    --------
    >>> book = HalfMessageBook(timeout=6000, interval=30_000)
    >>> book.prepared(Half(offset=0, position=100, stored=0))
    >>> book.next_due(), book.due(now=6000)
    (6000, [(Half(offset=0, position=100, stored=0, immunity=None), 0)])
    >>> book.end(0)
    >>> book.ended([0], Outcome.COMMITTED, marks=1)
    >>> book.standing(0), book.progress
    (<Outcome.COMMITTED: 'commit'>, ReadProgress(halves=1, marks=1))
    """

    def __init__(self, timeout: int, interval: int, progress: ReadProgress | None = None) -> None:
        progress = progress or ReadProgress()
        self._timeout = timeout
        self._interval = interval
        #: Offset of the next half message to look at.
        self.seen = progress.halves
        #: Offset of the next mark to look at.
        self.marks = progress.marks
        self._begin = progress.halves
        self._open: dict[int, _Open] = {}
        self._ended: dict[int, Outcome] = {}
        self._agenda: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._open)

    @property
    def progress(self) -> ReadProgress:
        """From where on a restart must read."""
        first = next(iter(self._open.values()), None)
        if first is None:
            return ReadProgress(self.seen, self.marks)
        return ReadProgress(first.half.offset, first.marks)

    def lost(self, offset: int) -> None:
        """Go on at an offset: the queue holds no half message before it any more."""
        for gone in [each for each in self._open if each < offset]:
            del self._open[gone]
        self.seen = max(self.seen, offset)
        self._begin = max(self._begin, offset)

    def prepared(self, half: Half) -> None:
        """Take the next half message of the queue, before any mark that is about it."""
        self.seen = half.offset + 1
        due = half.stored + (self._timeout if half.immunity is None else half.immunity)
        self._open[half.offset] = _Open(half, due, marks=self.marks)
        heapq.heappush(self._agenda, (due, half.offset))

    def standing(self, offset: int) -> HalfMessageState | Outcome:
        """Return where a half message stands."""
        found = self._open.get(offset)
        if found is not None:
            return HalfMessageState.ENDING if found.is_ending else HalfMessageState.OPEN
        if offset in self._ended:
            return self._ended[offset]
        return HalfMessageState.PAST if 0 <= offset < self.seen else HalfMessageState.UNKNOWN

    def end(self, offset: int) -> None:
        """Note that the end of an open half message is being written."""
        self._open[offset].is_ending = True

    def failed(self, offset: int) -> None:
        """Note that it could not be written: the half message is open again."""
        found = self._open.get(offset)
        if found is not None:
            found.is_ending = False
            heapq.heappush(self._agenda, (found.due, offset))

    def ended(self, offsets: list[int], outcome: Outcome, *, marks: int) -> None:
        """Note how half messages ended, and the end of the queue of marks since."""
        self.marks = max(self.marks, marks)
        for offset in offsets:
            self._open.pop(offset, None)
            self._ended[offset] = outcome
        if len(self._ended) > 2 * _REMEMBERED:
            self._forget()

    def _forget(self) -> None:
        # Ends of half messages that a restart would read again must stay.
        begin = self.progress.halves
        old = [offset for offset in self._ended if offset < begin]
        for offset in old[:-_REMEMBERED]:
            del self._ended[offset]

    def checked(self, asked: dict[int, int], now: int, *, marks: int) -> None:
        """Note how often producers have been asked, by half message, and the last time."""
        self.marks = max(self.marks, marks)
        for offset, checks in asked.items():
            found = self._open.get(offset)
            if found is not None:
                found.checks, found.due = checks, now + self._interval
                heapq.heappush(self._agenda, (found.due, offset))

    def next_due(self) -> int | None:
        """Return when the next check is due, ms since 1970; None when nothing is open."""
        self._drop_stale()
        return self._agenda[0][0] if self._agenda else None

    def due(self, now: int, limit: int = 1000) -> list[tuple[Half, int]]:
        """Take the half messages to ask about, each with how often that was done before.

        The caller asks, or ends those that were asked about too often; either is noted by
        :meth:`checked` or :meth:`ended`, or :meth:`failed` if it did not come to that.
        """
        taken: list[tuple[Half, int]] = []
        while len(taken) < limit:
            self._drop_stale()
            if not self._agenda or self._agenda[0][0] > now:
                break
            _, offset = heapq.heappop(self._agenda)
            found = self._open[offset]
            taken.append((found.half, found.checks))
        return taken

    def _drop_stale(self) -> None:
        while self._agenda:
            due, offset = self._agenda[0]
            found = self._open.get(offset)
            if found is not None and found.due == due and not found.is_ending:
                return
            heapq.heappop(self._agenda)


# What is kept in the log: half messages, marks of their ends, and what they become.

_ENDED, _CHECKED = "d", "c"
_OUTCOME = "HEADRACE_OUTCOME"
_TRANSACTION = int(SysFlag.ROLLED_BACK)
_COMMITTED = int(SysFlag.COMMITTED)
_DELAYS = (DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)


@dataclass(frozen=True, slots=True)
class QueueMark:
    """What a message of the queue of marks says."""

    #: How half messages ended; None: they were asked about.
    outcome: Outcome | None
    #: By half message how often it was asked about; 0 for one that ended.
    halves: dict[int, int]
    #: When it was stored, ms since 1970.
    stored: int


def is_half(draft: Draft) -> bool:
    """Return whether a message that was sent is a half message."""
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


def read_marks(block: Buffer) -> list[QueueMark]:
    """Read messages of the queue of marks.

    >>> from dataclasses import asdict
    >>> [mark] = read_marks(end_mark([3, 7], Outcome.COMMITTED, 0).records.data)
    >>> mark.outcome, mark.halves
    (<Outcome.COMMITTED: 'commit'>, {3: 0, 7: 0})
    >>> read_marks(check_marks({3: 2}, 0).records.data)[0].halves
    {3: 2}
    """
    return [_read_mark(message) for message in decode_messages(block)]


def _read_mark(message: StoredMessage) -> QueueMark:
    outcome = message.properties.get(_OUTCOME)
    halves: dict[int, int] = {}
    try:
        for word in message.body.decode().split(","):
            if word:
                offset, _, checks = word.partition(":")
                halves[int(offset)] = int(checks or 0)
        return QueueMark(Outcome(outcome) if outcome else None, halves, message.stored)
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
