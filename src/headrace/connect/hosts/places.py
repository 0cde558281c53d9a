"""Which records of each queue a sink task has had: none is put twice while its queues are open."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connect.records import Queue

__all__ = ["Places"]


class Places:
    """The next offset of each queue.

    A worker of Spark may die after its records were put and before it heard so; the next one
    brings them again.

    Examples
    --------
    >>> places = Places()
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
        old = None
        for queue in _queues_of(rows):
            before = self._next.get(queue)
            if before is None:
                continue
            below = pc.and_(_of(rows, queue), pc.less(rows["offset"], before))
            old = below if old is None else pc.or_(old, below)
        return rows if old is None or not pc.any(old).as_py() else rows.filter(pc.invert(old))

    def delivered(self, rows: pa.RecordBatch) -> None:
        """These rows have been put."""
        for queue in _queues_of(rows):
            last = pc.max(rows["offset"].filter(_of(rows, queue))).as_py()
            self._next[queue] = max(last + 1, self._next.get(queue, 0))


def _queues_of(rows: pa.RecordBatch) -> list[Queue]:
    table = pa.table({name: rows[name] for name in ("topic", "broker", "queue")})
    found = table.group_by(["topic", "broker", "queue"]).aggregate([])
    return [Queue(one["topic"], one["broker"], one["queue"]) for one in found.to_pylist()]


def _of(rows: pa.RecordBatch, queue: Queue) -> pa.Array:
    return pc.and_(
        pc.and_(pc.equal(rows["topic"], queue.topic), pc.equal(rows["broker"], queue.broker)),
        pc.equal(rows["queue"], queue.queue_id),
    )
