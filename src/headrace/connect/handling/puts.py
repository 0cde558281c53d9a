"""Puts records into a sink, and finds the one that it refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.connect.handling.retrying import is_retriable
from headrace.connect.handling.stages import Stage
from headrace.connect.records import SinkBatch, SinkRecord

if TYPE_CHECKING:
    from headrace.connect.handling.failures import Handling, Origin
    from headrace.connect.plugins import SinkTask

__all__ = ["Putter"]


class Putter:
    """Calls ``put`` with the patience and the tolerance of the connector.

    With ``errors.put.tolerance=all`` a batch that the sink refuses is put again in halves, each
    of which is halved in turn, until the records that it refuses stand alone.  So the sink may see
    the others twice, as it may after any failure.  An error that passes by itself never makes a
    record a dead letter: a sink that is away for long fails the task.

    Parameters
    ----------
    task
        The sink.
    handling
        What is done with records that it refuses.
    origin_of
        Finds the row that a record was made of.
    """

    def __init__(
        self, task: SinkTask, handling: Handling, origin_of: Callable[[SinkRecord], Origin]
    ) -> None:
        self._task = task
        self._handling = handling
        self._origin_of = origin_of

    def put(self, records: Sequence[SinkRecord]) -> None:
        """Put records; nothing is called where there are none.

        Raises
        ------
        Exception
            What the task raised, when the policy does not tolerate it.
        """
        if records:
            self._put(self._task.put, records, lambda part: part[0])

    def put_batch(self, batch: SinkBatch) -> None:
        """Put columns, as :meth:`put` does records."""
        if len(batch):
            self._put(self._task.put_batch, _Columns(batch), lambda part: part.record())

    def _put(
        self, put: Callable[[Any], None], part: Any, first: Callable[[Any], SinkRecord]
    ) -> None:
        given = part.batch if isinstance(part, _Columns) else part
        try:
            self._handling.task_retrying.call(partial(put, given))
        except Exception as error:
            if is_retriable(error) or not self._handling.policy.tolerates_put:
                error.add_note(
                    f"in stage {Stage.TASK_PUT}, with {len(part)} records; "
                    "errors.put.tolerance=all would find the one that is refused"
                )
                raise
            if len(part) == 1:
                origin = self._origin_of(first(part))
                self._handling.failed(Stage.TASK_PUT, self._task, error, origin)
                return
        else:
            return
        middle = len(part) // 2
        self._put(put, part[:middle], first)
        self._put(put, part[middle:], first)


class _Columns:
    """A batch that can be cut."""

    def __init__(self, batch: SinkBatch) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return len(self.batch)

    def __getitem__(self, part: slice) -> _Columns:
        start, end, _ = part.indices(len(self))
        batch = self.batch
        cut = {
            name: None if column is None else column.slice(start, end - start)
            for name, column in (
                ("offset", batch.offset),
                ("value", batch.value),
                ("key", batch.key),
                ("timestamp_ms", batch.timestamp_ms),
                ("headers", batch.headers),
            )
        }
        return _Columns(
            SinkBatch(
                queue=batch.queue,
                value_schema=batch.value_schema,
                key_schema=batch.key_schema,
                **cut,
            )
        )

    def record(self) -> SinkRecord:
        """Give the first record."""
        return self.batch.records()[0]
