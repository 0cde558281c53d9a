"""The two inputs of a join, in one order; and what a join returns."""

from __future__ import annotations

import heapq
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from headrace.keys import decode_key, encode_keys
from headrace.runtime.chunk import Chunk, Int64s, count_keyless
from headrace.runtime.joins.buckets import Buckets, WaitingRecord
from headrace.runtime.processors import Processor, ProcessorContext
from headrace.runtime.state.interface import Timers
from headrace.runtime.state.layouts import BucketLayout, StateLayout
from headrace.runtime.user_code import writing
from headrace.runtime.windows.combining import Assigned, assign
from headrace.topology.operators.tables import IntervalJoin, TimedJoin, WindowJoin
from headrace.topology.windowed import WINDOW_END, WINDOW_START

if TYPE_CHECKING:
    from headrace.runtime.event_time.watermarks import Watermark
    from headrace.topology.operators.core import Operator


#: What a meeting holds: both sides, or one that nothing met.
PAIR, LEFT, RIGHT = 0, 1, 2

#: Canonical bytes of "no key": such a record meets nothing.
(NO_KEY,) = encode_keys([None])


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Records of both sides in the order of their marks, the left one first where these agree."""

    chunk: Chunk
    #: 0 for a record of the left side, 1 for one of the right.
    ports: list[int]
    #: Canonical bytes of the keys.
    keys: list[bytes]
    #: The keys themselves.
    names: list[Any]
    times: list[int]
    marks: list[int]
    #: The values' bytes, None where they did not come over a shuffle.
    raws: Sequence[bytes | None]

    @property
    def values(self) -> list[Any]:
        """The values."""
        return self.chunk.values

    def __len__(self) -> int:
        return len(self.ports)

    def runs(self, watermarks: Sequence[Watermark]) -> Iterator[tuple[int, int, Watermark | None]]:
        """Yield runs of records, each up to a watermark's mark, with the watermark."""
        ends = np.searchsorted(self.chunk.marks, [w.mark for w in watermarks], side="right")
        at = 0
        for watermark, end in zip(watermarks, ends.tolist(), strict=True):
            yield at, max(at, end), watermark
            at = max(at, end)
        yield at, len(self), None


def merged_sides(inputs: Mapping[int, Chunk], operator: Operator) -> Arrivals:
    """Bring what came from the parents into one order."""
    parts = [(port, inputs[port]) for port in sorted(inputs) if len(inputs[port])]
    chunk = Chunk.merge([part for _, part in parts])
    ports = np.concatenate([np.full(len(c), p) for p, c in parts] or [np.empty(0, np.int64)])
    marks = np.concatenate([c.marks for _, c in parts] or [np.empty(0, np.int64)])
    # Chunk.merge sorts in the same way, and leaves alone what is in order.
    ports = ports[np.argsort(marks, kind="stable")]
    names = chunk.key_list()
    with writing(operator, "a key"):
        keys = encode_keys(names)
    times, marks = chunk.times.tolist(), chunk.marks.tolist()
    raws = [None] * len(chunk) if chunk.raws is None else chunk.raws.to_pylist()
    return Arrivals(chunk, ports.tolist(), keys, names, times, marks, raws)


_Meeting = tuple[Any, tuple[int, Any, Any], int, int, dict[str, str] | None]


@dataclass(slots=True)
class Meetings:
    """What a join returns, record by record: (what it holds, left value, right value)."""

    rows: list[_Meeting] = field(default_factory=list)

    def add(
        self,
        key: Any,
        value: tuple[int, Any, Any],
        time: int,
        mark: int,
        window: dict[str, str] | None = None,
    ) -> None:
        """Add one, with what says its window where the join has windows."""
        self.rows.append((key, value, time, mark, window))

    def chunk(self, late_below: Int64s | None = None) -> Chunk:
        """Return them all."""
        windows = [row[4] for row in self.rows]
        return Chunk(
            [row[0] for row in self.rows],
            [row[1] for row in self.rows],
            np.array([row[2] for row in self.rows], np.int64),
            np.array([row[3] for row in self.rows], np.int64),
            windows if any(windows) else None,
            late_below=late_below,
        )


