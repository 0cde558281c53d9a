"""Feed a sink task by hand, one batch after the other, and look at what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Self

import pyarrow as pa

from headrace.connect import (
    Queue,
    Schema,
    SinkBatch,
    SinkConnector,
    SinkRecord,
    SinkTask,
)
from headrace.connect.testing.contexts import KitSinkContext, Requests
from tests.connect.connectors.runs import read

QUEUE = Queue("orders", "broker-a", 0)


@dataclass
class Life:
    """One life of a sink task, from start to stop."""

    connector: type[SinkConnector]
    config: Mapping[str, str]
    queues: Sequence[Queue] = (QUEUE,)
    generation: int = 1
    tolerant: bool = False
    #: Whether records are put as columns.
    columns: bool = False
    task: SinkTask = field(init=False)
    context: KitSinkContext = field(init=False)

    def __enter__(self) -> Self:
        tolerance = {"errors.tolerance": "all" if self.tolerant else "none"}
        config = read(self.connector, tolerance | dict(self.config))
        positions = dict.fromkeys(self.queues, 0)
        self.context = KitSinkContext("sink", config, positions, Requests())
        self.context.generation = self.generation
        self.task = self.connector.task()
        self.task.context = self.context
        try:
            self.task.start(config)
            self.task.open(self.queues)
        except BaseException:
            self.task.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.task.stop()

    def write(self, records: Sequence[SinkRecord]) -> None:
        """Hand over one batch, and commit it."""
        if self.columns:
            for queue, some in groupby(records, lambda one: one.queue):
                self.task.put_batch(columns_of(queue, list(some)))
        else:
            self.task.put(records)
        self.task.flush(ends(records))

    @property
    def offset(self) -> int | None:
        """The offset of the first queue that the sink itself keeps."""
        return (self.task.offsets() or {}).get(self.queues[0])

    @property
    def errant_offsets(self) -> list[int]:
        """The offsets of the records that the task reported."""
        return [record.offset for record, _ in self.context.reported]


def columns_of(queue: Queue, records: Sequence[SinkRecord]) -> SinkBatch:
    """The records of a queue as columns of bytes."""
    return SinkBatch(
        queue=queue,
        offset=pa.array([one.offset for one in records]),
        value=pa.array([one.value for one in records], pa.binary()),
        key=pa.array([one.key for one in records], pa.binary()),
        timestamp_ms=pa.array([one.timestamp_ms for one in records], pa.int64()),
    )


def ends(records: Sequence[SinkRecord]) -> dict[Queue, int]:
    """The offsets after the last record of each queue."""
    return {record.queue: record.offset + 1 for record in records}


def record(
    offset: int,
    value: Any,
    key: Any = None,
    *,
    value_schema: Schema | None = None,
    key_schema: Schema | None = None,
    queue: Queue = QUEUE,
    topic: str | None = None,
) -> SinkRecord:
    """A record of the queue that most tests use."""
    return SinkRecord(
        topic=topic or queue.topic,
        queue=queue,
        offset=offset,
        value=value,
        key=key,
        value_schema=value_schema,
        key_schema=key_schema,
    )
