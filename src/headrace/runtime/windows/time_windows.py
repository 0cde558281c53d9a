"""Tumbling and hopping windows: what is open lies in memory for a batch, then in the store.

A window holds the same records whether it fires in the midst of a batch or later, so a batch
first folds everything in, then fires what its watermarks have passed; only the mark of a result
depends on which watermark that was.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.keys import decode_keys, encode_keys
from headrace.runtime.aggregates.algebra import ABSENT
from headrace.runtime.aggregates.running import Folder
from headrace.runtime.chunk import NEVER, Bools, Chunk, Int64s, skip_keyless
from headrace.runtime.processors import Edge, Processor, ProcessorContext
from headrace.runtime.state.layouts import TimeWindowLayout
from headrace.runtime.user_code import writing
from headrace.runtime.windows.combining import (
    Assigned,
    ColumnWindowEdge,
    WindowEdge,
    assign,
    count_late,
    event_times,
    give_late,
    split_pane_keys,
)
from headrace.topology.operators.windows import TimeWindow
from headrace.topology.windowed import window_headers

if TYPE_CHECKING:
    from headrace.runtime.control import Rows
    from headrace.runtime.event_time.watermarks import Watermark


# Updates that take back what was given before.


def with_olds(chunk: Chunk, olds: list[Any]) -> Chunk:
    """Put before each new result the old one, marked as taken back; ABSENT where there is none.

    Examples
    --------
    >>> from headrace.runtime.chunk import Chunk
    >>> news = Chunk(["a", "b"], [2, 5], np.array([7, 8]), np.array([1, 2]))
    >>> both = with_olds(news, [1, ABSENT])
    >>> both.values, both.retracts.tolist()
    ([1, 2, 5], [True, False, False])
    """
    had = np.fromiter((old is not ABSENT for old in olds), np.bool_, len(olds))
    counts = had.astype(np.intp) + 1
    values = [
        value
        for old, new in zip(olds, chunk.values, strict=True)
        for value in ((new,) if old is ABSENT else (old, new))
    ]
    retracts = np.zeros(len(values), np.bool_)
    retracts[(np.cumsum(counts) - counts)[had]] = True
    return replace(chunk.repeat(counts, values), retracts=retracts)


# Windows of keys as numbers, and as the state's keys.

#: First byte of the state's keys; then end and start of the window, so that what is due comes
#: first, then the key.
FAMILY = b"w"
_BOUNDS = struct.Struct(">QQ")
_PREFIX = len(FAMILY) + _BOUNDS.size
_BIAS = 1 << 63
_WINDOW_BITS = 32
_WINDOW_MASK = (1 << _WINDOW_BITS) - 1


def bounds_prefix(end: int, start: int) -> bytes:
    """Return what the state's keys of a window begin with.

    Examples
    --------
    >>> bounds_prefix(20, 10) < bounds_prefix(30, 0)
    True
    """
    return FAMILY + _BOUNDS.pack(end + _BIAS, start + _BIAS)


class Places:
    """Numbers keys and windows, so that a window of a key, its *place*, is one integer.

    Examples
    --------
    >>> places = Places()
    >>> [place] = places.of([b"sa"], places.windows([10], [20])).tolist()
    >>> places.key(place), places.bounds(place)
    (b'sa', (10, 20))
    >>> places.read([places.entry(place)]) == [place]
    True
    """

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._key_numbers: dict[bytes, int] = {}
        self._windows: dict[tuple[int, int], int] = {}
        self._bounds: list[tuple[int, int]] = []
        #: What the state's keys of each window begin with.
        self._prefixes: list[bytes] = []

    def window(self, start: int, end: int) -> int:
        """Return the number of a window."""
        number = self._windows.setdefault((start, end), len(self._bounds))
        if number == len(self._bounds):
            self._bounds.append((start, end))
            self._prefixes.append(bounds_prefix(end, start))
        return number

    def windows(self, starts: Sequence[int], ends: Sequence[int]) -> Int64s:
        """Return the numbers of a few windows."""
        return np.array(list(map(self.window, starts, ends)), np.int64)

    def assigned(self, assigned: Assigned) -> Int64s:
        """Return the numbers of many windows."""
        # A window's start tells its end.
        starts, firsts, which = np.unique(assigned.starts, return_index=True, return_inverse=True)
        return self.windows(starts.tolist(), assigned.ends[firsts].tolist())[which]

    def keys(self, keys: Sequence[bytes]) -> Int64s:
        """Return the numbers of many keys."""
        known = self._key_numbers
        numbers = list(map(known.get, keys))
        if None in numbers:
            fresh = [key for key in dict.fromkeys(keys) if key not in known]
            known.update(zip(fresh, range(len(known), len(known) + len(fresh)), strict=True))
            self._keys += fresh
            numbers = list(map(known.__getitem__, keys))
        return np.array(numbers, np.int64)

    def of(self, keys: Sequence[bytes], windows: Int64s) -> Int64s:
        """Return the places of keys, each in the window beside it."""
        return self.join(self.keys(keys), windows)

    @staticmethod
    def join(keys: Int64s, windows: Int64s) -> Int64s:
        """Return the places of numbered keys, each in the window beside it."""
        return keys << _WINDOW_BITS | windows

    def key(self, place: int) -> bytes:
        """Return the key of a place."""
        return self._keys[place >> _WINDOW_BITS]

    def bounds(self, place: int) -> tuple[int, int]:
        """Return start and end of a place's window, or of a numbered one."""
        return self._bounds[place & _WINDOW_MASK]

    def ends(self, places: Int64s) -> Int64s:
        """Return the ends of many places' windows."""
        ends = np.array([end for _, end in self._bounds], np.int64)
        found: Int64s = ends[places & _WINDOW_MASK]
        return found

    def ending_before(self, time: int, places: Int64s) -> Bools:
        """Return which places' windows end before a time."""
        return self.ends(places) < time

    @staticmethod
    def windows_of(places: Sequence[int]) -> Int64s:
        """Return the numbers of places' windows."""
        return np.array(places, np.int64) & _WINDOW_MASK

    def entry(self, place: int) -> bytes:
        """Return the state's key of a place."""
        return self._prefixes[place & _WINDOW_MASK] + self._keys[place >> _WINDOW_BITS]

    def entries(self, places: Sequence[int]) -> list[bytes]:
        """Return the state's keys of many places."""
        prefixes, keys = self._prefixes, self._keys
        return [prefixes[place & _WINDOW_MASK] + keys[place >> _WINDOW_BITS] for place in places]

    def read(self, entries: Sequence[bytes]) -> list[int]:
        """Return the places of many of the state's keys."""
        heads = [entry[1:_PREFIX] for entry in entries]
        numbers = {
            head: self.window(start - _BIAS, end - _BIAS)
            for head in dict.fromkeys(heads)
            for end, start in [_BOUNDS.unpack(head)]
        }
        windows = np.array([numbers[head] for head in heads], np.int64)
        found: list[int] = self.of([entry[_PREFIX:] for entry in entries], windows).tolist()
        return found