# What all joins by time share: records and time in one order, late records, lonely ones.

JoinT = TypeVar("JoinT", bound=TimedJoin)


class TimedJoinProcessor(Processor[JoinT]):
    """Handles the records of both sides and the rise of event time in the order of the marks."""

    layout: ClassVar[StateLayout | None] = BucketLayout()
    keeps_bytes = True

    def __init__(self, operator: JoinT, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        #: Event time up to which all was done before.
        self.settled = context.settled(operator)

    def run(self, inputs: Mapping[int, Chunk], watermarks: Sequence[Watermark]) -> Chunk:
        """Handle what came from each side, and each watermark behind the records up to its mark."""
        if not watermarks and not any(map(len, inputs.values())):
            return Chunk.empty()
        arrivals, meetings = merged_sides(inputs, self.operator), Meetings()
        if len(arrivals):
            self.prepare(arrivals)
        behind = arrivals.chunk.late(self.operator.grace)
        in_time = np.flatnonzero(~behind)
        late = np.flatnonzero(behind).tolist()
        for start, stop, watermark in arrivals.runs(watermarks):
            if stop > start:
                first, last = np.searchsorted(in_time, [start, stop])
                late += self.take(arrivals, in_time[first:last].tolist(), meetings)
            if watermark is not None:
                self.advance_to(watermark, meetings)
                self.event_time = watermark.time
        self._give_late(arrivals, late)
        return meetings.chunk()

    def prepare(self, arrivals: Arrivals) -> None:
        """Read from the store what the records will need."""
        raise NotImplementedError

    def take(self, arrivals: Arrivals, places: Sequence[int], meetings: Meetings) -> list[int]:
        """Handle records in order, and return the places of those whose window has fired."""
        raise NotImplementedError

    def advance_to(self, watermark: Watermark, meetings: Meetings) -> None:
        """Advance event time to the watermark."""
        raise NotImplementedError

    def give_alone(self, arrivals: Arrivals, i: int, meetings: Meetings) -> None:
        """Forward a record without a key, which nothing meets, where somebody wants it alone."""
        port, value = arrivals.ports[i], arrivals.values[i]
        if port + 1 in self.operator.alone:
            found = (RIGHT, None, value) if port else (LEFT, value, None)
            meetings.add(arrivals.names[i], found, arrivals.times[i], arrivals.marks[i])
        else:
            count_keyless(self.context.counters, self.operator.name)

    def _give_late(self, arrivals: Arrivals, late: list[int]) -> None:
        if late:
            self.context.counters["late"] += len(late)
            self.give("late", arrivals.chunk.take(np.array(sorted(late), np.intp)))


# Interval joins: every pair of records whose times are close.

#: What timers are about: side of the record and number of its block; then comes the key.
_WAITING = struct.Struct(">BI")


class IntervalJoinProcessor(TimedJoinProcessor[IntervalJoin]):
    """A join that forwards a pair with its later record, and a lonely record when its time is up.

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
        """Handle records in order, and return the places of those whose time was up."""
        sides, width, late = self._sides(), self._width, []
        alone = [port + 1 in self.operator.alone for port in (0, 1)]
        before = self.event_time - self.operator.grace
        #: Records of a side that are older have been returned alone, or could no longer be.
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
        """Forward what nothing met in time, and drop what can meet nothing more."""
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


# Joins by tumbling and hopping windows: every pair that shares a window, once for each.


class WindowJoinProcessor(TimedJoinProcessor[WindowJoin]):
    """A join that forwards a pair with its later record, and lonely records when the window fires.

    Records lie by the end of their window and key.
    """

    _buckets: tuple[Buckets, Buckets] | None = None
    #: Ends of the windows of each record.
    _ends: Sequence[list[int]] = ()
    #: What results say of a window, by its end.
    _told: dict[int, dict[str, str]]

    def __init__(self, operator: WindowJoin, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._told = {}

    def prepare(self, arrivals: Arrivals) -> None:
        """Read every window that the records fall into, of both sides."""
        found = assign(self.operator.windows, arrivals.chunk.times)
        ends: list[list[int]] = [[] for _ in arrivals.keys]
        for i, end in zip(found.indices.tolist(), found.ends.tolist(), strict=True):
            ends[i].append(end)
        self._ends = ends
        self._tell(found)
        ports = np.array(arrivals.ports, np.int64)[found.indices]
        for port, buckets in enumerate(self._sides()):
            for whole in (False, True):
                mine = np.flatnonzero((ports != port) == whole)
                keys = [arrivals.keys[i] for i in found.indices[mine].tolist()]
                buckets.load(found.ends[mine], keys, whole=whole)

    def take(self, arrivals: Arrivals, places: Sequence[int], meetings: Meetings) -> list[int]:
        """Handle records in order, and return the places of those whose windows have all fired."""
        sides, late = self._sides(), []
        fired = self.event_time - self.operator.grace
        for i in places:
            time, key, port = arrivals.times[i], arrivals.keys[i], arrivals.ports[i]
            ends = self._ends[i]
            if max(ends, default=fired) <= fired:
                late.append(i)
                continue
            if key == NO_KEY:
                self.give_alone(arrivals, i, meetings)
                continue
            name, value, mark = arrivals.names[i], arrivals.values[i], arrivals.marks[i]
            for end in sorted(ends):
                if end <= fired:
                    continue
                for record in sides[1 - port].get(end, key) or ():
                    pair = (PAIR, record.value, value) if port else (PAIR, value, record.value)
                    meetings.add(name, pair, max(time, record.time), mark, self._told[end])
                sides[port].add(end, key, WaitingRecord(time, value, raw=arrivals.raws[i]))
        return late

    def advance_to(self, watermark: Watermark, meetings: Meetings) -> None:
        """Fire the windows that have ended."""
        alone = self.operator.alone
        limit = watermark.time - self.operator.grace + 1
        ended = [buckets.end(limit, wanted=bool(alone)) for buckets in self._sides()]
        if not alone:
            return
        met = {(end, key) for end, key, _ in ended[0]} & {(end, key) for end, key, _ in ended[1]}
        lonely = sorted(
            (end, record.time, port, key, at, record.value)
            for port, entries in enumerate(ended)
            if port + 1 in alone
            for end, key, records in entries
            if (end, key) not in met
            for at, record in enumerate(records)
        )
        self._tell(assign(self.operator.windows, np.array([e[1] for e in lonely], np.int64)))
        for end, time, port, key, _, value in lonely:
            found = (RIGHT, None, value) if port else (LEFT, value, None)
            meetings.add(decode_key(key), found, time, watermark.mark, self._told[end])

    def _tell(self, found: Assigned) -> None:
        # A window's end tells its start.
        ends, firsts = np.unique(found.ends, return_index=True)
        for start, end in zip(found.starts[firsts].tolist(), ends.tolist(), strict=True):
            if end not in self._told:
                self._told[end] = {WINDOW_START: str(start), WINDOW_END: str(end)}

    def finish(self) -> Chunk:
        """Write what is kept."""
        if self._buckets is not None:
            for buckets in self._buckets:
                buckets.flush()
        return Chunk.empty()

    def _sides(self) -> tuple[Buckets, Buckets]:
        if self._buckets is None:
            operator, store = self.operator, self.context.store(self.operator)
            done = self.settled - operator.grace + 1
            self._buckets = (
                Buckets(operator, store, b"l", operator.left_serde, done),
                Buckets(operator, store, b"r", operator.right_serde, done),
            )
        return self._buckets
