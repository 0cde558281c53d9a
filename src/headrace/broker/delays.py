"""Messages that wait: by level or until a time of their own, and are then delivered once."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from headrace.broker.drafts import Draft
from headrace.broker.topics import (
    CLOSED_TOPICS,
    DELAY_TOPIC,
    PROGRESS_TOPIC,
    TIMER_TOPIC,
    TopicTable,
)
from headrace.durations import read_duration
from headrace.errors import (
    BrokerBusyError,
    HeadraceError,
    MessageRejectedError,
    SettingsError,
)
from headrace.failpoints import failpoint
from headrace.protocol.columns import decode_columns
from headrace.protocol.messages import StoredMessage, decode_messages
from headrace.protocol.properties import (
    DELAY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
)
from headrace.protocol.records import encode_record, join_records
from headrace.store import MessageStore, QueueAppend, ReadResult

if TYPE_CHECKING:
    from headrace.broker.settings import BrokerSettings
    from headrace.broker.waiting import BackgroundWork


# Delay levels: numbers from 1 on that stand for spans of time.


def parse_levels(text: str) -> tuple[int, ...]:
    """Read the spans of levels, in ms, from level 1 on.

    Raises
    ------
    SettingsError
        When the text has no level, or a word that is not one.

    Examples
    --------
    >>> parse_levels("1s 5s 1m")
    (1000, 5000, 60000)
    """
    spans: list[int] = []
    for word in text.split():
        level = f"delay level {len(spans) + 1}"
        spans.append(round(read_duration(level, word) / timedelta(milliseconds=1)))
    if not spans:
        raise SettingsError("there is no delay level", hint='Give at least one, such as "1s".')
    return tuple(spans)


# Which waiting messages are due: a state machine without I/O and without a clock of its own.
#
# Messages of one delay level are due in the order of their offsets, so a level needs no more than
# the next few.  Messages with times of their own lie in a heap, each as one number.  They are
# delivered in the order of (time, offset), so what was delivered is told by two numbers: all before
# ``scanned`` whose (time, offset) is not behind ``cursor``.

_OFFSET_BITS = 44
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1


class DeliveryProgress(msgspec.Struct, frozen=True):
    """What was delivered so far; stored with every delivery.

    >>> DeliveryProgress(levels={1: 7}).level(1), DeliveryProgress().level(1)
    (7, 0)
    """

    #: Next offset of each level's queue.
    levels: dict[int, int] = msgspec.field(default_factory=dict)
    #: Timers from here on were not looked at.
    scanned: int = 0
    #: All timers before this offset were delivered.
    floor: int = 0
    #: Time and offset of the timer that was delivered last.
    cursor: tuple[int, int] = (0, -1)

    def level(self, level: int) -> int:
        """Return the next offset of a level's queue."""
        return self.levels.get(level, 0)


@dataclass(frozen=True, slots=True)
class DeliveryPlan:
    """An instruction: deliver these as one unit, with the progress that follows."""

    #: First offset, and one past the last, by level.
    levels: dict[int, tuple[int, int]]
    #: Time and offset of timers.
    timers: list[tuple[int, int]]
    progress: DeliveryProgress

    def __len__(self) -> int:
        return len(self.timers) + sum(last - first for first, last in self.levels.values())


@dataclass(slots=True)
class _Level:
    span: int
    #: Next offset to hear of.
    known: int
    #: Offset and store time of the next messages.
    waiting: deque[tuple[int, int]] = field(default_factory=deque)


