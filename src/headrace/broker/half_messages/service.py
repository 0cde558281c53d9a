"""The thin shell around the book of half messages: reads the log, writes ends, asks producers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace.broker.half_messages.book import (
    Half,
    HalfMessageBook,
    HalfMessageState,
    Outcome,
    ReadProgress,
    check_marks,
    committed,
    discarded,
    end_mark,
    question,
    read_halves,
    read_marks,
)
from headrace.broker.topics import DISCARD_TOPIC, HALF_TOPIC, MARK_TOPIC, TopicTable
from headrace.errors import BrokerError, NotFoundError
from headrace.protocol.codes import RequestCode, ResponseCode
from headrace.protocol.messages import StoredMessage, decode_messages
from headrace.protocol.properties import CHECK_IMMUNITY_TIME, PGROUP, REAL_TOPIC, UNIQ_KEY
from headrace.store import AppendResult, MessageStore, QueueAppend, ReadStatus

if TYPE_CHECKING:
    from headrace.broker.clients import ClientRegistry
    from headrace.broker.offsets import ClientRequests, ConsumerOffsets
    from headrace.broker.replication.replicas import Replication
    from headrace.broker.requests import Peer
    from headrace.broker.settings import BrokerSettings
    from headrace.broker.waiting import BackgroundWork


logger = logging.getLogger(__name__)

_GROUP = "CID_RMQ_SYS_TRANS"
_READ_COUNT = 4096
_READ_BYTES = 4 * 1024 * 1024
#: Most half messages that one unit ends.
_MOST_ENDS = 512
#: New half messages are looked for so often, seconds.
_LOOK = 0.5


@dataclass(frozen=True, slots=True)
class HalfMessageEnd:
    """What a producer says of a half message."""

    group: str
    #: Offset in the queue of half messages.
    offset: int
    #: Place in the commit log.
    position: int
    outcome: Outcome
    #: The producer was asked.
    is_answer: bool = False
    #: Topic of the message, where the producer says it: what it may write was checked by that.
    topic: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _End:
    offset: int
    outcome: Outcome
    #: What the half message becomes, None for nothing.
    append: QueueAppend | None
    #: Where the log ended behind it.
    done: asyncio.Future[int]


class _Broker(Protocol):
    name: str
    store: MessageStore
    settings: BrokerSettings
    loop: asyncio.AbstractEventLoop
    topics: TopicTable
    offsets: ConsumerOffsets
    clients: ClientRegistry
    peers: dict[int, Peer]
    client_requests: ClientRequests
    replication: Replication
    work: BackgroundWork

    @property
    def writable(self) -> bool: ...
    def now(self) -> int: ...
    async def appended(self, appends: list[QueueAppend]) -> list[AppendResult]: ...


class HalfMessages:
    """All half messages of a broker, RocketMQ's transactions.

    Parameters
    ----------
    core
        The broker; its settings say when producers are asked.
    """

    def __init__(self, core: _Broker) -> None:
        settings = core.settings
        self._core = core
        self._timeout = _ms(settings.transaction_timeout.total_seconds())
        interval = _ms(settings.transaction_check_interval.total_seconds())
        self._most_checks = settings.transaction_max_checks
        saved = ReadProgress(
            core.offsets.get(_GROUP, HALF_TOPIC, 0) or 0,
            core.offsets.get(_GROUP, MARK_TOPIC, 0) or 0,
        )
        self._book = HalfMessageBook(self._timeout, interval, saved)
        self._waiting: list[_End] = []
        self._written: dict[int, _End] = {}
        self._is_writing = False

    def open_count(self) -> int:
        """Count the half messages that have not ended."""
        self.follow()
        return len(self._book)

    def restore(self) -> None:
        """Find out which half messages are open. Caller: start of the broker."""
        book, store = self._book, self._core.store
        # Before the marks: those that count for a half message begin where reading them begins.
        self.follow()
        # What a lost file says of the log must not be trusted beyond the log.
        bounds = store.bounds(MARK_TOPIC, 0)
        offset = min(max(book.marks, bounds.min_offset), bounds.max_offset)
        while offset < bounds.max_offset:
            result = store.read(MARK_TOPIC, 0, offset, _READ_COUNT, _READ_BYTES)
            if not result.count:
                break
            offset = result.next_offset
            for mark in read_marks(b"".join(result.slices)):
                if mark.outcome is None:
                    book.checked(mark.halves, mark.stored, marks=offset)
                else:
                    book.ended(list(mark.halves), mark.outcome, marks=offset)

    def follow(self) -> None:
        """Take note of half messages that were stored since."""
        book, store = self._book, self._core.store
        while book.seen < store.bounds(HALF_TOPIC, 0).max_offset:
            result = store.read(HALF_TOPIC, 0, book.seen, _READ_COUNT, _READ_BYTES)
            if result.status is ReadStatus.BELOW_MIN:
                book.lost(result.min_offset)
            elif not result.count:
                return
            else:
                for half in read_halves(b"".join(result.slices), self._timeout):
                    book.prepared(half)

    def save_progress(self) -> None:
        """Note from where on a restart must read; consumer offsets are saved by others."""
        progress = self._book.progress
        for topic, offset in ((HALF_TOPIC, progress.halves), (MARK_TOPIC, progress.marks)):
            if (self._core.offsets.get(_GROUP, topic, 0) or 0) != offset:
                self._core.offsets.update(_GROUP, topic, 0, offset)

    async def end(self, ending: HalfMessageEnd) -> None:
        """End a half message as its producer says; again: nothing.

        Raises
        ------
        BrokerError
            When there is no such half message, or it ended otherwise.
        """
        self.follow()
        message = self._checked(ending)
        standing = self._book.standing(ending.offset)
        if standing is HalfMessageState.ENDING:
            before = self._written[ending.offset]
            await asyncio.shield(before.done)
            standing = before.outcome
        if standing is HalfMessageState.OPEN:
            append = committed(message) if ending.outcome is Outcome.COMMITTED else None
            if append is not None:
                self._core.topics.get(append.topic)
            await self._end(ending.offset, ending.outcome, append)
        elif standing is not ending.outcome:
            what = f"half message {ending.offset} of group {ending.group!r}"
            how = f"ended before: {standing.value}"
            raise BrokerError(f"{what} {how}", number=ResponseCode.TRANSACTION_FAILED)

    def _checked(self, ending: HalfMessageEnd) -> StoredMessage:
        """Read the half message that is meant, and see that it is meant."""
        message = self._half(ending.position)
        if message is None or message.topic != HALF_TOPIC:
            raise _wrong("Find prepared transaction message failed")
        if message.properties.get(PGROUP) != ending.group:
            raise _wrong("The producer group wrong")
        if message.queue_offset != ending.offset:
            raise _wrong("The transaction state table offset wrong")
        if ending.topic is not None and message.properties.get(REAL_TOPIC) != ending.topic:
            raise _wrong("The topic of the prepared transaction message is another one")
        immunity = read_immunity(message)
        if immunity is not None and not ending.is_answer:
            age = self._core.now() - message.born
            if age > immunity:
                text = f"half message {ending.offset} is {age} ms old: its producer will be asked"
                raise BrokerError(text, number=ResponseCode.ILLEGAL_OPERATION)
        return message

    def _half(self, position: int) -> StoredMessage | None:
        try:
            return decode_messages(self._core.store.read_at(position), unpack=False)[0]
        except NotFoundError:
            return None

    async def _end(self, offset: int, outcome: Outcome, append: QueueAppend | None) -> None:
        """Write the end of an open half message, together with others that end now."""
        end = _End(offset, outcome, append, self._core.loop.create_future())
        self._book.end(offset)
        self._written[offset] = end
        self._waiting.append(end)
        if not self._is_writing:
            self._is_writing = True
            self._core.work.keep("broker-ends", self._write())
        # Whoever asked may go away; the end is written all the same.
        await self._core.replication.settled(await asyncio.shield(end.done))

    async def _write(self) -> None:
        try:
            while self._waiting:
                ends, self._waiting = self._waiting[:_MOST_ENDS], self._waiting[_MOST_ENDS:]
                await self._write_unit(ends)
        finally:
            self._is_writing = False

    async def _write_unit(self, ends: list[_End]) -> None:
        """Write messages and marks as one unit: a crash leaves both or none."""
        core, book = self._core, self._book
        appends = [end.append for end in ends if end.append is not None]
        outcomes = {
            outcome: [end.offset for end in ends if end.outcome is outcome] for outcome in Outcome
        }
        appends += [end_mark(halves, out, core.now()) for out, halves in outcomes.items() if halves]
        try:
            unit = await asyncio.wrap_future(core.store.commit_unit([], appends))
        except Exception as error:  # noqa: BLE001  (each producer is told)
            for end in ends:
                book.failed(end.offset)
                _fail(end, error)
            return
        finally:
            for end in ends:
                del self._written[end.offset]
        marks = core.store.bounds(MARK_TOPIC, 0).max_offset
        for outcome, halves in outcomes.items():
            book.ended(halves, outcome, marks=marks)
        for end in ends:
            end.done.set_result(unit.position)

    async def run(self) -> None:
        """Ask producers about half messages that wait for too long, until cancelled."""
        while True:
            try:
                if self._core.writable:
                    self.follow()
                    await self._check()
            except Exception:
                logger.exception("producers cannot be asked about their half messages")
                await asyncio.sleep(_LOOK)
            self.save_progress()
            due = self._book.next_due()
            wait = _LOOK if due is None else min((due - self._core.now()) / 1000, _LOOK)
            await asyncio.sleep(max(wait, 0.01))

    async def _check(self) -> None:
        core, book = self._core, self._book
        due = book.due(core.now())
        asked: dict[int, int] = {}
        questions: list[Callable[[], bool]] = []
        try:
            for half, checks in due:
                if book.standing(half.offset) is not HalfMessageState.OPEN:
                    # Its producer spoke while others were put aside.
                    continue
                message = self._half(half.position)
                if message is None or checks >= self._most_checks:
                    append = discarded(message, checks) if message else None
                    await self._discard(half, append, checks)
                    continue
                asked[half.offset] = checks + 1
                questions.append(self._question(message, checks + 1))
            if asked:
                await core.appended([check_marks(asked, core.now())])
        except Exception:
            for half, _ in due:
                book.failed(half.offset)
            raise
        marks = core.store.bounds(MARK_TOPIC, 0).max_offset
        book.checked(asked, core.now(), marks=marks)
        unanswered = sum(not ask() for ask in questions)
        if unanswered:
            logger.warning("no producer is here to be asked about %d half messages", unanswered)

    async def _discard(self, half: Half, append: QueueAppend | None, checks: int) -> None:
        where = f"; it lies in topic {DISCARD_TOPIC}" if append else ""
        logger.error("nobody answered %d times about half message %d%s", checks, half.offset, where)
        await self._end(half.offset, Outcome.DISCARDED, append)

    def _question(self, message: StoredMessage, checks: int) -> Callable[[], bool]:
        """Prepare to ask a producer, each time the next of its group; False: none is here."""
        core = self._core
        group = message.properties.get(PGROUP, "")

        def ask() -> bool:
            members = [each for each in core.clients.producers(group) if each.peer in core.peers]
            if not members:
                return False
            key = message.properties.get(UNIQ_KEY, "")
            ext = {
                "topic": message.properties.get(REAL_TOPIC, ""),
                "tranStateTableOffset": str(message.queue_offset),
                "commitLogOffset": str(message.position),
                "msgId": key,
                "transactionId": key,
                "offsetMsgId": message.offset_id,
                "bname": core.name,
            }
            body = question(message, checks)
            peer = core.peers[members[checks % len(members)].peer]
            core.client_requests.tell(peer, RequestCode.CHECK_TRANSACTION_STATE, ext, body)
            return True

        return ask


def read_immunity(message: StoredMessage) -> int | None:
    """Return for how long, in ms, a producer must not be asked, None when it did not say."""
    try:
        seconds = int(message.properties.get(CHECK_IMMUNITY_TIME, "-1"))
    except ValueError:
        return None
    return seconds * 1000 if seconds >= 0 else None


def _fail(end: _End, error: Exception) -> None:
    end.done.set_exception(error)
    # Nobody may wait for it any more.
    end.done.exception()


def _wrong(message: str) -> BrokerError:
    return BrokerError(message, number=ResponseCode.SYSTEM_ERROR)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
