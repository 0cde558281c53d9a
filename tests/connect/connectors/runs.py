"""Connectors in this process: polled, committed, killed at any point."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa

from headrace.connect import (
    Config,
    Queue,
    SinkBatch,
    SinkConnector,
    SinkRecord,
    SinkTask,
    SourceBatch,
    SourceConnector,
    SourceRecord,
    SourceTask,
)
from headrace.connect.plugins import Connector
from headrace.connect.records import Position, position_key
from headrace.connect.testing.contexts import (
    KitConnectorContext,
    KitOffsets,
    KitSinkContext,
    KitSourceContext,
    Requests,
    checked,
)

QUEUE = Queue("lines", "broker-a", 0)


C = TypeVar("C", bound=Connector)
T = TypeVar("T", KitSourceContext, KitSinkContext)


def read(kind: type[Connector], texts: Mapping[str, str]) -> Config:
    """Check and read a config, with the keys that every connector has."""
    named = {"name": "tested", "connector.class": f"{kind.__module__}.{kind.__qualname__}"}
    topics = {"topics": QUEUE.topic} if issubclass(kind, SinkConnector) else {}
    return checked(kind, {**named, **topics, **texts})


def configured(kind: type[C], texts: Mapping[str, str]) -> C:
    """Make a connector whose config has passed all checks."""
    config = read(kind, texts)
    connector = kind()
    connector.context = KitConnectorContext("tested", config, KitOffsets(), Requests())
    connector.start(config)
    return connector


def _quick(context: T, number: int) -> T:
    """Let nothing wait: a poll that does would only slow the tests down."""
    context.task = number
    context.stopping.wait = lambda timeout=None: False  # type: ignore[method-assign]
    return context


def problems(kind: type[Connector], texts: Mapping[str, str]) -> list[str]:
    """Name what is wrong with a config."""
    found = kind.config.problems(texts)
    if not found:
        found = list(kind().validate(kind.config.parse(texts)))
    return [problem.message for problem in found]


class SourceRun:
    """All tasks of a source, and what is committed."""

    def __init__(
        self, kind: type[SourceConnector], texts: Mapping[str, str], tasks: int = 1
    ) -> None:
        self.kind = kind
        self.texts = texts
        self.committed = KitOffsets()
        self.records: list[SourceRecord] = []
        self.tasks: list[SourceTask] = []
        self.most = tasks
        self.start()

    def start(self) -> None:
        """Start tasks from what is committed."""
        connector = configured(self.kind, self.texts)
        self._given: list[SourceRecord] = []
        self._positions: dict[bytes, tuple[Position, Position | None]] = {}
        self.tasks = []
        for number, own in enumerate(connector.task_configs(self.most)):
            config = read(self.kind, {**self.texts, **own})
            task = self.kind.task()
            context = KitSourceContext("tested", config, self.committed, Requests())
            task.context = _quick(context, number)
            task.start(config)
            self.tasks.append(task)

    def poll(self, rounds: int = 8) -> list[SourceRecord]:
        """Take what the tasks have, as records."""
        found: list[SourceRecord] = []
        for _ in range(rounds):
            for task in self.tasks:
                found += self._taken(task.poll())
        self._given += found
        return found

    def values(self, rounds: int = 8) -> list[Any]:
        """Take what the tasks have, commit it, and give the values."""
        found = [record.value for record in self.poll(rounds)]
        self.commit()
        return found

    def _taken(self, polled: Sequence[SourceRecord] | SourceBatch | None) -> list[SourceRecord]:
        records = list(polled.records() if isinstance(polled, SourceBatch) else polled or ())
        if isinstance(polled, SourceBatch):
            position = (polled.partition, polled.offset)
            self._positions[position_key(polled.partition)] = position
            return records
        for record in records:
            place = (record.partition, record.offset)
            self._positions[position_key(record.partition)] = place
        return records

    def commit(self) -> None:
        """Commit what was polled."""
        self.commit_positions(self._positions)
        self.records += self._given
        self._given.clear()
        self._positions.clear()
        for task in self.tasks:
            task.commit()

    def commit_positions(self, positions: Mapping[bytes, tuple[Position, Position | None]]) -> None:
        """Commit positions, of which the tasks hear later."""
        for partition, offset in positions.values():
            self.committed.put(partition, offset)

    def kill(self) -> None:
        """End the tasks as a crash does, and start them again from what is committed."""
        for task in self.tasks:
            # The process would be gone, and its files, sockets and threads with it.
            task.stop()
        self.start()

    def stop(self) -> None:
        """Stop the tasks."""
        for task in self.tasks:
            task.context.stopping.set()
            task.stop()
        self.tasks = []


class SinkRun:
    """One task of a sink that reads some queues."""

    def __init__(
        self,
        kind: type[SinkConnector],
        texts: Mapping[str, str],
        queues: Iterable[Queue] = (QUEUE,),
        *,
        tolerant: bool = False,
        number: int = 0,
    ) -> None:
        self.kind = kind
        self.texts = {"errors.tolerance": "all" if tolerant else "none", **texts}
        self.queues = list(queues)
        self.number = number
        self.committed: dict[Queue, int] = {}
        self.start()

    def start(self) -> None:
        """Start the task, and go on where it says or where the runtime knows."""
        config = configured(self.kind, self.texts).context.config
        self.task: SinkTask = self.kind.task()
        positions = {queue: self.committed.get(queue, 0) for queue in self.queues}
        context = KitSinkContext("tested", config, positions, Requests())
        self.task.context = self.context = _quick(context, self.number)
        self.task.start(config)
        self.task.open(self.queues)
        self.next = dict(self.committed)
        if (kept := self.task.offsets()) is not None:
            self.next = {**self.next, **kept}
        self._put = dict(self.next)

    @property
    def reported(self) -> list[tuple[SinkRecord, BaseException]]:
        """Records that this life of the task reported, each with the reason."""
        return self.context.reported

    def put(self, values: Sequence[Any], queue: Queue = QUEUE, **fields: Any) -> None:
        """Give one record per value, at the next offsets."""
        first = self._put.get(queue, 0)
        self.task.put(
            [
                SinkRecord(
                    topic=queue.topic, queue=queue, offset=first + place, value=value, **fields
                )
                for place, value in enumerate(values)
            ]
        )
        self._put[queue] = first + len(values)

    def put_records(self, records: Sequence[SinkRecord]) -> None:
        """Give records as they are."""
        self.task.put(records)
        for record in records:
            self._put[record.queue] = record.offset + 1

    def put_columns(self, value: pa.Array, queue: Queue = QUEUE) -> None:
        """Give a column of values."""
        first = self._put.get(queue, 0)
        offset = pa.array(range(first, first + len(value)), pa.int64())
        self.task.put_batch(SinkBatch(queue=queue, offset=offset, value=value))
        self._put[queue] = first + len(value)

    def flush(self) -> None:
        """End the batch; the runtime has not committed it yet."""
        self.task.flush(dict(self._put))

    def commit(self) -> None:
        """End the batch and commit it."""
        self.flush()
        self.committed = dict(self._put)

    def kill(self) -> None:
        """End the task as a crash does, and start another."""
        self.task.stop()
        self.start()

    def stop(self) -> None:
        """Stop the task."""
        self.task.stop()


@contextmanager
def source(
    kind: type[SourceConnector], texts: Mapping[str, str], tasks: int = 1
) -> Iterator[SourceRun]:
    """Run a source."""
    run = SourceRun(kind, texts, tasks)
    try:
        yield run
    finally:
        run.stop()


@contextmanager
def sink(kind: type[SinkConnector], texts: Mapping[str, str], **more: Any) -> Iterator[SinkRun]:
    """Run a sink."""
    run = SinkRun(kind, texts, **more)
    try:
        yield run
    finally:
        run.stop()
