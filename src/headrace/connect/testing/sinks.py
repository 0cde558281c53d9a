"""Sink tasks in a test: send, put, flush, fall over, go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.connect.plugins import SinkConnector, SinkTask
from headrace.connect.records import Queue, SinkBatch, SinkRecord
from headrace.connect.testing.contexts import KitSinkContext
from headrace.connect.testing.units import TaskKit

if TYPE_CHECKING:
    from headrace.connect.config import Config

__all__ = ["SinkTaskKit"]

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
        """Hand over what is not put yet, by one call of ``put()``; tell how many records it was.

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
            Whether the runtime keeps the offsets; ``False`` and :meth:`crash` are a fall between
            the sink's work and the runtime's.
        """
        self.task.flush(dict(self._batch))
        self.requests.raise_failure()
        if commit:
            self.offsets |= self._batch
            self._batch = {}

    def deliver(self, most: int | None = None, *, columns: bool = False) -> int:
        """Put everything that waits, flush, commit; tell how many records it was."""
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
