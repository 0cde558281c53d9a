"""Feed a sink task by hand, one batch after the other, and look at what it says."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from headrace.connect import (
    Queue,
    Schema,
    SinkConnector,
    SinkRecord,
    SinkTask,
    SinkTaskContext,
)

QUEUE = Queue("orders", "broker-a", 0)


class HandContext(SinkTaskContext):
    """A context that keeps what the task reports."""

    def __init__(self, queues: Iterable[Queue], *, generation: int, tolerant: bool) -> None:
        self.connector = "sink"
        self.task = 0
        self.generation = generation
        self.logger = logging.getLogger("sink")
        self.stopping = threading.Event()
        self.errant: list[tuple[SinkRecord, BaseException]] = []
        self._queues = frozenset(queues)
        self._tolerant = tolerant

    @property
    def queues(self) -> frozenset[Queue]:
        return self._queues

    def offset(self, queue: Queue, next_offset: int) -> None:
        raise NotImplementedError

    def pause(self, *queues: Queue) -> None:
        raise NotImplementedError

    def resume(self, *queues: Queue) -> None:
        raise NotImplementedError

    def request_commit(self) -> None:
        raise NotImplementedError

    def request_task_reconfiguration(self) -> None:
        raise NotImplementedError

    def fail(self, reason: str) -> None:
        raise AssertionError(reason)

    def report(self, record: SinkRecord, error: BaseException) -> None:
        if not self._tolerant:
            raise error
        self.errant.append((record, error))


@dataclass
class Life:
    """One life of a sink task, from start to stop."""

    connector: type[SinkConnector]
    config: Mapping[str, str]
    queues: Sequence[Queue] = (QUEUE,)
    generation: int = 1
    tolerant: bool = False
    task: SinkTask = field(init=False)
    context: HandContext = field(init=False)

    def __enter__(self) -> Self:
        self.context = HandContext(self.queues, generation=self.generation, tolerant=self.tolerant)
        config = self.connector.config.parse(self.config)
        assert list(self.connector().validate(config)) == []
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
        self.task.put(records)
        self.task.flush(ends(records))

    @property
    def offset(self) -> int | None:
        """The offset of the first queue that the sink itself keeps."""
        return (self.task.offsets() or {}).get(self.queues[0])

    @property
    def errant_offsets(self) -> list[int]:
        """The offsets of the records that the task reported."""
        return [record.offset for record, _ in self.context.errant]


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
