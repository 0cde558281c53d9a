"""Spouts that can neither replay nor be read by offset: what they emit goes to a topic first.

Such a spout makes two groups: one runs it and writes its tuples to a topic of the topology's own,
the other one reads them there.  From the topic on everything is exactly once.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from headrace.topology import DEFAULT_STREAM, BatchGroupId, SpoutCollector, TaskContext
from headrace.transactions.components import FieldsDeclarer, Spout, SpoutLog

if TYPE_CHECKING:

    class PlainSpout(Protocol):
        """A spout without state."""

        def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
            """Name the fields of what is emitted."""

        def prepare(self, context: TaskContext) -> None:
            """Get ready to emit."""

        def next_tuple(self, collector: SpoutCollector) -> None:
            """Emit tuples, if there are any."""

        def cleanup(self) -> None:
            """Release what ``prepare`` took."""


class JournalSpout(Spout):
    """Lets a spout without state take part: its tuples are written to a topic first.

    Tuples in the topic are processed exactly once.  Before they are there, a file of the machine
    keeps them, and they are emitted again after a failure, also by another process.  When the
    driver or the machine ends, the tuples since the last commit are gone for good.

    Parameters
    ----------
    spout
        An object with ``declare_output_fields``, ``prepare``, ``next_tuple`` and ``cleanup`` that
        emits to one stream.

    Examples
    --------
    >>> from headrace.transactions import Bolt, TransactionTopologyBuilder
    >>> class Clicks:
    ...     def declare_output_fields(self, declarer):
    ...         declarer.declare("url")
    ...
    ...     def prepare(self, context):
    ...         self.urls = iter(["/", "/help"])
    ...
    ...     def next_tuple(self, collector):
    ...         for url in self.urls:
    ...             collector.emit([url])
    ...
    ...     def cleanup(self):
    ...         del self.urls
    >>> class Show(Bolt):
    ...     def execute(self, taken):
    ...         print(taken["url"])
    >>> builder = TransactionTopologyBuilder("site")
    >>> builder.set_spout("clicks", JournalSpout(Clicks()))
    >>> builder.set_bolt("show", Show()).shuffle_grouping("clicks")
    <inputs of 'show'>
    >>> built = builder.build()
    >>> [group.name for group in built.groups], built.journal_topics
    (['site', 'site-clicks-source'], ('site-clicks-spoutTopic',))
    """

    def __init__(self, spout: PlainSpout) -> None:
        self.spout = spout
        #: The same in all copies of this spout, wherever they run.
        self._owner = uuid.uuid4().hex
        self._log: SpoutLog | None = None
        #: What is to be emitted again.
        self._again: list[list[Any]] = []

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        """Name the fields that the spout emits."""
        self.spout.declare_output_fields(declarer)

    def prepare(self, context: TaskContext) -> None:
        """Prepare the spout."""
        self._log = SpoutLog(self._owner, f"{context.component}-{context.task}")
        self.spout.prepare(context)

    def init_state(self, state: int | None) -> None:
        """Begin with what another process has emitted without a commit."""
        self._again = self._kept.uncommitted(state or 0)

    def next_tuple(self, collector: SpoutCollector) -> None:
        """Emit again what was not committed, or let the spout emit."""
        again, self._again = self._again, []
        for values in again:
            collector.emit(values)
        if again:
            return
        try:
            self.spout.next_tuple(_Keeping(collector, self._kept))
        finally:
            self._kept.flush()

    def finish_batch(self) -> None:
        """End the batch: nothing of the spout is kept."""

    def commit(self, batch_group_id: BatchGroupId, state: None) -> int:
        """Note the batch of the tuples, and return its number as the state."""
        del state
        self._kept.end_batch(batch_group_id.batch_id)
        return batch_group_id.batch_id

    def roll_back(self, state: int | None) -> None:
        """Emit again what is not committed."""
        self._again = self._kept.uncommitted(state or 0)

    def ack_commit(self, batch_group_id: BatchGroupId) -> None:
        """Forget what is committed."""
        self._again = self._kept.uncommitted(batch_group_id.batch_id)

    def cleanup(self) -> None:
        """Clean the spout up."""
        self._kept.close()
        self.spout.cleanup()

    @property
    def _kept(self) -> SpoutLog:
        assert self._log is not None, "prepare comes first"
        return self._log


class _Keeping:
    """A spout's collector that keeps what goes through it."""

    def __init__(self, collector: SpoutCollector, kept: SpoutLog) -> None:
        self._collector = collector
        self._kept = kept

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        self._collector.emit(values, stream)
        self._kept.add(list(values))

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        self._collector.emit_direct(task, values, stream)

    def emit_barrier(self) -> None:
        self._collector.emit_barrier()

    def fail(self, reason: str | BaseException) -> None:
        self._collector.fail(reason)
