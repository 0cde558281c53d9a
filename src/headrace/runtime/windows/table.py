"""The table of window operators."""

from __future__ import annotations

import copy
import heapq
from abc import abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from headrace.keys import decode_keys, encode_keys
from headrace.runtime.aggregates.algebra import ABSENT, Algebra
from headrace.runtime.aggregates.running import Folder
from headrace.runtime.chunk import NEVER, Chunk, skip_keyless
from headrace.runtime.processors import Processor, ProcessorContext
from headrace.runtime.state.layouts import PartLayout
from headrace.runtime.user_code import writing
from headrace.runtime.windows.combining import give_late
from headrace.runtime.windows.parts import PartStore, RecordGroup
from headrace.runtime.windows.time_windows import TimeWindowProcessor
from headrace.topology.operators.windows import (
    CountWindow,
    SessionWindow,
    SlidingWindow,
    TimeWindow,
    WindowAggregate,
)
from headrace.topology.windowed import (
    WINDOW_END,
    WINDOW_START,
    WithWindow,
    window_headers,
    windowed,
)

if TYPE_CHECKING:
    from headrace.runtime.event_time.watermarks import Watermark
    from headrace.topology.operators.core import Operator


# A result's window, from the properties in which it travels to a place beside the value.


class WithWindowProcessor(Processor[WithWindow]):
    """Puts windows beside values."""

    def process(self, chunk: Chunk) -> Chunk:
        """Handle results of a window operator, which all have the properties."""
        headers = chunk.headers or []
        return chunk.with_values(
            [
                windowed(value, int(own[WINDOW_START]), int(own[WINDOW_END]))
                for value, own in zip(chunk.values, headers, strict=True)
                if own is not None
            ]
        )


# Windows that depend on the records of their key, which are handled one by one, in order.

WindowT = TypeVar("WindowT", bound=WindowAggregate)


