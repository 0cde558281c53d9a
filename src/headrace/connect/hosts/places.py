"""Which records of each queue a sink task has had: none is put twice while its queues are open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connect.handling.conversion import queue_runs

if TYPE_CHECKING:
    from headrace.connect.records import Queue


class NextOffsets:
    """The next offset of each queue.

    A worker of Spark may die after its records were put and before it heard so; the next one
    brings them again.

    Examples
    --------
    >>> places = NextOffsets()
    >>> places.begin({}, None)
    >>> rows = pa.RecordBatch.from_pylist(
    ...     [{"topic": "t", "broker": "b", "queue": 0, "offset": at} for at in range(3)]
    ... )
    >>> places.delivered(places.only_new(rows))
    >>> places.only_new(rows).num_rows
    0
    """

    def __init__(self) -> None:
        self._next: dict[Queue, int] = {}

    def begin(self, given: Mapping[Queue, int], kept: Mapping[Queue, int] | None) -> None:
        """Queues were opened: what the sink keeps itself counts before what the engine says."""
        self._next = {**given, **(kept or {})}

    def seek(self, offsets: Mapping[Queue, int]) -> None:
        """The task wants to go on elsewhere."""
        self._next.update(offsets)

    def reached(self, ends: Mapping[Queue, int]) -> None:
        """Everything before these offsets has been put, or was never there."""
        for queue, end in ends.items():
            self._next[queue] = max(end, self._next.get(queue, 0))

    def only_new(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Leave out what was put before."""
        parts = []
        for queue, run in queue_runs(rows):
            new = pc.greater_equal(run["offset"], self._next.get(queue, 0))
            parts.append(run if pc.all(new).as_py() else run.filter(new))
        kept = sum(part.num_rows for part in parts)
        return rows if kept == rows.num_rows else pa.concat_batches(parts)

    def delivered(self, rows: pa.RecordBatch) -> None:
        """These rows have been put."""
        for queue, run in queue_runs(rows):
            self.reached({queue: pc.max(run["offset"]).as_py() + 1})
