"""Edges to bolts: tuples over a shuffle, a frame per partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.errors import RollbackError, SerializationError
from headrace.runtime.blocks import BlockKind
from headrace.runtime.bolts.frames import TupleFrame
from headrace.runtime.bolts.groupings import Sending, tasks_of
from headrace.runtime.bolts.placing import key_value_tasks, task_of_ranges
from headrace.runtime.chunk import ANY_TASK, Chunk, Int64s
from headrace.topology.operators.bolts import KeyValueBoltNode
from headrace.user_lines import user_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.runtime.processors import ProcessorContext
    from headrace.topology.operators.bolts import Bolt

__all__ = ["TupleEdge"]


class TupleEdge:
    """Sends tuples to the tasks that a grouping chooses.

    Parameters
    ----------
    bolt
        The bolt that takes them.
    port
        Number of the subscription that they come by.
    context
        The task that sends.
    """

    def __init__(self, bolt: Bolt, port: int, context: ProcessorContext) -> None:
        self._bolt = bolt
        self._port = port
        self._sender = context.partition
        self._batch = context.epoch_and_batch[1]
        self._chunks: list[Chunk] = []

    def add(self, chunk: Chunk) -> None:
        """Take tuples of the component that sends."""
        self._chunks.append(chunk)

    def flush(self, partitions: int) -> Iterator[tuple[BlockKind, int, TupleFrame]]:
        """Give everything taken so far, by partition."""
        chunk = Chunk.merge(self._chunks)
        self._chunks = []
        if not len(chunk):
            return
        if chunk.emitters is None:
            chunk.emitters = np.full(len(chunk), self._sender, np.int64)
        chunk, tasks = self._tasks(chunk, partitions)
        for partition in range(min(partitions, self._count(partitions))):
            picks = np.flatnonzero((tasks == ANY_TASK) | (tasks % partitions == partition))
            if len(picks):
                yield BlockKind.TUPLES, partition, _frame(chunk, tasks, picks)

    def _count(self, partitions: int) -> int:
        bolt = self._bolt
        if isinstance(bolt, KeyValueBoltNode):
            return key_value_tasks(bolt.parallelism, partitions)
        return bolt.parallelism

    def _tasks(self, chunk: Chunk, partitions: int) -> tuple[Chunk, Int64s]:
        bolt, grouping = self._bolt, self._bolt.groupings[self._port]
        by_range = isinstance(bolt, KeyValueBoltNode) and grouping.kind == "fields"
        count = self._count(partitions)
        shares = bolt.ranges if isinstance(bolt, KeyValueBoltNode) and by_range else count
        try:
            sending = Sending(grouping, shares, self._sender + self._batch)
            chunk, tasks = tasks_of(chunk, sending)
        except SerializationError:
            raise
        except Exception as error:
            raise self._failure(error) from error
        return chunk, task_of_ranges(tasks, partitions, count) if by_range else tasks

    def _failure(self, error: Exception) -> RollbackError:
        bolt, line = self._bolt, user_line(error)
        return RollbackError(
            f"the {bolt.groupings[self._port].kind} grouping from '{bolt.parents[self._port]}' to"
            f" '{bolt.name}' failed in batch {self._batch}: {type(error).__name__}: {error}"
            + ("" if line is None else f"\n  at {line}"),
            hint=f"the bolt was added at {bolt.origin}; nothing of this batch was committed",
            component=bolt.name,
            batch=self._batch,
            line=line,
        )


def _frame(
    chunk: Chunk, tasks: Int64s, picks: np.ndarray[tuple[int], np.dtype[np.intp]]
) -> TupleFrame:
    assert chunk.emitters is not None, "set before tasks are chosen"
    if len(picks) == len(chunk):
        return TupleFrame(chunk.values, (chunk.marks, chunk.times, chunk.emitters, tasks))
    values = chunk.values
    rows = [values[at] for at in picks.tolist()]
    columns = (chunk.marks, chunk.times, chunk.emitters, tasks)
    return TupleFrame(rows, [column[picks] for column in columns])
