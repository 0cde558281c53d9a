"""Rows: records as they travel between a task and its topics, as Arrow columns of bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connect.columns import SINK_SCHEMA
from headrace.connect.records import Queue

__all__ = ["Message", "RowRef", "queue_runs"]


@dataclass(frozen=True, slots=True)
class Message:
    """One row of a sink, as it was read."""

    queue: Queue
    offset: int
    key: bytes | None
    value: bytes | None
    properties: Mapping[str, str]
    timestamp_ms: int | None


class RowRef(NamedTuple):
    """One row of a sink: made into a message only where something failed."""

    rows: pa.RecordBatch
    row: int

    def message(self) -> Message:
        """Give the row as a message."""
        found = {name: self.rows.column(name)[self.row].as_py() for name in SINK_SCHEMA.names}
        return Message(
            Queue(found["topic"], found["broker"], found["queue"]),
            found["offset"],
            found["key"],
            found["value"],
            dict(found["properties"] or ()),
            found["timestamp"],
        )


def queue_runs(rows: pa.RecordBatch) -> Iterator[tuple[Queue, pa.RecordBatch]]:
    """Cut rows where the queue changes.

    >>> row = {"topic": "t", "broker": "b", "queue": 0, "offset": 7}
    >>> rows = pa.RecordBatch.from_pylist([row, row, {**row, "queue": 1}], schema=SINK_SCHEMA)
    >>> [(queue.queue_id, run.num_rows) for queue, run in queue_runs(rows)]
    [(0, 2), (1, 1)]
    """
    size = rows.num_rows
    if not size:
        return
    starts = [0, *_changes(rows), size]
    columns = [rows.column(name) for name in ("topic", "broker", "queue")]
    for start, end in pairwise(starts):
        queue = Queue(*(column[start].as_py() for column in columns))
        yield queue, rows.slice(start, end - start)


def _changes(rows: pa.RecordBatch) -> list[int]:
    differs = None
    for name in ("topic", "broker", "queue"):
        column = rows.column(name)
        here = pc.not_equal(column.slice(1), column.slice(0, len(column) - 1))
        differs = here if differs is None else pc.or_(differs, here)
    changed: list[int] = pc.indices_nonzero(differs).to_pylist()
    return [one + 1 for one in changed]
