"""Sink tasks in a test: send, put, flush, fall over, go on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.connect.config.providers import resolve
from headrace.connect.handling.source_chain import SourceChain, source_chain
from headrace.connect.plugins import SinkConnector, SinkTask, SourceConnector, SourceTask
from headrace.connect.records import (
    Position,
    Queue,
    SinkBatch,
    SinkRecord,
    SourceBatch,
    SourceRecord,
    position_key,
)
from headrace.connect.schema import check
from headrace.connect.testing.contexts import KitOffsets, KitSinkContext, KitSourceContext, TaskKit
from headrace.errors import SchemaError

if TYPE_CHECKING:
    from headrace.connect.config import Config


# Source tasks in a test: poll, commit, fall over, go on.


class SourceTaskKit(TaskKit[SourceTask]):
    """Runs one task of a source connector in this process.

    The config is checked as the runtime checks it, every record against its schema, and positions
    must be what JSON can hold.

    Parameters
    ----------
    connector
        The connector's class.
    texts
        Its config; ``name`` and ``connector.class`` are filled in.
    number
        Which of its tasks runs.
    offsets
        Where it stood before; a :class:`KitOffsets` is shared with whoever else has it.

    Examples
    --------
    >>> from headrace.connect import SourceConnector, SourceRecord, SourceTask, declare, key
    >>> class CountTask(SourceTask):
    ...     def start(self, config):
    ...         self.count = (self.context.offsets.get({}) or {"count": 0})["count"]
    ...
    ...     def poll(self):
    ...         self.count += 1
    ...         offset = {"count": self.count}
    ...         return [SourceRecord(partition={}, offset=offset, topic="n", value=self.count)]
    >>> class CountConnector(SourceConnector):
    ...     task = CountTask
    ...
    ...     def task_configs(self, max_tasks):
    ...         return [{}]
    >>> with SourceTaskKit(CountConnector, {}) as kit:
    ...     first = [record.value for record in kit.read(2)]
    ...     kit.commit()
    ...     lost = [record.value for record in kit.read(3)]
    ...     kit.crash()
    ...     again = [record.value for record in kit.read(2)]
    >>> first, lost, again
    ([1, 2], [3, 4, 5], [3, 4])
    """

    def __init__(
        self,
        connector: type[SourceConnector],
        texts: Mapping[str, Any],
        *,
        number: int = 0,
        offsets: Sequence[tuple[Position, Position]] | KitOffsets = (),
    ) -> None:
        committed = offsets if isinstance(offsets, KitOffsets) else KitOffsets(list(offsets))
        super().__init__(connector, texts, number=number, offsets=committed)
        self._given: list[tuple[Position, Position | None]] = []

    @property
    def positions(self) -> list[tuple[Position, Position]]:
        """The committed partitions, each with its offset."""
        return self.committed.all()

    def poll(self) -> list[SourceRecord]:
        """Call ``poll()`` once, and return what came as records.

        Raises
        ------
        SchemaError
            When a record contradicts its schema, or its position is not what JSON can hold.
        TaskFailedError
            When the task has called ``fail()``.
        """
        polled = self.poll_raw()
        if polled is None:
            return []
        return list(polled.records()) if isinstance(polled, SourceBatch) else list(polled)

    def poll_raw(self) -> Sequence[SourceRecord] | SourceBatch | None:
        """Call ``poll()`` once, and return what came as it came."""
        self.requests.raise_failure()
        polled = self.task.poll()
        self.requests.raise_failure()
        if isinstance(polled, SourceBatch):
            _check_position(polled.partition, polled.offset)
            self._given.append((polled.partition, polled.offset))
        else:
            for record in polled or ():
                _check_record(record)
                self._given.append((record.partition, record.offset))
        return polled

    def read(self, count: int, *, timeout: timedelta = timedelta(seconds=10)) -> list[SourceRecord]:
        """Poll until this many records have come; more may come with the last ``poll()``.

        Raises
        ------
        TimeoutError
            When they do not come in time; the message says how many did.
        """
        found: list[SourceRecord] = []
        deadline = time.monotonic() + timeout.total_seconds()
        while len(found) < count:
            found += self.poll()
            if time.monotonic() > deadline and len(found) < count:
                message = f"Only {len(found)} of {count} records came within {timeout}."
                raise TimeoutError(message)
        return found

    def read_all(self, *, quiet: int = 2) -> list[SourceRecord]:
        """Poll until nothing has come several times in a row."""
        found: list[SourceRecord] = []
        silent = 0
        while silent < quiet:
            polled = self.poll()
            silent = 0 if polled else silent + 1
            found += polled
        return found

    def messages(self) -> list[dict[str, Any]]:
        """Poll once, and return the messages that reach topics, through transforms and converters.

        Each is a dict with ``topic``, ``key`` and ``value`` as bytes, ``properties`` as a dict,
        ``queue`` and ``timestamp``.
        """
        polled = self.poll_raw()
        if polled is None or not len(polled):
            return []
        rows: list[dict[str, Any]] = self._chain.encode(polled).rows.to_pylist()
        return [{**row, "properties": dict(row["properties"] or ())} for row in rows]

    @cached_property
    def _chain(self) -> SourceChain:
        name = self.texts["name"]
        return source_chain(name, self._number, resolve(self.texts), wait=lambda _: False)

    def commit(self) -> None:
        """Commit all that was polled, and call the task's ``commit()``."""
        for partition, offset in self._given:
            self.committed.put(partition, offset)
        self._given.clear()
        self.task.commit()

    def _context(self, config: Config) -> KitSourceContext:
        self._given.clear()
        return KitSourceContext(self.texts["name"], config, self.committed, self.requests)


