"""The readers that Spark drives: one for batch reads, one for queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from headrace.spark.rocketmq.failures import clear_errors, clear_errors_of
from headrace.spark.rocketmq.planner import BatchPlanner, StreamPlanner
from headrace.spark.rocketmq.positions import offsets_from_json, offsets_to_json
from headrace.spark.rocketmq.rows import RangeReader
from headrace.spark.worker import end_of_task

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.spark.rocketmq.options import ReadOptions
    from headrace.spark.rocketmq.ranges import ReadRange

__all__ = ["RangePartition", "RocketMQReader", "RocketMQStreamReader"]


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, part: ReadRange) -> None:
        super().__init__(part)
        self.part = part


def _read(options: ReadOptions, schema: pa.Schema, partition: InputPartition) -> Iterator[Any]:
    # Spark makes an empty partition of its own for a read that has none.
    if isinstance(partition, RangePartition):
        reader = RangeReader(options.cluster, schema, options.fail_on_data_loss, options.committed)
        yield from clear_errors_of(reader.read(partition.part))
        end_of_task()


class RocketMQReader(DataSourceReader):
    """Reads topics from one position to another.

    Parameters
    ----------
    options
        What to read.
    schema
        The columns to give.
    """

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    @clear_errors
    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks."""
        return [RangePartition(part) for part in BatchPlanner(self._options).ranges()]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read the range of one task as Arrow record batches."""
        return _read(self._options, self._schema, partition)


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics batch by batch.

    Its offsets look like the option ``startingOffsets``: by topic and queue.

    Parameters
    ----------
    options
        What to read.
    schema
        The columns to give.
    """

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._planner: StreamPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get a copy: they read, and never plan.
        return {**self.__dict__, "_planner": None}

    @property
    def _plans(self) -> StreamPlanner:
        if self._planner is None:
            self._planner = StreamPlanner(self._options)
        return self._planner

    @clear_errors
    def initialOffset(self) -> dict[str, Any]:
        """Say where a new query begins."""
        return dict(offsets_to_json(self._plans.initial()))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Pass on ``maxOffsetsPerTrigger``."""
        limit = self._options.max_offsets
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    @clear_errors
    def prepareForTriggerAvailableNow(self) -> None:
        """Take what is there now as the end of the query."""
        self._plans.freeze()

    @clear_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Say where the next batch ends."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return dict(offsets_to_json(self._plans.latest(offsets_from_json(start), most)))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Say where the queues end, so that the query's progress shows its lag."""
        ends = self._plans.reported()
        return None if ends is None else dict(offsets_to_json(ends))

    @clear_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks of one batch."""
        parts = self._plans.ranges(offsets_from_json(start), offsets_from_json(end))
        return [RangePartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read the range of one task as Arrow record batches."""
        return _read(self._options, self._schema, partition)

    @clear_errors
    def commit(self, end: dict[str, Any]) -> None:
        """Let the group's offsets follow."""
        self._plans.commit(offsets_from_json(end))
