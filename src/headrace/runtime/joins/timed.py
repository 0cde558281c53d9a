"""What all joins by time share: records and time in one order, late records, lonely ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np

from headrace.runtime.chunk import Chunk
from headrace.runtime.joins.sides import LEFT, RIGHT, Meetings, merged_sides
from headrace.runtime.keyless import count_keyless
from headrace.runtime.processors import Processor
from headrace.runtime.state.layouts import BucketLayout, StateLayout
from headrace.topology.operators.joins import TimedJoin

if TYPE_CHECKING:
    from headrace.runtime.event_time.watermarks import Watermark
    from headrace.runtime.joins.sides import Arrivals
    from headrace.runtime.processors import ProcessorContext
    from headrace.runtime.state.layouts import StateLayout

__all__ = ["TimedJoinProcessor"]

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
