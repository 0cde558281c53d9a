"""Interval joins: every pair of records whose times are close."""

from __future__ import annotations

import heapq
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from headrace.keys import decode_key
from headrace.runtime.chunk import Chunk
from headrace.runtime.joins.buckets import Buckets, WaitingRecord
from headrace.runtime.joins.sides import LEFT, NO_KEY, PAIR, RIGHT, Meetings, TimedJoinProcessor
from headrace.runtime.state.timers import Timers
from headrace.topology.operators.tables import IntervalJoin

if TYPE_CHECKING:
    from headrace.runtime.event_time.watermarks import Watermark
    from headrace.runtime.joins.sides import Arrivals
    from headrace.runtime.processors import ProcessorContext


#: What timers are about: side of the record and number of its block; then comes the key.
_WAITING = struct.Struct(">BI")


class IntervalJoinProcessor(TimedJoinProcessor[IntervalJoin]):
    """Gives a pair as soon as its later record is there, and a lonely record when its time is up.

    Records lie in buckets as wide as the interval, so that a record looks into two of the other
    side at most.  A record that somebody wants alone has a timer until something meets it.
    """

    def __init__(self, operator: IntervalJoin, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._reaches = (operator.left_reach, operator.right_reach)
        #: How far before, and how far behind, a record its partners lie, by its side.
        self._spans = ((operator.before, operator.after), (operator.after, operator.before))
        self._width = max(operator.before + operator.after, 1)
        #: What waits since this batch, as a heap: when due, number, side, key and record.
        self._waiting: list[tuple[int, int, int, bytes, WaitingRecord]] = []
        self._numbers = count()
        self._buckets: tuple[Buckets, Buckets] | None = None

    def prepare(self, arrivals: Arrivals) -> None:
        """Read every entry that the records look into."""
        ports, times = np.array(arrivals.ports, np.int64), arrivals.chunk.times
        own, others = self._sides()
        for port, (buckets, partners) in enumerate(((own, others), (others, own))):
            mine = np.flatnonzero(ports == port)
            if not len(mine):
                continue
            back, forth = self._spans[port]
            keys = [arrivals.keys[i] for i in mine.tolist()]
            at = times[mine]
            buckets.load(at // self._width, keys, whole=False)
            first, last = (at - back) // self._width, (at + forth) // self._width
            partners.load(first, keys)
            wide = np.flatnonzero(last > first)
            partners.load(last[wide], [keys[i] for i in wide.tolist()])

    def take(self, arrivals: Arrivals, places: Sequence[int], meetings: Meetings) -> list[int]:
        """Handle records in order; give the places of those whose time was up."""
        sides, width, late = self._sides(), self._width, []
        alone = [port + 1 in self.operator.alone for port in (0, 1)]
        before = self.event_time - self.operator.grace
        #: Records of a side that are older have been given alone, or could be no more.
        oldest = [before - reach for reach in self._reaches]
        times, keys, ports, values = arrivals.times, arrivals.keys, arrivals.ports, arrivals.values
        for i in places:
            time, key, port = times[i], keys[i], ports[i]
            if time < oldest[port]:
                late.append(i)
                continue
            if key == NO_KEY:
                self.give_alone(arrivals, i, meetings)
                continue
            back, forth = self._spans[port]
            found = self._near(
                sides[1 - port], key, max(time - back, oldest[1 - port]), time + forth
            )
            if found:
                if alone[1 - port]:
                    self._touch(sides[1 - port], key, found)
                self._meet(arrivals, i, found, meetings)
            record = WaitingRecord(time, values[i], bool(found), arrivals.raws[i])
            sides[port].add(time // width, key, record)
            if alone[port] and not found:
                due = time + self._reaches[port] + self.operator.grace + 1
                heapq.heappush(self._waiting, (due, next(self._numbers), port, key, record))
        return late

    def _near(self, partners: Buckets, key: bytes, first: int, last: int) -> list[WaitingRecord]:
        """Return the records of a key within bounds of time, in the order of their times."""
        number, end = first // self._width, last // self._width
        found: list[WaitingRecord] = []
        while number <= end:
            records = partners.get(number, key)
            if records is not None:
                found += [record for record in records if first <= record.time <= last]
            number += 1
        if len(found) > 1:
            found.sort(key=_time_of)
        return found

    def _touch(self, partners: Buckets, key: bytes, found: list[WaitingRecord]) -> None:
        """Note that records are met for the first time."""
        for number, block in {(r.time // self._width, r.block) for r in found if not r.met}:
            partners.touch(number, key, block)

    def _meet(
        self, arrivals: Arrivals, i: int, found: list[WaitingRecord], meetings: Meetings
    ) -> None:
        name, value, mark = arrivals.names[i], arrivals.values[i], arrivals.marks[i]
        time, port = arrivals.times[i], arrivals.ports[i]
        for record in found:
            record.met = True
            pair = (PAIR, record.value, value) if port else (PAIR, value, record.value)
            meetings.add(name, pair, max(time, record.time), mark)

    def advance_to(self, watermark: Watermark, meetings: Meetings) -> None:
        """Give what nothing met in time, and drop what can meet nothing more."""
        sides = self._sides()
        if self.operator.alone:
            for record, port, key in self._lonely(watermark.time):
                value = (RIGHT, None, record.value) if port else (LEFT, record.value, None)
                meetings.add(decode_key(key), value, record.time, watermark.mark)
        for port, buckets in enumerate(sides):
            buckets.end(self._ended(port, watermark.time), wanted=False)

    def _lonely(self, time: int) -> Iterator[tuple[WaitingRecord, int, bytes]]:
        """Yield the records whose time is up and that nothing met, in the order of their times."""
        sides = self._sides()
        found: list[tuple[int, int, bytes, int, int, WaitingRecord]] = []
        for (port, key, number, block), times in self._due(time).items():
            for at, record in enumerate(sides[port].block(number, key, block)):
                if record.time in times and not record.met:
                    found.append((record.time, port, key, block, at, record))
        for _, port, key, _, _, record in sorted(found):
            yield record, port, key

    def _due(self, time: int) -> dict[tuple[int, bytes, int, int], set[int]]:
        """Return the times of records that have waited long enough, by where they lie."""
        due: dict[tuple[int, bytes, int, int], set[int]] = defaultdict(set)
        for when, what in self._timers.due(time):
            port, block = _WAITING.unpack_from(what)
            at = when - self._reaches[port] - self.operator.grace - 1
            due[port, what[_WAITING.size :], at // self._width, block].add(at)
        for port, buckets in enumerate(self._sides()):
            places = [(number, key, block) for own, key, number, block in due if own == port]
            numbers = np.array([number for number, _, _ in places], np.int64)
            buckets.load(numbers, [key for _, key, _ in places], whole=False)
            buckets.load_blocks(places)
        while self._waiting and self._waiting[0][0] <= time:
            _, _, port, key, record = heapq.heappop(self._waiting)
            due[port, key, record.time // self._width, record.block].add(record.time)
        return due

    def finish(self) -> Chunk:
        """Write what is kept, and the timers of what nothing has met."""
        if self._buckets is not None:
            timers = self._timers
            for due, _, port, key, record in self._waiting:
                if not record.met:
                    timers.set(due, _WAITING.pack(port, record.block) + key)
            self._waiting = []
            for buckets in self._buckets:
                buckets.flush()
        return Chunk.empty()

    def _sides(self) -> tuple[Buckets, Buckets]:
        if self._buckets is None:
            operator, store = self.operator, self.context.store(self.operator)
            self._buckets = (
                Buckets(operator, store, b"l", operator.left_serde, self._ended(0, self.settled)),
                Buckets(operator, store, b"r", operator.right_serde, self._ended(1, self.settled)),
            )
        return self._buckets

    @cached_property
    def _timers(self) -> Timers:
        return Timers(self.context.store(self.operator), b"t", settled=self.settled)

    def _ended(self, port: int, time: int) -> int:
        return (time - self.operator.grace - self._reaches[port]) // self._width


def _time_of(record: WaitingRecord) -> int:
    return record.time