class Scheduler:
    """Rules that decide which delayed messages and timers are due.

    Parameters
    ----------
    spans
        How long messages of each level wait, ms.
    progress
        What was delivered by an earlier run.

    Examples
    --------
    >>> scheduler = Scheduler([1000])
    >>> scheduler.stored(1, [(0, 50), (1, 80)])
    >>> scheduler.timers([(700, 0)], scanned=1)
    >>> scheduler.next_due(now=100)
    700
    >>> plan = scheduler.plan(now=1050, limit=10)
    >>> plan.levels, plan.timers, plan.progress.levels
    ({1: (0, 1)}, [(700, 0)], {1: 1})
    """

    def __init__(self, spans: Sequence[int], progress: DeliveryProgress | None = None) -> None:
        self._progress = progress or DeliveryProgress()
        self._levels = {
            level: _Level(span, self._progress.level(level))
            for level, span in enumerate(spans, start=1)
        }
        self._heap: list[int] = []
        self._scanned = self._progress.floor

    @property
    def progress(self) -> DeliveryProgress:
        """What was delivered so far."""
        return self._progress

    @property
    def pending_timers(self) -> int:
        """Timers that wait."""
        return len(self._heap)

    @property
    def scanned(self) -> int:
        """Next offset of the timers' queue that is not known yet."""
        return self._scanned

    def oldest_timer(self) -> int:
        """Return the offset before which no timer waits; any thread may ask."""
        waiting = self._heap.copy()
        return min((entry & _OFFSET_MASK for entry in waiting), default=self._scanned)

    def wanted(self, level: int, most: int) -> tuple[int, int]:
        """Return the next unknown offset of a level, and how many messages to read at most."""
        line = self._levels[level]
        return line.known, max(0, most - len(line.waiting))

    def stored(self, level: int, messages: Iterable[tuple[int, int]]) -> None:
        """Note the offset and store time of each of a level's next messages."""
        line = self._levels[level]
        for offset, at in messages:
            if offset >= line.known:
                line.waiting.append((offset, at))
                line.known = offset + 1

    def lost(self, level: int, first: int) -> None:
        """Note that a level's messages before an offset are gone."""
        line = self._levels[level]
        line.known = max(line.known, first)

    def timers(self, found: Iterable[tuple[int, int]], scanned: int) -> None:
        """Note timers, each with its time and offset, and where to look next."""
        before, cursor = self._progress.scanned, self._progress.cursor
        for due, offset in found:
            if offset >= before or (due, offset) > cursor:
                heapq.heappush(self._heap, due << _OFFSET_BITS | offset)
        self._scanned = scanned

    def next_due(self, now: int) -> int | None:
        """Return the time of the next delivery, or None when nothing waits."""
        dues = [
            _due(line, line.waiting[0][1], now) for line in self._levels.values() if line.waiting
        ]
        if self._heap:
            dues.append(self._heap[0] >> _OFFSET_BITS)
        return min(dues, default=None)

    def plan(self, now: int, limit: int) -> DeliveryPlan:
        """Return what is due, about ``limit`` messages at most, and the progress after it."""
        levels = {}
        for level, line in self._levels.items():
            count = _count_due(line, now, limit)
            limit -= count
            if count:
                levels[level] = (line.waiting[0][0], line.waiting[count - 1][0] + 1)
        timers = self._take_timers(now, limit)
        return DeliveryPlan(levels, timers, self._progress_after(levels, timers))

    def _take_timers(self, now: int, limit: int) -> list[tuple[int, int]]:
        taken: list[tuple[int, int]] = []
        cursor = self._progress.cursor
        if self._scanned < self._progress.scanned:
            # Not everything was seen again that an earlier run had seen: its progress must stay.
            return taken
        while self._heap and self._heap[0] >> _OFFSET_BITS <= now:
            entry = self._heap[0] >> _OFFSET_BITS, self._heap[0] & _OFFSET_MASK
            # What came late, behind the cursor, must go with the next progress, whatever the limit.
            if len(taken) >= limit and entry > cursor:
                break
            heapq.heappop(self._heap)
            taken.append(entry)
        return taken

    def _progress_after(
        self, levels: dict[int, tuple[int, int]], timers: list[tuple[int, int]]
    ) -> DeliveryProgress:
        done = {level: last for level, (_, last) in levels.items()}
        before = self._progress
        scanned, cursor = before.scanned, before.cursor
        if timers:
            scanned, cursor = self._scanned, max(cursor, timers[-1])
        return DeliveryProgress(
            levels={**before.levels, **done},
            scanned=scanned,
            floor=before.floor if self._heap or not timers else self._scanned,
            cursor=cursor,
        )

    def delivered(self, plan: DeliveryPlan) -> None:
        """Note that a plan's messages were delivered."""
        for level, (_, last) in plan.levels.items():
            waiting = self._levels[level].waiting
            while waiting and waiting[0][0] < last:
                waiting.popleft()
        self._progress = plan.progress


def _due(line: _Level, stored: int, now: int) -> int:
    # A message from the future: the clock was put back, and nobody is to wait for that.
    return now if stored > now else stored + line.span


def _count_due(line: _Level, now: int, limit: int) -> int:
    count = 0
    for _, stored in line.waiting:
        if count >= limit or _due(line, stored, now) > now:
            break
        count += 1
    return count


# Delivers what is due: reads, hands it to the store as one unit with the progress, and sleeps.

logger = logging.getLogger(__name__)

_ASKED = dict.fromkeys((DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, TIMER_OUT_MS))
#: Messages of one unit, and messages looked at in one go.
_MOST_AT_ONCE = 1000
_READ_BYTES = 4 * 1024 * 1024
#: Longest sleep, s: whoever parks a message wakes us, and this is for what nobody reported.
_LONGEST_SLEEP = 1.0


