"""Spouts that can neither replay nor be read by offset: what they emit goes to a topic first.

Two groups come of such a spout: one runs it and writes its tuples to a topic of the topology's
own, the other one reads them there.  From the topic on everything is exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.topology import DEFAULT_STREAM
from headrace.transactions.components import Spout

if TYPE_CHECKING:
    from typing import Protocol

    from headrace.topology import BatchGroupId, SpoutCollector, TaskContext
    from headrace.transactions.components import FieldsDeclarer

    class PlainSpout(Protocol):
        """A spout without state."""

        def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
            """Name the fields of what is emitted."""

        def prepare(self, context: TaskContext) -> None:
            """Get ready to emit."""

        def next_tuple(self, collector: SpoutCollector) -> None:
            """Emit tuples, if there are any."""

        def cleanup(self) -> None:
            """Let go of what ``prepare`` took."""


__all__ = ["JournalSpout"]


class JournalSpout(Spout):
    """Lets a spout without state take part: its tuples are written to a topic first.

    What is in the topic is processed exactly once.  What the spout emitted before that is emitted
    again after a failure, unless its process died: then tuples since the last commit are gone, as
    nobody can give them again.

    Parameters
    ----------
    spout
        Has ``declare_output_fields``, ``prepare``, ``next_tuple`` and ``cleanup``, and emits to
        one stream.

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
        #: What was emitted since the last commit that is known of, and what is to be again.
        self._open: list[list[Any]] = []
        self._again: list[list[Any]] = []
        self._batch = 0

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        """Name the fields that the spout emits."""
        self.spout.declare_output_fields(declarer)

    def prepare(self, context: TaskContext) -> None:
        """Prepare the spout."""
        self.spout.prepare(context)

    def init_state(self, state: None) -> None:
        """Begin: there is nothing to go on from."""

    def next_tuple(self, collector: SpoutCollector) -> None:
        """Emit again what was not committed, else let the spout emit."""
        again, self._again = self._again, []
        for values in again:
            collector.emit(values)
        self._open += again
        if not again:
            self.spout.next_tuple(_Keeping(collector, self._open))

    def finish_batch(self) -> None:
        """End the batch: nothing of the spout is kept."""

    def commit(self, batch_group_id: BatchGroupId, state: None) -> None:
        """Note the batch in which the open tuples are."""
        del state
        self._batch = batch_group_id.batch_id

    def roll_back(self, state: None) -> None:
        """Emit the open tuples again, unless it turns out that they are committed."""
        del state
        self._again, self._open = [*self._again, *self._open], []

    def ack_commit(self, batch_group_id: BatchGroupId) -> None:
        """Forget what is committed."""
        if 0 < self._batch <= batch_group_id.batch_id:
            self._open, self._again, self._batch = [], [], 0

    def cleanup(self) -> None:
        """Clean the spout up."""
        self.spout.cleanup()


class _Keeping:
    """A spout's collector that keeps what goes through it."""

    def __init__(self, collector: SpoutCollector, kept: list[list[Any]]) -> None:
        self._collector = collector
        self._kept = kept

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        self._collector.emit(values, stream)
        self._kept.append(list(values))

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        self._collector.emit_direct(task, values, stream)

    def emit_barrier(self) -> None:
        self._collector.emit_barrier()

    def fail(self, reason: str | BaseException) -> None:
        self._collector.fail(reason)