def _check_record(record: object) -> None:
    if not isinstance(record, SourceRecord):
        message = f"poll() gave the {type(record).__name__} {record!r}, which is no SourceRecord."
        raise SchemaError(message)
    _check_position(record.partition, record.offset)
    if not record.topic:
        message = f"The record at {dict(record.offset)} has no topic."
        raise SchemaError(message)
    if record.value_schema is not None:
        check(record.value, record.value_schema, "value")
    if record.key_schema is not None:
        check(record.key, record.key_schema, "key")
    for header in record.headers:
        if header.schema is not None:
            check(header.value, header.schema, f"header {header.key}")


def _check_position(partition: Position, offset: Position | None) -> None:
    for what, position in (("partition", partition), ("offset", offset or {})):
        try:
            position_key(position)
        except TypeError as error:
            message = f"The {what} {position!r} is nothing that JSON can hold: {error}."
            raise SchemaError(message) from None


_BROKER = "broker-a"


class SinkTaskKit(TaskKit[SinkTask]):
    """Runs one task of a sink connector in this process, fed from queues in memory.

    Parameters
    ----------
    connector
        The connector's class.
    texts
        Its config; ``name``, ``connector.class`` and ``topics`` are filled in.
    queues
        Queues of each topic.
    number
        Which of its tasks runs.

    Examples
    --------
    >>> from headrace.connect import SinkConnector, SinkTask
    >>> class ListTask(SinkTask):
    ...     outside = []
    ...
    ...     def put(self, records):
    ...         self.outside += [record.value for record in records]
    >>> class ListConnector(SinkConnector):
    ...     task = ListTask
    >>> with SinkTaskKit(ListConnector, {"topics": "words"}) as kit:
    ...     kit.send("to", "be")
    ...     print(kit.deliver())
    ...     kit.send("or not")
    ...     print(kit.put())
    ...     kit.crash()  # before the commit: the sink gets it again
    ...     print(kit.deliver())
    2
    1
    1
    >>> ListTask.outside
    ['to', 'be', 'or not', 'or not']
    """

    context: KitSinkContext

    def __init__(
        self,
        connector: type[SinkConnector],
        texts: Mapping[str, Any],
        *,
        queues: int = 1,
        number: int = 0,
    ) -> None:
        if "topics" not in texts and "topics.regex" not in texts:
            texts = {**texts, "topics": "topic"}
        super().__init__(connector, texts, number=number)
        topics = self.config["topics"] or [str(texts["topics.regex"])]
        self._log: dict[Queue, list[SinkRecord]] = {
            Queue(topic, _BROKER, number): [] for topic in topics for number in range(queues)
        }
        #: The next offset of each queue as the runtime has committed it.
        self.offsets: dict[Queue, int] = {}
        self._batch: dict[Queue, int] = {}

    @property
    def queues(self) -> list[Queue]:
        """The queues that the task reads."""
        return list(self._log)

    @property
    def reported(self) -> list[tuple[SinkRecord, BaseException]]:
        """Records that this life of the task reported, each with the reason."""
        return self.context.reported

    def send(self, *values: Any, **more: Any) -> None:
        """Append a record per value to a queue.

        Parameters
        ----------
        values
            The values of the records.
        more
            ``key``, ``value_schema``, ``key_schema``, ``headers`` and ``timestamp_ms`` of each,
            and ``queue``: the number of the queue within the first topic, or a :class:`Queue`.
        """
        chosen = more.pop("queue", 0)
        queue = chosen if isinstance(chosen, Queue) else self.queues[chosen]
        for value in values:
            offset = len(self._log[queue])
            self._log[queue].append(
                SinkRecord(topic=queue.topic, queue=queue, offset=offset, value=value, **more)
            )

    def put(self, most: int | None = None, *, columns: bool = False) -> int:
        """Pass what was not put yet to ``put()`` at once, and return how many records it was.

        After an error the same records come again.

        Parameters
        ----------
        most
            Most records.
        columns
            Whether they go to ``put_batch()`` as Arrow columns, a call per queue.

        Raises
        ------
        TaskFailedError
            When the task has called ``fail()``.
        """
        self.requests.raise_failure()
        records = self._pending(most)
        before = dict(self.context.positions)
        if columns:
            self._put_columns(records)
        elif records:
            self.task.put(records)
        self.requests.raise_failure()
        for record in records:
            # A task that has called offset() goes on from there.
            if self.context.positions[record.queue] == before[record.queue]:
                before[record.queue] = record.offset + 1
                self.context.positions[record.queue] = record.offset + 1
            self._batch[record.queue] = record.offset + 1
        return len(records)

    def flush(self, *, commit: bool = True) -> None:
        """Call ``flush()`` with the offsets of what was put, and commit them.

        Parameters
        ----------
        commit
            Whether the runtime keeps the offsets; ``False`` and :meth:`crash` are a crash between
            the sink's work and the runtime's.
        """
        self.task.flush(dict(self._batch))
        self.requests.raise_failure()
        if commit:
            self.offsets |= self._batch
            self._batch = {}

    def deliver(self, most: int | None = None, *, columns: bool = False) -> int:
        """Put everything that waits, flush and commit, and return how many records it was."""
        count = self.put(most, columns=columns)
        if count:
            self.flush()
        return count

    def _pending(self, most: int | None) -> list[SinkRecord]:
        waiting = [
            record
            for queue, start in self.context.positions.items()
            if queue not in self.context.paused
            for record in self._log[queue][start:]
        ]
        return waiting[:most]

    def _put_columns(self, records: Sequence[SinkRecord]) -> None:
        for queue in self._log:
            if mine := [record for record in records if record.queue == queue]:
                self.task.put_batch(_batch_of(queue, mine))

    def _context(self, config: Config) -> KitSinkContext:
        positions = {queue: self.offsets.get(queue, 0) for queue in self._log}
        self._batch = {}
        self.context = KitSinkContext(self.texts["name"], config, positions, self.requests)
        return self.context

    def _started(self) -> None:
        self.task.open(self.queues)
        # What the sink keeps in its own transactions wins over the runtime's offsets.
        self.context.positions.update(self.task.offsets() or {})

    def _end(self) -> None:
        if self._alive:
            self.task.close(self.queues)
        super()._end()


def _batch_of(queue: Queue, records: Sequence[SinkRecord]) -> SinkBatch:
    keys = [record.key for record in records]
    times = [record.timestamp_ms for record in records]
    return SinkBatch(
        queue=queue,
        offset=pa.array([record.offset for record in records], pa.int64()),
        value=pa.array([record.value for record in records]),
        key=pa.array(keys) if any(key is not None for key in keys) else None,
        timestamp_ms=pa.array(times, pa.int64()),
        value_schema=records[0].value_schema,
        key_schema=records[0].key_schema,
    )