class _Broker(Protocol):
    store: MessageStore
    settings: BrokerSettings
    topics: TopicTable

    work: BackgroundWork

    @property
    def writable(self) -> bool: ...
    def now(self) -> int: ...


class DelayedDelivery:
    """Takes waiting messages to their topics when they are due.

    Parameters
    ----------
    core
        The broker.
    """

    def __init__(self, core: _Broker) -> None:
        self._core = core
        spans = parse_levels(core.settings.delay_levels)
        #: How long messages of each level wait, ms, from level 1 on.
        self.spans = spans
        # Fewer levels than at an earlier start: what waits at the others goes with the last.
        self._lines = spans + spans[-1:] * (CLOSED_TOPICS[DELAY_TOPIC] - len(spans))
        self.scheduler = Scheduler(self._lines)
        self._woken = asyncio.Event()
        core.store.hold(self._keep_from)

    def wake(self) -> None:
        """Wake the search for parked messages; called on the loop."""
        self._woken.set()

    def parked(self, draft: Draft) -> Draft:
        """Park a message that asks for a delay.

        Raises
        ------
        MessageRejectedError
            When what it asks for cannot be.
        BrokerBusyError
            When too many messages wait.
        """
        settings = self._core.settings
        parked = delayed(draft, self.spans, settings.max_delay, self._core.now())
        waiting, most = self.scheduler.pending_timers, settings.max_timers
        if waiting >= most and parked.topic != draft.topic and DELAY not in parked.properties:
            message = f"timer message is under flow control: {waiting} wait, the limit is {most}"
            raise BrokerBusyError(message, hint="Send it later, or raise the broker's max_timers.")
        return parked

    async def run(self) -> None:
        """Deliver for as long as the broker runs; one that follows another only waits."""
        while True:
            try:
                await self._deliver()
            except (HeadraceError, OSError) as error:
                logger.error("delayed messages wait on, as delivering failed: %s", error)
            await asyncio.sleep(_LONGEST_SLEEP)

    async def _deliver(self) -> None:
        """Deliver while the broker takes writes."""
        core = self._core
        if not core.writable:
            return
        # Whatever happened before, the log knows what was delivered.
        self.scheduler = Scheduler(self._lines, await core.work.in_thread(self._saved))
        while core.writable:
            if not await self._round():
                await self._sleep()

    async def _round(self) -> bool:
        """Deliver once, and return whether there may be more to do at once."""
        core, scheduler = self._core, self.scheduler
        more = await core.work.in_thread(self._look)
        plan = scheduler.plan(core.now(), _MOST_AT_ONCE)
        if not len(plan):
            return more
        appends = await core.work.in_thread(self._appends, plan)
        failpoint("broker.delays.before_unit")
        await asyncio.wrap_future(core.store.commit_unit([], appends))
        scheduler.delivered(plan)
        failpoint("broker.delays.after_unit")
        return True

    async def _sleep(self) -> None:
        now = self._core.now()
        due = self.scheduler.next_due(now)
        seconds = _LONGEST_SLEEP if due is None else max(0, due - now) / 1000
        try:
            async with asyncio.timeout(min(seconds, _LONGEST_SLEEP)):
                await self._woken.wait()
        except TimeoutError:
            return
        finally:
            self._woken.clear()

    def _keep_from(self) -> int | None:
        """Return the position of the oldest message that waits. Caller: retention's thread."""
        scheduler = self.scheduler
        if not self._core.writable:
            return None
        levels = range(1, len(self._lines) + 1)
        places = [(DELAY_TOPIC, level - 1, scheduler.progress.level(level)) for level in levels]
        places.append((TIMER_TOPIC, 0, scheduler.oldest_timer()))
        positions = []
        for topic, queue_id, offset in places:
            result = self._read(topic, queue_id, offset, 1)
            if result is not None and result.slices:
                (message,) = decode_messages(b"".join(result.slices), unpack=False)
                positions.append(message.position)
        return min(positions, default=None)

    def _saved(self) -> DeliveryProgress:
        # The first use of the columns loads libraries for up to half a second: not at a deadline.
        decode_columns(encode_record("", b"").data).property(TIMER_OUT_MS)
        store = self._core.store
        bounds = store.bounds(PROGRESS_TOPIC, 0)
        if bounds.min_offset == bounds.max_offset:
            # The last progress has expired, and with it all that was delivered before it.
            return DeliveryProgress()
        result = store.read(PROGRESS_TOPIC, 0, bounds.max_offset - 1, 1)
        (message,) = decode_messages(b"".join(result.slices))
        return msgspec.json.decode(message.body, type=DeliveryProgress)

    def _look(self) -> bool:
        """Pass new messages to the scheduler, and return whether there may be more."""
        more = False
        for level in range(1, len(self._lines) + 1):
            first, count = self.scheduler.wanted(level, _MOST_AT_ONCE)
            result = self._read(DELAY_TOPIC, level - 1, first, count)
            if result is None:
                continue
            self.scheduler.lost(level, result.min_offset)
            columns = decode_columns(b"".join(result.slices), unpack=False)
            found = zip(columns.queue_offset.tolist(), columns.stored.tolist(), strict=True)
            self.scheduler.stored(level, found)
            more |= result.next_offset < result.max_offset and count == _MOST_AT_ONCE
        return more | self._look_for_timers()

    def _look_for_timers(self) -> bool:
        scheduler = self.scheduler
        result = self._read(TIMER_TOPIC, 0, scheduler.scanned, _MOST_AT_ONCE)
        if result is None:
            scheduler.timers([], self._core.store.bounds(TIMER_TOPIC, 0).max_offset)
            return False
        columns = decode_columns(b"".join(result.slices), unpack=False)
        dues = columns.property(TIMER_OUT_MS).fill_null(b"0").to_pylist()
        found = zip(map(int, dues), columns.queue_offset.tolist(), strict=True)
        scheduler.timers(found, result.next_offset)
        return result.next_offset < result.max_offset

    def _read(self, topic: str, queue_id: int, first: int, count: int) -> ReadResult | None:
        store = self._core.store
        bounds = store.bounds(topic, queue_id)
        first = max(first, bounds.min_offset)
        if not count or first >= bounds.max_offset:
            return None
        return store.read(topic, queue_id, first, count, _READ_BYTES)

    def _appends(self, plan: DeliveryPlan) -> list[QueueAppend]:
        queues: dict[tuple[str, int], list[Draft]] = {}
        for message in self._due(plan):
            draft = self._unparked(message)
            if draft is not None:
                queues.setdefault((draft.topic, draft.queue_id), []).append(draft)
        body = msgspec.json.encode(plan.progress)
        queues[PROGRESS_TOPIC, 0] = [Draft(topic=PROGRESS_TOPIC, body=body)]
        return [
            QueueAppend(*queue, join_records([draft.records() for draft in drafts]))
            for queue, drafts in queues.items()
        ]

    def _due(self, plan: DeliveryPlan) -> Iterator[StoredMessage]:
        for level, (first, last) in plan.levels.items():
            yield from self._messages(DELAY_TOPIC, level - 1, first, last)
        offsets = np.sort(np.array([offset for _, offset in plan.timers], np.int64))
        timers: dict[int, StoredMessage] = {}
        for run in np.split(offsets, np.flatnonzero(np.diff(offsets) != 1) + 1):
            if len(run):
                found = self._messages(TIMER_TOPIC, 0, int(run[0]), int(run[-1]) + 1)
                timers.update((message.queue_offset, message) for message in found)
        # One queue gets them in the order of their times.
        yield from (timers[offset] for _, offset in plan.timers if offset in timers)

    def _messages(
        self, topic: str, queue_id: int, first: int, last: int
    ) -> Iterator[StoredMessage]:
        while first < last:
            result = self._read(topic, queue_id, first, last - first)
            if result is None:
                return
            for message in decode_messages(b"".join(result.slices), unpack=False):
                if message.queue_offset < last:
                    yield message
            first = result.next_offset

    def _unparked(self, message: StoredMessage) -> Draft | None:
        draft = Draft.of(message).having(_ASKED).unparked()
        config = self._core.topics.find(draft.topic)
        if config is None:
            logger.warning("a delayed message for topic %r is dropped: it was deleted", draft.topic)
            return None
        # The topic may have lost queues since.
        queues = max(config.read_queue_nums, config.write_queue_nums)
        return draft if draft.queue_id < queues else draft.at(draft.queue_id % queues)


# Where a message waits that must not be visible at once.

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
    due = _due_time(draft, now)
    if due is None or due <= now or TIMER_OUT_MS in draft.properties:
        return draft
    if due - now > longest // timedelta(milliseconds=1):
        message = f"a message for topic {draft.topic!r} is to wait for {due - now} ms:"
        most = f"the longest delay is {longest // timedelta(milliseconds=1)} ms"
        raise MessageRejectedError(f"timer message illegal, {message} {most}")
    return draft.having({TIMER_OUT_MS: str(due)}).parked(TIMER_TOPIC, 0)


def _due_time(draft: Draft, now: int) -> int | None:
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
