"""Delivers what is due: reads, hands it to the store as one unit with the progress, and sleeps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from headrace.broker.delays.levels import parse_levels
from headrace.broker.delays.scheduler import Plan, Progress, Scheduler
from headrace.broker.drafts import Draft
from headrace.broker.topics import CLOSED_TOPICS, DELAY_TOPIC, PROGRESS_TOPIC, TIMER_TOPIC
from headrace.errors import HeadraceError
from headrace.failpoints import failpoint
from headrace.protocol.columns import decode_columns, encode_record, join_records
from headrace.protocol.messages import StoredMessage, decode_messages
from headrace.protocol.properties import (
    DELAY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
)
from headrace.store import QueueAppend

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.store import ReadResult

__all__ = ["Delivery"]

_log = logging.getLogger(__name__)

_ASKED = dict.fromkeys((DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, TIMER_OUT_MS))
#: Messages of one unit, and messages looked at in one go.
_MOST_AT_ONCE = 1000
_READ_BYTES = 4 * 1024 * 1024
#: Longest sleep, s: whoever parks a message wakes us, and this is for what nobody told of.
_LONGEST_SLEEP = 1.0


class Delivery:
    """Takes waiting messages to their topics when they are due.

    Parameters
    ----------
    core
        The broker.
    """

    def __init__(self, core: Core) -> None:
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
        """Look for what was parked; called on the loop."""
        self._woken.set()

    async def run(self) -> None:
        """Deliver for as long as the broker runs; one that follows another only waits."""
        while True:
            try:
                await self._deliver()
            except (HeadraceError, OSError) as error:
                _log.error("delayed messages wait on, as delivering failed: %s", error)
            await asyncio.sleep(_LONGEST_SLEEP)

    async def _deliver(self) -> None:
        """Deliver while the broker takes writes."""
        core = self._core
        if not core.writable:
            return
        # Whatever happened before, the log knows what was delivered.
        self.scheduler = Scheduler(self._lines, await core.in_thread(self._saved))
        while core.writable:
            if not await self._round():
                await self._sleep()

    async def _round(self) -> bool:
        """Deliver once; whether there may be more to do at once."""
        core, scheduler = self._core, self.scheduler
        more = await core.in_thread(self._look)
        plan = scheduler.plan(core.now(), _MOST_AT_ONCE)
        if not len(plan):
            return more
        appends = await core.in_thread(self._appends, plan)
        failpoint("broker.delays.before_unit")
        await core.stored(core.store.commit_unit([], appends))
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
        """Give the position of the oldest message that waits. Caller: retention's thread."""
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

    def _saved(self) -> Progress:
        # The first use of the columns loads libraries for up to half a second: not at a deadline.
        decode_columns(encode_record("", b"").data).property(TIMER_OUT_MS)
        store = self._core.store
        bounds = store.bounds(PROGRESS_TOPIC, 0)
        if bounds.min_offset == bounds.max_offset:
            # The last progress has expired, and with it all that was delivered before it.
            return Progress()
        result = store.read(PROGRESS_TOPIC, 0, bounds.max_offset - 1, 1)
        (message,) = decode_messages(b"".join(result.slices))
        return msgspec.json.decode(message.body, type=Progress)

    def _look(self) -> bool:
        """Tell the scheduler of messages that it does not know; whether there may be more."""
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

    def _appends(self, plan: Plan) -> list[QueueAppend]:
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

    def _due(self, plan: Plan) -> Iterator[StoredMessage]:
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
            _log.warning("a delayed message for topic %r is dropped: it was deleted", draft.topic)
            return None
        # The topic may have lost queues since.
        queues = max(config.read_queue_nums, config.write_queue_nums)
        return draft if draft.queue_id < queues else draft.at(draft.queue_id % queues)
