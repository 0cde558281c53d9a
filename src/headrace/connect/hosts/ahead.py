"""What a source has polled ahead, what it gave, and what of that is committed."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connect.columns import SOURCE_SCHEMA
from headrace.connect.records import Position, position_key

__all__ = ["Ahead", "Given", "LateRequestError", "Polled"]


@dataclass(frozen=True, slots=True)
class Polled:
    """Records of one ``poll``, as the engine gets them, and the positions between them.

    ``positions[i]`` is where the source stands after the first ``ends[i]`` rows.  A record that
    was dropped on its way has a position but no row; columns with one position have it at the end.
    """

    rows: pa.RecordBatch
    ends: Sequence[int]
    positions: Sequence[tuple[Position, Position | None]]

    @property
    def count(self) -> int:
        """Number of rows."""
        count: int = self.rows.num_rows
        return count

    @property
    def size(self) -> int:
        """Bytes of the rows."""
        size: int = self.rows.nbytes
        return size

    def cut(self, most: int) -> tuple[Polled | None, Polled | None]:
        """Split where at most so many rows stand before; None: nothing on that side."""
        if most >= self.count:
            return self, None
        at = bisect_right(self.ends, most)
        if not at:
            return None, self
        row = self.ends[at - 1]
        return (
            Polled(self.rows.slice(0, row), self.ends[:at], self.positions[:at]),
            Polled(
                self.rows.slice(row), [end - row for end in self.ends[at:]], self.positions[at:]
            ),
        )


@dataclass(slots=True)
class Given:
    """What was given for one batch, kept until it is committed."""

    parts: list[Polled] = field(default_factory=list)

    def rows(self) -> pa.RecordBatch:
        """Give all rows."""
        if len(self.parts) == 1:
            return self.parts[0].rows
        return pa.concat_batches([part.rows for part in self.parts] or [_NOTHING])

    def positions(self) -> list[tuple[Position, Position | None]]:
        """Give the last position of each partition."""
        last: dict[int, tuple[Position, Position | None]] = {}
        for part in self.parts:
            for partition, offset in part.positions:
                # Most records of a poll share the object that names their partition.
                last.pop(id(partition), None)
                last[id(partition)] = partition, offset
        return list({position_key(one[0]): one for one in last.values()}.values())


_NOTHING: pa.RecordBatch = pa.RecordBatch.from_pylist([], schema=SOURCE_SCHEMA)


class LateRequestError(Exception):
    """Somebody asks for a batch that others have committed since."""


class Ahead:
    """Stands between the thread that polls a task and those that serve the engine.

    The task may be ahead by so many records and bytes; then it waits.  What was given for a batch
    is given again when the batch is asked for again, until it is committed or taken back.

    Parameters
    ----------
    most_records, most_bytes
        Bounds of what nobody has asked for yet; the last poll may pass them.

    Examples
    --------
    >>> ahead = Ahead(most_records=10, most_bytes=1000)
    >>> rows = pa.RecordBatch.from_pylist([{"topic": "t"}] * 3, schema=SOURCE_SCHEMA)
    >>> places = [({}, {"n": 1}), ({}, {"n": 2}), ({}, {"n": 3})]
    >>> ahead.add(Polled(rows, [1, 2, 3], places), ahead.beginning)
    >>> given = ahead.give(batch=1, most_records=2, most_bytes=1000)
    >>> given.rows().num_rows, given.positions(), ahead.records
    (2, [({}, {'n': 2})], 1)
    >>> ahead.commit(1)
    [({}, {'n': 2})]
    """

    def __init__(self, most_records: int, most_bytes: int) -> None:
        self._most = most_records, most_bytes
        self._waiting: deque[Polled] = deque()
        self._given: dict[int, Given] = {}
        #: The last batch that is known to be committed.
        self._committed = 0
        self._changed = threading.Condition()
        self._closed = False
        #: Rises when the task begins anew: what it polled before is not taken any more.
        self.beginning = 0
        #: Records and bytes that wait.
        self.records = self.bytes = 0

    def add(self, polled: Polled, beginning: int) -> None:
        """Put what was polled behind the rest, unless the task has begun anew since."""
        with self._changed:
            if beginning == self.beginning:
                self._put(polled, at_end=True)
                self._changed.notify_all()

    def begin_anew(self) -> None:
        """Forget all that was polled."""
        with self._changed:
            self.beginning += 1
            self._waiting.clear()
            self._given.clear()
            self.records = self.bytes = 0
            self._changed.notify_all()

    def _put(self, polled: Polled, *, at_end: bool) -> None:
        (self._waiting.append if at_end else self._waiting.appendleft)(polled)
        self.records += polled.count
        self.bytes += polled.size

    def has_room(self) -> bool:
        """Whether the task may be polled; it need not be under the lock."""
        return self.records < self._most[0] and self.bytes < self._most[1]

    def await_change(self, patience: float, still: Callable[[], bool]) -> None:
        """Wait while there is a reason to, for so many seconds at most."""
        with self._changed:
            self._changed.wait_for(lambda: not still(), patience)

    def wake(self) -> None:
        """Let all who wait look up."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Let nobody wait any more: nothing will come."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def await_any(self, patience: float) -> bool:
        """Wait until there is something to give; tell whether there is."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed, patience)
            return bool(self._waiting)

    def await_topics(self, patience: float) -> list[str] | None:
        """Wait until something is not committed; give the topics of that, or None."""
        with self._changed:
            self._changed.wait_for(self._has_any, patience)
            parts = [*self._waiting, *(one for g in self._given.values() for one in g.parts)]
            topics = {
                topic for part in parts for topic in pc.unique(part.rows["topic"]).to_pylist()
            }
            return sorted(topics) if parts else None

    def _has_any(self) -> bool:
        # A batch that was given empty is nothing to wake up for.
        given = any(one.parts for one in self._given.values())
        return bool(self._waiting) or given or self._closed

    def give(self, batch: int, most_records: int, most_bytes: int) -> Given:
        """Give records for a batch: the same ones when it is asked for again.

        At least one poll's worth that cannot be cut comes, also where it is too large.

        Raises
        ------
        LateRequestError
            The batch is committed: what it had is not there any more, and nothing new is its own.
        """
        with self._changed:
            if batch <= self._committed:
                raise LateRequestError(f"batch {batch} is committed already")
            if batch not in self._given:
                self._given[batch] = self._take(most_records, most_bytes)
                self._changed.notify_all()
            return self._given[batch]

    def _take(self, records: int, size: int) -> Given:
        given = Given()
        while self._waiting and records > 0 and size > 0:
            polled = self._pop()
            fitting, rest = polled.cut(min(records, _rows_in(polled, size)))
            if fitting is None and not given.parts:
                fitting, rest = polled, None
            if rest is not None:
                self._put(rest, at_end=False)
            if fitting is None:
                break
            given.parts.append(fitting)
            records -= fitting.count
            size -= fitting.size
            if rest is not None:
                break
        return given

    def _pop(self) -> Polled:
        polled = self._waiting.popleft()
        self.records -= polled.count
        self.bytes -= polled.size
        return polled

    def commit(self, batch: int) -> list[tuple[Position, Position | None]]:
        """Forget what was given up to a batch; give the positions that are committed with it."""
        with self._changed:
            done = Given()
            self._committed = max(self._committed, batch)
            for number in sorted(one for one in self._given if one <= batch):
                done.parts += self._given.pop(number).parts
            return done.positions()

    def rewind(self) -> None:
        """Take back all that was given and is not committed: it is given again."""
        with self._changed:
            for number in sorted(self._given, reverse=True):
                for part in reversed(self._given.pop(number).parts):
                    self._put(part, at_end=False)
            self._changed.notify_all()


def _rows_in(polled: Polled, size: int) -> int:
    if polled.size <= size:
        return polled.count
    return max(1, size * polled.count // polled.size)
