"""What connectors and tasks have in common, and the base classes of tasks, which move the records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.connect.config import Config
    from headrace.connect.plugins.contexts import SinkTaskContext, SourceTaskContext
    from headrace.connect.records import Queue, SinkBatch, SinkRecord, SourceBatch, SourceRecord


class Unit:
    """Something that runs in a process of its own: a connector or a task.

    One instance runs per generation, and one thread calls all its methods.
    """

    def start(self, config: Config) -> None:
        """Open what is needed; called once."""

    def stop(self) -> None:
        """Release everything; called once, after the last call of any other method."""

    def healthy(self) -> bool:
        """Return whether it can work; three times ``False`` puts it into ERROR."""
        return True


class Task(Unit):
    """What source and sink tasks share.

    ``start`` gets the connector's config with the task's own on top.
    """

    def in_engine(self, config: Config) -> Mapping[str, Any] | None:
        """Return what the engine's Spark does itself, in place of polling or putting.

        Caller: the runtime, before :meth:`start`, with the same config.  ``None`` (the default):
        the task moves the records.  What is returned must be what JSON can hold.
        """
        del config
        return None


class SourceTask(Task, ABC):
    """Reads from outside.

    Examples
    --------
    >>> from headrace.connect import SourceRecord, SourceTask
    >>> class CountTask(SourceTask):
    ...     def start(self, config):
    ...         committed = self.context.offsets.get({}) or {"count": 0}
    ...         self.count = committed["count"]
    ...
    ...     def poll(self):
    ...         self.count += 1
    ...         position = {"count": self.count}
    ...         return [SourceRecord(partition={}, offset=position, topic="n", value=self.count)]
    """

    #: Set before :meth:`start`.
    context: SourceTaskContext

    @abstractmethod
    def poll(self) -> Sequence[SourceRecord] | SourceBatch | None:
        """Return what is new; ``None`` or an empty list when there is nothing.

        It may wait for a second at most, best by ``context.stopping.wait(...)``.  A batch without
        rows is not nothing: its position is committed.
        """

    def commit(self) -> None:
        """Learn that all that ``poll`` had given up to the last commit is safe in its topics.

        Acknowledge there what the outside holds back until then.
        """
        return

    def queues_of(self, topic: str) -> int | None:
        """Return how many queues the runtime gives a topic that it makes for the task's records.

        ``None`` (the default) leaves it to the connector's config.
        """
        del topic
        return None


class SinkTask(Task, ABC):
    """Writes to the outside.

    At least once: after ``flush`` has returned, the runtime commits the offsets.  Exactly once: a
    task whose :meth:`offsets` returns what the sink itself keeps is fed from there, and stores the
    offsets that ``flush`` gets in the same transaction as the records.
    """

    #: Set before :meth:`start`.
    context: SinkTaskContext

    @abstractmethod
    def put(self, records: Sequence[SinkRecord]) -> None:
        """Write these records, or gather them until ``flush``.

        Raise :class:`~headrace.errors.RetriableError` to get the same records again later.
        """

    def put_batch(self, batch: SinkBatch) -> None:
        """Write records that come as Arrow columns; by default they go to :meth:`put`."""
        self.put(batch.records())

    def flush(self, offsets: Mapping[Queue, int]) -> None:
        """Make everything that was put durable; called once per batch, before the commit.

        ``offsets`` holds, for each queue, the offset after the last record that was put.
        """
        del offsets

    def open(self, queues: Collection[Queue]) -> None:
        """Learn which queues the task reads from now on."""
        del queues

    def close(self, queues: Collection[Queue]) -> None:
        """Learn which queues the task no longer reads."""
        del queues

    def offsets(self) -> Mapping[Queue, int] | None:
        """Return the next offset of each queue as the sink itself keeps it.

        Caller: the runtime, after :meth:`open`.  ``None`` (the default) says that the sink keeps
        none, and the runtime's own offsets count.
        """
        return None
