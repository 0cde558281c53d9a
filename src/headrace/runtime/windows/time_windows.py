"""Tumbling and hopping windows: what is open lies in memory for a batch, then in the store.

A window holds the same records whether it fires in the midst of a batch or later, so a batch
first folds everything in, then fires what its watermarks have passed; only the mark of a result
depends on which watermark that was.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.keys import decode_keys, encode_keys
from headrace.runtime.algebras import ABSENT
from headrace.runtime.chunk import NEVER, Chunk
from headrace.runtime.folding import Folder
from headrace.runtime.keyless import skip_keyless
from headrace.runtime.processors import Processor, ProcessorContext
from headrace.runtime.state_layouts import TimeWindowLayout
from headrace.runtime.windows.assigning import Assigned, assign
from headrace.runtime.windows.changing import with_olds
from headrace.runtime.windows.columns import ColumnWindowEdge
from headrace.runtime.windows.combining import WindowEdge, split_pane_keys
from headrace.runtime.windows.lateness import count_late, event_times, give_late
from headrace.runtime.writing import writing
from headrace.topology.operators_windows import TimeWindow
from headrace.topology.windowed import window_headers

if TYPE_CHECKING:
    from headrace.runtime.blocks import Rows
    from headrace.runtime.chunk import Int64s
    from headrace.runtime.edges import Edge
    from headrace.runtime.watermarks import Watermark

__all__ = ["TimeWindowProcessor"]

#: First byte of the state's keys; then end and start of the window, so that what is due comes
#: first, then the key.
_FAMILY = b"w"
_BOUNDS = struct.Struct(">QQ")
_PREFIX = len(_FAMILY) + _BOUNDS.size
_BIAS = 1 << 63
#: Before the accumulator: the highest event time in the window.
_TIME = struct.Struct(">q")


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
        self._accumulators: dict[bytes, Any] = {}
        self._times: dict[bytes, int] = {}
        #: Those that the store's entry is part of.
        self._read: set[bytes] = set()
        self._headers: dict[bytes, dict[str, str]] = {}
        #: Windows that end before this have fired.
        self._fired = context.settled(operator) - operator.grace + 1
        self._retracts = context.retracts(operator)
        #: The last result that was given of windows, where it is taken back with the next.
        self._given: dict[bytes, Any] = {}

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
        chunk = skip_keyless(Chunk.merge(list(inputs.values())), self.context.counters)
        if len(chunk):
            self._fold(chunk, watermarks, changes)
        results = [self._updates(changes)] if self.operator.emit == "update" else []
        if watermarks:
            results.append(self._fire(watermarks))
        return Chunk.merge(results)

    def finish(self) -> Chunk:
        """Write what is still open."""
        keys = list(self._accumulators)
        self._read_olds([key for key in keys if key not in self._read])
        with writing(self.operator, "its state"):
            encoded = self._algebra.encode([self._accumulators[key] for key in keys]).to_pylist()
        pack = _TIME.pack
        values = [pack(self._times[key]) + data for key, data in zip(keys, encoded, strict=True)]
        store = self.context.store(self.operator)
        if keys:
            store.put_many(keys, values)
        return Chunk.empty()

    def _merge(self, rows: Rows, changes: _Changes) -> None:
        panes, keys = split_pane_keys(rows.keys.to_pylist())
        assigned = assign(self.operator.windows, panes)
        live = assigned.ends + self.operator.grace > self.event_time
        if not live.all():
            # Only a clock of an operator's own can fall idle and wake in the midst of a batch.
            count_late(self, len(keys) - len(np.unique(assigned.indices[live])))
            assigned = Assigned(*(column[live] for column in assigned))
        indices = assigned.indices
        places = self._places(assigned, keys)
        times, marks = rows.times[indices], rows.marks[indices]
        if self._reads_first:
            self._read_olds(list(dict.fromkeys(places)))
        try:
            partials = self._algebra.decode(rows.values.take(pa.array(indices)))
            merged = self._algebra.merge_all(places, partials)
            self._join(merged)
        except Exception as error:
            # Which record it was is lost in the partials; the last one stands for them.
            raise self._folder.failure(error, int(rows.marks[-1])) from error
        self._note(places, times)
        late_below = None if rows.late_below is None else rows.late_below[indices]
        changes.add(places, times, marks, late_below)

    def _join(self, merged: dict[bytes, Any]) -> None:
        if not self._accumulators:
            self._accumulators.update(merged)
            return
        held, merge = self._accumulators, self._algebra.merge
        for place, accumulator in merged.items():
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
            keys = encode_keys(chunk.key_list())
        places = self._places(assigned, keys)
        wide = chunk.take(assigned.indices)
        if self._reads_first:
            self._read_olds(list(dict.fromkeys(places)))
        self._folder.fold(self._accumulators, places, wide)
        self._note(places, wide.times)
        changes.add(places, wide.times, wide.marks, wide.late_below)

    def _places(self, assigned: Assigned, keys: list[bytes]) -> list[bytes]:
        """Give the state's key of each window of each record."""
        bounds = np.empty((len(assigned.ends), 2), ">u8")
        bounds[:, 0] = assigned.ends.astype(np.uint64) + np.uint64(_BIAS)
        bounds[:, 1] = assigned.starts.astype(np.uint64) + np.uint64(_BIAS)
        packed = bounds.tobytes()
        size = _BOUNDS.size
        return [
            _FAMILY + packed[at : at + size] + keys[index]
            for at, index in zip(
                range(0, len(packed), size), assigned.indices.tolist(), strict=True
            )
        ]

    def _note(self, places: list[bytes], times: Int64s) -> None:
        noted = self._times
        get = noted.get
        for place, time in zip(places, times.tolist(), strict=True):
            if time > get(place, NEVER):
                noted[place] = time

    def _read_olds(self, places: list[bytes]) -> None:
        """Make what the store holds part of the accumulators."""
        read = self._read
        missing = [place for place in places if place not in read]
        if not missing:
            return
        olds = self.context.store(self.operator).get_many(missing)
        self._take_olds([(place, old) for place, old in zip(missing, olds, strict=True) if old])
        read.update(missing)

    def _take_olds(self, entries: list[tuple[bytes, bytes]]) -> None:
        size = _TIME.size
        olds = self._algebra.decode(pa.array([old[size:] for _, old in entries], pa.binary()))
        held, merge = self._accumulators, self._algebra.merge
        self._note(
            [place for place, _ in entries],
            np.array([_TIME.unpack_from(old)[0] for _, old in entries], np.int64),
        )
        if self._retracts:
            results = self._algebra.results(olds)
            self._given.update(
                (place, old) for (place, _), old in zip(entries, results, strict=True)
            )
        for (place, _), old in zip(entries, olds, strict=True):
            new = held.get(place, ABSENT)
            held[place] = old if new is ABSENT else merge(old, new)

    def _fire(self, watermarks: Sequence[Watermark]) -> Chunk:
        """Give the results of windows that have passed, and forget these."""
        first, self._fired = self._fired, watermarks[-1].time - self.operator.grace + 1
        limit = _FAMILY + _BOUNDS.pack(self._fired + _BIAS, 0)
        store = self.context.store(self.operator)
        stored = list(store.range(_FAMILY + _BOUNDS.pack(first + _BIAS, 0), limit))
        self._take_olds([entry for entry in stored if entry[0] not in self._read])
        store.put_many([place for place, _ in stored], [None] * len(stored))
        self._read.difference_update([place for place in self._read if place < limit])
        due = sorted(place for place in self._accumulators if place < limit)
        accumulators = [self._accumulators.pop(place) for place in due]
        times = np.array([self._times.pop(place) for place in due], np.int64)
        if not due or self.operator.emit == "update":
            return Chunk.empty()
        ends = np.array([_BOUNDS.unpack_from(place, 1)[0] - _BIAS for place in due], np.int64)
        passed = np.array([watermark.time for watermark in watermarks], np.int64)
        which = np.searchsorted(passed, ends + self.operator.grace)
        marks = np.array([watermark.mark for watermark in watermarks], np.int64)[which]
        return self._results(due, accumulators, times, marks)

    def _updates(self, changes: _Changes) -> Chunk:
        """Give the latest result of every window that changed."""
        places = [place for place in changes.last if place in self._accumulators]
        if not places:
            return Chunk.empty()
        which = np.array([changes.last[place] for place in places], np.intp)
        times, marks, late_below = changes.columns()
        chunk = self._results(
            places,
            [self._accumulators[place] for place in places],
            times[which],
            marks[which],
        )
        chunk.late_below = None if late_below is None else late_below[which]
        if self._retracts:
            olds = [self._given.get(place, ABSENT) for place in places]
            self._given.update(zip(places, chunk.values, strict=True))
            chunk = with_olds(chunk, olds)
        return chunk.take(np.argsort(chunk.marks, kind="stable"))

    def _results(
        self, places: list[bytes], accumulators: list[Any], times: Int64s, marks: Int64s
    ) -> Chunk:
        try:
            results = self._algebra.results(accumulators)
        except Exception as error:
            raise self._folder.failure(error, int(marks[-1])) from error
        keys = decode_keys([place[_PREFIX:] for place in places])
        return Chunk(keys, results, times, marks, list(map(self._headers_of, places)))

    def _headers_of(self, place: bytes) -> dict[str, str]:
        bounds = place[1:_PREFIX]
        found = self._headers.get(bounds)
        if found is None:
            end, start = _BOUNDS.unpack(bounds)
            found = self._headers[bounds] = window_headers(start - _BIAS, end - _BIAS)
        return found


class _Changes:
    """Which windows changed, and by which record last."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self.last: dict[bytes, int] = {}
        self._columns: list[tuple[Int64s, Int64s, Int64s | None]] = []
        self._count = 0

    def add(
        self, places: list[bytes], times: Int64s, marks: Int64s, late_below: Int64s | None
    ) -> None:
        if not self._wanted:
            return
        self.last.update(zip(places, range(self._count, self._count + len(places)), strict=True))
        self._columns.append((times, marks, late_below))
        self._count += len(places)

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