class ByRecordProcessor(Processor[WindowT]):
    """Keeps parts by key, and acts on each when event time has come far enough."""

    layout = PartLayout()

    def __init__(self, operator: WindowT, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self.folder = Folder(operator, operator.aggregation, context.locator)
        self.algebra = self.folder.algebra
        self._store = PartStore(operator, self.algebra, context)
        #: Keys by when they have something to do; some are no longer so.
        self._agenda: list[tuple[int, bytes]] = []
        self._late: list[int] = []
        self._results = _Results()
        self._retracts = context.retracts(operator)

    @abstractmethod
    def take(
        self, parts: list[RecordGroup], record: RecordGroup, value: Any
    ) -> list[RecordGroup] | None:
        """Put a record into the parts of its key.

        The record comes as a part without an accumulator.  Return the parts that it changed, None
        when their windows have fired.
        """

    @abstractmethod
    def next_time(self, parts: list[RecordGroup]) -> int | None:
        """Return when a key has something to do."""

    @abstractmethod
    def close(self, key: bytes, parts: list[RecordGroup], watermark: Watermark) -> None:
        """Forward what is due and drop what is no longer needed."""

    @abstractmethod
    def bounds(self, part: RecordGroup) -> tuple[int, int]:
        """Return the window of a part."""

    def content(self, parts: list[RecordGroup], part: RecordGroup) -> Any:
        """Return the accumulator of a part's window."""
        del parts
        return part.accumulator

    def run(self, inputs: Mapping[int, Chunk], watermarks: Sequence[Watermark]) -> Chunk:
        """Handle records and the rise of event time in the order of their marks."""
        chunk = skip_keyless(
            Chunk.merge(list(inputs.values())), self.context.counters, self.operator.name
        )
        if self.operator.timed:
            late, chunk = chunk.split(chunk.late(self.operator.grace))
            give_late(self, late)
        with writing(self.operator, "a key"):
            keys = encode_keys(chunk.key_list()) if len(chunk) else []
        self._begin(keys, watermarks)
        pending = iter(watermarks)
        watermark = next(pending, None)
        for index, mark in enumerate(chunk.marks.tolist()):
            while watermark is not None and watermark.mark < mark:
                self._advance(watermark)
                watermark = next(pending, None)
            self._take(chunk, keys[index], index, mark)
        while watermark is not None:
            self._advance(watermark)
            watermark = next(pending, None)
        if self._late:
            give_late(self, chunk.take(np.array(self._late, np.intp)))
            self._late = []
        if self.operator.emit == "update":
            for key in dict.fromkeys(keys):
                self.update(key, self._store.held[key])
        results, self._results = self._results, _Results()
        return results.chunk(of_records=self.operator.updates or not self.operator.timed)

    def finish(self) -> Chunk:
        """Write what is kept."""
        self._store.write({key: self.next_time(parts) for key, parts in self._store.held.items()})
        return Chunk.empty()

    def _begin(self, keys: list[bytes], watermarks: Sequence[Watermark]) -> None:
        due = self._store.take_due(watermarks[-1].time) if watermarks else []
        self._store.read(keys)
        if self._retracts:
            self._note_given()
        for key in due:
            self._plan(key)

    def _note_given(self) -> None:
        """Note what was given in earlier batches of what was read, to take it back."""
        for key in self._store.take_fresh():
            parts = self._store.held[key]
            for part in parts:
                value = self._result(self.algebra.snapshot, parts, part, -1)
                part.given = [(self.bounds(part), value)]

    def _plan(self, key: bytes) -> None:
        time = self.next_time(self._store.held[key])
        if time is not None:
            heapq.heappush(self._agenda, (time, key))

    def _take(self, chunk: Chunk, key: bytes, index: int, mark: int) -> None:
        time = int(chunk.times[index])
        late_below = NEVER if chunk.late_below is None else int(chunk.late_below[index])
        parts = self._store.held[key]
        record = RecordGroup(time, time, 1, ABSENT, mark, time, late_below)
        before = self.next_time(parts)
        try:
            changed = self.take(parts, record, chunk.values[index])
        except Exception as error:  # noqa: BLE001 - user functions raise what they like
            self.folder.take_out(error, mark)
            return
        if changed is None:
            self._late.append(index)
            return
        for part in changed:
            part.mark, part.time, part.late_below = mark, time, late_below
        if changed:
            self.taken(key, parts)
        if self.next_time(parts) != before:
            self._plan(key)

    def taken(self, key: bytes, parts: list[RecordGroup]) -> None:
        """Forward what a record made complete."""

    def _advance(self, watermark: Watermark) -> None:
        while self._agenda and self._agenda[0][0] <= watermark.time:
            time, key = heapq.heappop(self._agenda)
            parts = self._store.held[key]
            if self.next_time(parts) == time:
                self.close(key, parts, watermark)
                self._plan(key)
        self.event_time = watermark.time

    def fire(self, key: bytes, parts: list[RecordGroup], part: RecordGroup, mark: int) -> None:
        """Forward the result of a window that closes."""
        if self.operator.emit == "update":
            self.update(key, [part])
        else:
            value = self._result(self.algebra.result, parts, part, mark)
            self._results.add(key, value, self.bounds(part), (part.last, mark, part.late_below))

    def update(self, key: bytes, parts: list[RecordGroup]) -> None:
        """Forward the results of parts that have changed."""
        held = self._store.held[key]
        for part in parts:
            if part.mark < 0:
                continue
            cause = (part.time, part.mark, part.late_below)
            for bounds, old in part.given:
                self._results.add(key, old, bounds, cause, taken_back=True)
            value = self._result(self.algebra.snapshot, held, part, part.mark)
            bounds = self.bounds(part)
            self._results.add(key, value, bounds, cause)
            part.given = [(bounds, value)] if self._retracts else []
            part.mark = -1

    def _result(
        self, of: Callable[[Any], Any], parts: list[RecordGroup], part: RecordGroup, mark: int
    ) -> Any:
        try:
            return of(self.content(parts, part))
        except Exception as error:
            raise self.folder.failure(error, mark) from error


class _Results:
    """Results that one run gives."""

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._values: list[Any] = []
        self._headers: list[dict[str, str] | None] = []
        self._causes: list[tuple[int, int, int]] = []
        self._retracts: list[bool] = []

    def add(
        self,
        key: bytes,
        value: Any,
        bounds: tuple[int, int],
        cause: tuple[int, int, int],
        *,
        taken_back: bool = False,
    ) -> None:
        self._keys.append(key)
        self._values.append(value)
        self._headers.append(window_headers(*bounds))
        self._causes.append(cause)
        self._retracts.append(taken_back)

    def chunk(self, *, of_records: bool) -> Chunk:
        """Make a chunk; ``of_records`` when records made the results, and not the time."""
        if not self._keys:
            return Chunk.empty()
        times, marks, late_below = np.array(self._causes, np.int64).T
        chunk = Chunk(decode_keys(self._keys), self._values, times, marks, self._headers)
        if of_records:
            chunk.late_below = late_below
        if any(self._retracts):
            chunk.retracts = np.array(self._retracts)
        return chunk.take(np.argsort(chunk.marks, kind="stable"))


#: Numbers of parts: the window that ends there has not fired, or has, and others still need it.
_OPEN, _FIRED = 0, 1


# Sliding windows: one ends at every time at which a key has a record.


class SlidingProcessor(ByRecordProcessor[SlidingWindow]):
    """Keeps one part for each time of a key, and puts windows together when they fire.

    Windows fire in the order of their ends, so parts that have fired stand before the others.
    """

    def __init__(self, operator: SlidingWindow, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        #: By the list of a key's parts, which is the same for all of a batch.
        self._merged: dict[int, MergedParts] = {}

    def take(
        self, parts: list[RecordGroup], record: RecordGroup, value: Any
    ) -> list[RecordGroup] | None:
        """Put a record into the part of its time.

        Its own window may have passed while its queue was idle: then those that end later hold it.
        """
        has_passed = self._passed(record) <= self.event_time
        if has_passed and self._passed(record) + self.operator.windows.size <= self.event_time:
            return None
        place = bisect_left(parts, record.time, key=_time)
        found = place < len(parts) and parts[place].last == record.time
        part = parts[place] if found else record
        part.accumulator = self.algebra.add(part.accumulator, value, record.mark)
        if not found:
            part.number = _FIRED if has_passed else _OPEN
            parts.insert(place, part)
        if has_passed:
            part.mark = -1
            # What was merged of those that have fired held one record less.
            self._merged.pop(id(parts), None)
        if self.operator.emit == "close":
            return [] if has_passed else [part]
        last = bisect_right(parts, record.time + self.operator.windows.size, key=_time)
        return [one for one in parts[place:last] if one.number == _OPEN]

    def next_time(self, parts: list[RecordGroup]) -> int | None:
        """Return when the first window has passed, or the first part is no longer needed."""
        if not parts:
            return None
        drops, fired = self._passed(parts[0]) + self.operator.windows.size, _fired(parts)
        return drops if fired == len(parts) else min(self._passed(parts[fired]), drops)

    def close(self, key: bytes, parts: list[RecordGroup], watermark: Watermark) -> None:
        """Forward the windows that have passed, and drop what no open one can hold."""
        at = _fired(parts)
        while at < len(parts) and self._passed(parts[at]) <= watermark.time:
            self.fire(key, parts, parts[at], watermark.mark)
            parts[at].number = _FIRED
            at += 1
        size, gone = self.operator.windows.size, 0
        while gone < len(parts) and self._passed(parts[gone]) + size <= watermark.time:
            gone += 1
        if gone:
            del parts[:gone]
            if (merged := self._merged.get(id(parts))) is not None:
                merged.forget(gone)

    def content(self, parts: list[RecordGroup], part: RecordGroup) -> Any:
        """Put the window that ends at a part together."""
        first = bisect_left(parts, part.last - self.operator.windows.size, key=_time)
        stop = bisect_left(parts, part.last, key=_time) + 1
        # Where the order of merging matters, nothing is merged ahead.
        settled = _fired(parts) if self.algebra.merges else 0
        if id(parts) not in self._merged:
            self._merged[id(parts)] = MergedParts(self.algebra, parts)
        return self._merged[id(parts)].run(first, stop, settled)

    def bounds(self, part: RecordGroup) -> tuple[int, int]:
        """Return the window that ends at a part."""
        return part.last - self.operator.windows.size, part.last

    def _passed(self, part: RecordGroup) -> int:
        # Records at the very end still belong to it, so event time has to be beyond.
        return part.last + self.operator.grace + 1


def _time(part: RecordGroup) -> int:
    return part.last


def _fired(parts: list[RecordGroup]) -> int:
    """Return how many parts have fired."""
    return bisect_left(parts, _OPEN, key=lambda part: -part.number)


# Count windows: every so many records of a key.


class CountProcessor(ByRecordProcessor[CountWindow]):
    """Keeps the window of each key that is not full yet."""

    def take(
        self, parts: list[RecordGroup], record: RecordGroup, value: Any
    ) -> list[RecordGroup] | None:
        """Put a record into the window that its key has open."""
        if not parts:
            record.number = 0
            parts.append(record)
        part = parts[-1]
        part.accumulator = self.algebra.add(part.accumulator, value, record.mark)
        part.first, part.last = min(part.first, record.time), max(part.last, record.time)
        part.number += 1
        return [part]

    def taken(self, key: bytes, parts: list[RecordGroup]) -> None:
        """Forward a window that is full."""
        part = parts[-1]
        if part.number == self.operator.windows.size:
            self.fire(key, parts, part, part.mark)
            parts.clear()

    def next_time(self, parts: list[RecordGroup]) -> int | None:
        """Return None, as time plays no part."""
        del parts
        return None

    def close(self, key: bytes, parts: list[RecordGroup], watermark: Watermark) -> None:
        """Do nothing: only records close windows."""

    def bounds(self, part: RecordGroup) -> tuple[int, int]:
        """Return the lowest and the highest event time of a window."""
        return part.first, part.last


# Sessions: runs of records that follow each other closely.


class SessionProcessor(ByRecordProcessor[SessionWindow]):
    """Keeps the open sessions of each key, of which no two are within the gap of each other."""

    def take(
        self, parts: list[RecordGroup], record: RecordGroup, value: Any
    ) -> list[RecordGroup] | None:
        """Put a record into the session that it belongs to, or make one of those that it joins."""
        gap, time = self.operator.windows.gap, record.time
        met = [part for part in parts if part.first - gap <= time <= part.last + gap]
        if not met:
            if self._passed(record) <= self.event_time:
                return None
            record.accumulator = self.algebra.add(record.accumulator, value, record.mark)
            parts.append(record)
            parts.sort(key=lambda part: part.first)
            return [record]
        session = met[0]
        session.accumulator = self.algebra.add(session.accumulator, value, record.mark)
        for other in met[1:]:
            session.accumulator = self.algebra.merge(session.accumulator, other.accumulator)
            session.last = other.last
            session.given += other.given
            parts.remove(other)
        session.first, session.last = min(session.first, time), max(session.last, time)
        return [session]

    def next_time(self, parts: list[RecordGroup]) -> int | None:
        """Return when the first session has passed."""
        return self._passed(parts[0]) if parts else None

    def close(self, key: bytes, parts: list[RecordGroup], watermark: Watermark) -> None:
        """Forward the sessions that have passed."""
        while parts and self._passed(parts[0]) <= watermark.time:
            self.fire(key, parts, parts[0], watermark.mark)
            del parts[0]

    def bounds(self, part: RecordGroup) -> tuple[int, int]:
        """Return a session's window."""
        return part.first, part.last + self.operator.windows.gap

    def _passed(self, part: RecordGroup) -> int:
        # The gap is inclusive, so it has passed when event time is beyond it.
        return part.last + self.operator.windows.gap + self.operator.grace + 1


#: Operator to processor: a new kind of window is a line here.
WINDOWS: dict[type[Operator], type[Processor[Any]]] = {
    CountWindow: CountProcessor,
    SessionWindow: SessionProcessor,
    SlidingWindow: SlidingProcessor,
    TimeWindow: TimeWindowProcessor,
    WithWindow: WithWindowProcessor,
}


class MergedParts:
    """Merges runs of the parts of a key; what runs have in common is merged once.

    Parameters
    ----------
    algebra
        Merges accumulators.
    parts
        All parts of the key, in order; some at the front may go, and others come behind.
    """

    def __init__(self, algebra: Algebra, parts: Sequence[RecordGroup]) -> None:
        self._algebra = algebra
        self._parts = parts
        #: Number of the first part: those that went were counted, too.
        self._first = 0
        #: Accumulators of ``2 ** level`` parts that begin at a multiple of that.
        self._merged: dict[tuple[int, int], Any] = {}

    def forget(self, count: int) -> None:
        """Forget parts at the front."""
        self._first += count
        if len(self._merged) > 2 * len(self._parts):
            first = self._first
            self._merged = {
                (level, place): accumulator
                for (level, place), accumulator in self._merged.items()
                if place << level >= first
            }

    def run(self, start: int, stop: int, settled: int) -> Any:
        """Return an accumulator of its own of the parts from ``start`` to before ``stop``.

        Those before ``settled`` never change any more.
        """
        at, end, fixed = (self._first + place for place in (start, stop, settled))
        found: list[Any] = []
        while at < end:
            level = 0
            while at % (2 << level) == 0 and at + (2 << level) <= min(end, fixed):
                level += 1
            found.append(self._of(level, at >> level))
            at += 1 << level
        merged = copy.deepcopy(found[0])
        for one in found[1:]:
            merged = self._algebra.merge(merged, copy.deepcopy(one))
        return merged

    def _of(self, level: int, place: int) -> Any:
        if not level:
            return self._parts[place - self._first].accumulator
        known = (level, place)
        if known not in self._merged:
            left, right = self._of(level - 1, 2 * place), self._of(level - 1, 2 * place + 1)
            # Merging may change what it is given, and the halves are needed again.
            self._merged[known] = self._algebra.merge(copy.deepcopy(left), copy.deepcopy(right))
        return self._merged[known]
