"""The two inputs of a join, in one order; and what a join gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from headrace.keys import encode_keys
from headrace.runtime.chunk import Chunk, Int64s, count_keyless
from headrace.runtime.processors import Processor
from headrace.runtime.state.layouts import BucketLayout, StateLayout
from headrace.runtime.user_code import writing
from headrace.topology.operators.tables import TimedJoin

if TYPE_CHECKING:
    from headrace.runtime.event_time.watermarks import Watermark
    from headrace.runtime.processors import ProcessorContext
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
    """What a join gives, record by record: (what it holds, left value, right value)."""

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
        """Handle records in order; give the places of those whose window has fired."""
        raise NotImplementedError

    def advance_to(self, watermark: Watermark, meetings: Meetings) -> None:
        """Let event time come to the watermark."""
        raise NotImplementedError

    def give_alone(self, arrivals: Arrivals, i: int, meetings: Meetings) -> None:
        """Give a record without a key, which nothing meets, where somebody wants it alone."""
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