#: Before the accumulator: the highest event time in the window.
_TIME = struct.Struct(">q")
#: No window starts before.
_EARLIEST = -(1 << 63)
#: So many places of a window are looked up without a thought whether the store holds the window.
_FEW = 32


class TimeWindowProcessor(Processor[TimeWindow]):
    """Keeps the accumulators of one partition by key and window."""

    layout = TimeWindowLayout()

    def __init__(self, operator: TimeWindow, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._folder = Folder(operator, operator.aggregation, context.locator)
        self._algebra = self._folder.algebra
        #: Whether accumulators of this batch hold those of earlier ones from the start.
        self._reads_first = operator.emit == "update" or not self._algebra.merges
        self._parts: list[Rows] = []
        self._places = Places()
        #: By place, with the highest event time in each.
        self._accumulators: dict[int, Any] = {}
        self._times: dict[int, int] = {}
        #: Those that the store's entry is part of.
        self._read: set[int] = set()
        #: Whether the store held a window, by its number, when the batch began.
        self._stored: dict[int, bool] = {}
        self._headers: dict[tuple[int, int], dict[str, str]] = {}
        #: Windows that end before this have fired.
        self._fired = context.settled(operator) - operator.grace + 1
        self._retracts = context.retracts(operator)
        #: The last result that was given of windows, where it is taken back with the next.
        self._given: dict[int, Any] = {}

    @classmethod
    def edge(cls, operator: TimeWindow, port: int, context: ProcessorContext) -> Edge:
        """Combine on the way where the kind of aggregate can."""
        if Folder(operator, operator.aggregation, context.locator).algebra.merges:
            of_columns = operator.aggregation.kind == "columns"
            return (ColumnWindowEdge if of_columns else WindowEdge)(operator, port, context)
        return super().edge(operator, port, context)

    def absorb(self, rows: Rows) -> None:
        """Take partials of keys and panes."""
        self._parts.append(rows)

    def run(self, inputs: Mapping[int, Chunk], watermarks: Sequence[Watermark]) -> Chunk:
        """Fold records and partials in, then fire what the watermarks have passed."""
        changes = _Changes(wanted=self.operator.emit == "update")
        parts, self._parts = self._parts, []
        for rows in parts:
            self._merge(rows, changes)
        chunk = skip_keyless(
            Chunk.merge(list(inputs.values())), self.context.counters, self.operator.name
        )
        if len(chunk):
            self._fold(chunk, watermarks, changes)
        results = [self._updates(changes)] if self.operator.emit == "update" else []
        if watermarks:
            results.append(self._fire(watermarks))
        return Chunk.merge(results)

    def finish(self) -> Chunk:
        """Write what is still open."""
        held = self._accumulators
        self._read_olds([place for place in held if place not in self._read])
        places = list(held)
        with writing(self.operator, "its state"):
            encoded = self._algebra.encode(list(held.values())).to_pylist()
        pack, times = _TIME.pack, self._times
        values = [pack(times[place]) + data for place, data in zip(places, encoded, strict=True)]
        if places:
            store, entries = self.context.store(self.operator), self._places.entries(places)
            known = self._may_be_stored(places)
            store.put_many(list(compress(entries, known)), list(compress(values, known)))
            store.add_many(list(compress(entries, ~known)), list(compress(values, ~known)))
        return Chunk.empty()

    def _merge(self, rows: Rows, changes: _Changes) -> None:
        panes, keys = split_pane_keys(rows.keys.to_pylist())
        indices, places = self._expanded(panes, self._places.keys(keys))
        distinct, groups = np.unique(places, return_inverse=True)
        fresh = distinct.tolist()
        if self._reads_first:
            self._read_olds(fresh)
        try:
            merged = self._algebra.merge_groups(rows.values, indices, groups, len(fresh))
            self._join(fresh, merged)
        except Exception as error:
            # Which record it was is lost in the partials; the last one stands for them.
            raise self._folder.failure(error, int(rows.marks.max())) from error
        times = rows.times[indices]
        self._note(distinct, groups, times)
        late_below = None if rows.late_below is None else rows.late_below[indices]
        changes.add(places, times, rows.marks[indices], late_below)

    def _expanded(
        self, panes: Int64s, keys: Int64s
    ) -> tuple[np.ndarray[Any, np.dtype[np.intp]], Int64s]:
        """Return each row once for each window of its pane, and the places of these."""
        starts, which = np.unique(panes, return_inverse=True)
        assigned = assign(self.operator.windows, starts)
        live = assigned.ends + self.operator.grace > self.event_time
        order = np.flatnonzero(live)[np.argsort(assigned.indices[live], kind="stable")]
        windows = self._places.windows(
            assigned.starts[order].tolist(), assigned.ends[order].tolist()
        )
        counts = np.bincount(assigned.indices[order], minlength=len(starts))
        wide = counts[which]
        if not live.all():
            # Only a clock of an operator's own can fall idle and wake in the midst of a batch.
            count_late(self, int(np.count_nonzero(wide == 0)))
        indices = np.repeat(np.arange(len(keys)), wide)
        within = np.arange(len(indices)) - np.repeat(np.cumsum(wide) - wide, wide)
        firsts = (np.cumsum(counts) - counts)[which]
        return indices, Places.join(keys[indices], windows[firsts[indices] + within])

    def _join(self, places: list[int], merged: list[Any]) -> None:
        held, merge = self._accumulators, self._algebra.merge
        if not held:
            held.update(zip(places, merged, strict=True))
            return
        for place, accumulator in zip(places, merged, strict=True):
            before = held.get(place, ABSENT)
            held[place] = accumulator if before is ABSENT else merge(before, accumulator)

    def _fold(self, chunk: Chunk, watermarks: Sequence[Watermark], changes: _Changes) -> None:
        grace = self.operator.grace
        late, chunk = chunk.split(chunk.late(grace))
        give_late(self, late)
        assigned = assign(self.operator.windows, chunk.times)
        event_time = event_times(self.event_time, watermarks, chunk.marks)
        live = assigned.ends + grace > event_time[assigned.indices]
        if not live.all():
            assigned = Assigned(*(column[live] for column in assigned))
            closed = np.ones(len(chunk), np.bool_)
            closed[assigned.indices] = False
            give_late(self, chunk.take(np.flatnonzero(closed)))
        if not len(assigned.indices):
            return
        with writing(self.operator, "a key"):
            keys = self._places.keys(encode_keys(chunk.key_list()))
        places = Places.join(keys[assigned.indices], self._places.assigned(assigned))
        wide = chunk.take(assigned.indices)
        distinct, groups = np.unique(places, return_inverse=True)
        if self._reads_first:
            self._read_olds(distinct.tolist())
        self._folder.fold(self._accumulators, places.tolist(), wide)
        self._note(distinct, groups, wide.times)
        changes.add(places, wide.times, wide.marks, wide.late_below)

    def _note(self, places: Int64s, groups: Int64s, times: Int64s) -> None:
        """Note the highest time of each place."""
        highest = np.full(len(places), NEVER)
        np.maximum.at(highest, groups, times)
        noted = self._times
        if not noted:
            noted.update(zip(places.tolist(), highest.tolist(), strict=True))
            return
        get = noted.get
        for place, time in zip(places.tolist(), highest.tolist(), strict=True):
            if time > get(place, NEVER):
                noted[place] = time

    def _read_olds(self, places: list[int]) -> None:
        """Make what the store holds part of the accumulators."""
        read = self._read
        missing = [place for place in places if place not in read]
        read.update(missing)
        held = list(compress(missing, self._may_be_stored(missing)))
        if held:
            olds = self.context.store(self.operator).get_many(self._places.entries(held))
            self._take_olds([(place, old) for place, old in zip(held, olds, strict=True) if old])

    def _may_be_stored(self, places: list[int]) -> Bools:
        """Return for which places the store may have held the windows when the batch began."""
        numbers, which, counts = np.unique(
            Places.windows_of(places), return_inverse=True, return_counts=True
        )
        stored = self._stored
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            if number not in stored and count >= _FEW:
                start, end = self._places.bounds(number)
                stored[number] = self.context.store(self.operator).began_with(
                    bounds_prefix(end, start), bounds_prefix(end, start + 1)
                )
        found = [stored.get(number, True) for number in numbers.tolist()]
        return np.array(found, np.bool_)[which]

    def _take_olds(self, entries: list[tuple[int, bytes]]) -> None:
        if not entries:
            return
        size, places = _TIME.size, [place for place, _ in entries]
        olds = self._algebra.decode(pa.array([old[size:] for _, old in entries], pa.binary()))
        times = np.array([_TIME.unpack_from(old)[0] for _, old in entries], np.int64)
        self._note(np.array(places, np.int64), np.arange(len(places)), times)
        if self._retracts:
            self._given.update(zip(places, map(self._algebra.snapshot, olds), strict=True))
        held, merge = self._accumulators, self._algebra.merge
        for place, old in zip(places, olds, strict=True):
            new = held.get(place, ABSENT)
            held[place] = old if new is ABSENT else merge(old, new)

    def _fire(self, watermarks: Sequence[Watermark]) -> Chunk:
        """Return the results of windows that have passed, and forget these."""
        first, passed = self._fired, watermarks[-1].time - self.operator.grace + 1
        self._fired = passed
        self._take_stored(first, passed)
        held = np.fromiter(self._accumulators, np.int64, len(self._accumulators))
        due = held[self._places.ending_before(passed, held)].tolist()
        self._read.difference_update(due)
        accumulators = dict(zip(due, map(self._accumulators.pop, due), strict=True))
        times = dict(zip(due, map(self._times.pop, due), strict=True))
        if not due or self.operator.emit == "update":
            return Chunk.empty()
        entries = dict(zip(self._places.entries(due), due, strict=True))
        due = [entries[entry] for entry in sorted(entries)]
        ends = self._places.ends(np.array(due, np.int64))
        risen = np.array([watermark.time for watermark in watermarks], np.int64)
        which = np.searchsorted(risen, ends + self.operator.grace)
        marks = np.array([watermark.mark for watermark in watermarks], np.int64)[which]
        return self._results(
            due,
            list(map(accumulators.__getitem__, due)),
            np.array(list(map(times.__getitem__, due)), np.int64),
            marks,
        )

    def _take_stored(self, first: int, passed: int) -> None:
        """Take windows out of the store that end in a stretch of time."""
        store = self.context.store(self.operator)
        stored = list(
            store.range(bounds_prefix(first, _EARLIEST), bounds_prefix(passed, _EARLIEST))
        )
        places = zip(self._places.read([entry for entry, _ in stored]), stored, strict=True)
        self._take_olds([(place, old) for place, (_, old) in places if place not in self._read])
        store.put_many([entry for entry, _ in stored], [None] * len(stored))

    def _updates(self, changes: _Changes) -> Chunk:
        """Return the latest result of every window that changed."""
        last = changes.last()
        places = [place for place in last if place in self._accumulators]
        if not places:
            return Chunk.empty()
        which = np.array([last[place] for place in places], np.intp)
        times, marks, late_below = changes.columns()
        accumulators = list(map(self._accumulators.__getitem__, places))
        chunk = self._results(places, accumulators, times[which], marks[which])
        chunk.late_below = None if late_below is None else late_below[which]
        if self._retracts:
            olds = [self._given.get(place, ABSENT) for place in places]
            self._given.update(zip(places, chunk.values, strict=True))
            chunk = with_olds(chunk, olds)
        return chunk.take(np.argsort(chunk.marks, kind="stable"))

    def _results(
        self, places: list[int], accumulators: list[Any], times: Int64s, marks: Int64s
    ) -> Chunk:
        lives_on = self.operator.emit == "update"
        try:
            results = (
                list(map(self._algebra.snapshot, accumulators))
                if lives_on
                else self._algebra.results(accumulators)
            )
        except Exception as error:
            raise self._folder.failure(error, int(marks[-1])) from error
        keys = decode_keys(list(map(self._places.key, places)))
        headers: list[dict[str, str] | None] = list(map(self._headers_of, places))
        return Chunk(keys, results, times, marks, headers)

    def _headers_of(self, place: int) -> dict[str, str]:
        bounds = self._places.bounds(place)
        found = self._headers.get(bounds)
        if found is None:
            found = self._headers[bounds] = window_headers(*bounds)
        return found


class _Changes:
    """Which windows changed, and by which record last."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._places: list[Int64s] = []
        self._columns: list[tuple[Int64s, Int64s, Int64s | None]] = []

    def add(self, places: Int64s, times: Int64s, marks: Int64s, late_below: Int64s | None) -> None:
        if self._wanted:
            self._places.append(places)
            self._columns.append((times, marks, late_below))

    def last(self) -> dict[int, int]:
        """Return the number of the last change of each window, in the order of the marks."""
        if not self._places:
            return {}
        # What several parents sent, and what came too late to be combined, comes one by one.
        order = np.argsort(np.concatenate([marks for _, marks, _ in self._columns]), kind="stable")
        places = np.concatenate(self._places)[order]
        return dict(zip(places.tolist(), order.tolist(), strict=True))

    def columns(self) -> tuple[Int64s, Int64s, Int64s | None]:
        times, marks, bounds = zip(*self._columns, strict=True)
        late_below = None
        if any(bound is not None for bound in bounds):
            late_below = np.concatenate(
                [
                    np.full(len(own), NEVER, np.int64) if bound is None else bound
                    for own, bound in zip(times, bounds, strict=True)
                ]
            )
        return np.concatenate(times), np.concatenate(marks), late_below
