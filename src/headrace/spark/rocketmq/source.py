"""The data source ``rocketmq``, in the classes that Spark calls."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.client import MessageQueue, PullConsumer
from headrace.errors import ConfigurationError, OffsetExpiredError
from headrace.spark.rocketmq.options import (
    READ_OPTIONS,
    ClusterOptions,
    QueueFinder,
    ReadOptions,
    WriteOptions,
    check_names,
    connect,
    include_headers,
    read_options,
    write_options,
)
from headrace.spark.rocketmq.positions import Offsets, Resolver, offsets_from_json, offsets_to_json
from headrace.spark.rocketmq.writer import (
    RocketMQStreamWriter,
    RocketMQWriter,
    clear_errors,
    clear_errors_of,
    record_batch,
)
from headrace.spark.worker import end_of_task
from headrace.spelling import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


# How much of each queue a batch reads, and which tasks read it: plain arithmetic.


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Messages of one queue with offsets from ``begin`` up to, but not including, ``end``."""

    queue: MessageQueue
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin


def share_out(backlogs: Mapping[MessageQueue, int], limit: int) -> dict[MessageQueue, int]:
    """Divide a limit among queues in proportion to the messages that wait in them.

    All queues reach their ends together, so their times advance together.
    A queue in which anything waits gets at least one message, if the limit is large enough.

    Examples
    --------
    >>> from headrace.client import MessageQueue
    >>> a, b = MessageQueue("t", "broker-a", 0), MessageQueue("t", "broker-a", 1)
    >>> list(share_out({a: 1_000, b: 3_000}, 100).values())
    [25, 75]
    >>> list(share_out({a: 1, b: 1_000_000}, 10).values())
    [1, 9]
    """
    sizes = np.array(list(backlogs.values()), np.int64)
    if not len(sizes) or int(sizes.sum()) <= limit:
        return dict(backlogs)
    shares = np.zeros(len(sizes), np.int64)
    largest_first = np.argsort(-sizes, kind="stable")
    shares[largest_first[:limit]] = 1
    shares = np.minimum(shares, sizes)
    rest, wanted = limit - int(shares.sum()), sizes - shares
    if rest:
        exact = wanted * (rest / int(wanted.sum()))
        more = np.floor(exact).astype(np.int64)
        fractions = np.argsort(-(exact - more), kind="stable")
        more[fractions[: rest - int(more.sum())]] += 1
        shares += more
    return dict(zip(backlogs, shares.tolist(), strict=True))


def split_ranges(ranges: Sequence[ReadRange], least: int | None) -> list[ReadRange]:
    """Cut large ranges so that there are about ``least`` tasks; if None, one for each queue.

    Examples
    --------
    >>> from headrace.client import MessageQueue
    >>> queue = MessageQueue("t", "broker-a", 0)
    >>> [(part.begin, part.end) for part in split_ranges([ReadRange(queue, 10, 20)], 3)]
    [(10, 13), (13, 16), (16, 20)]
    """
    if least is None or len(ranges) >= least:
        return list(ranges)
    total = sum(map(len, ranges))
    parts: list[ReadRange] = []
    for whole in ranges:
        count = min(len(whole), max(1, round(least * len(whole) / total)))
        edges = [whole.begin + len(whole) * number // count for number in range(count + 1)]
        parts += [replace(whole, begin=begin, end=end) for begin, end in itertools.pairwise(edges)]
    return parts


# Planning: where a query begins, where the next batch ends, and what its tasks read.

logger = logging.getLogger(__name__)


class BatchPlanner:
    """Plans a batch read, which has an end.

    Parameters
    ----------
    options
        What to read.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def ranges(self) -> list[ReadRange]:
        """Return the ranges that the tasks read.

        Raises
        ------
        TopicNotFoundError
            A topic does not exist.
        SettingsError
            A position does not fit the queues.
        OffsetExpiredError
            A queue does not hold an offset that the options name.
        """
        options = self._options
        queues = QueueFinder(options).all_queues()
        consumer = PullConsumer(connect(options.cluster))
        resolver = Resolver(consumer, options.strategy, fail_on_data_loss=options.fail_on_data_loss)
        # The ends come first, so that no queue ends before it begins if messages arrive meanwhile.
        ends = resolver.ends(options.ending, queues)
        begins = resolver.starts(options.starting, queues)
        found = [ReadRange(queue, begins[queue], ends[queue]) for queue in queues]
        return split_ranges([one for one in found if len(one) > 0], options.min_partitions)


class StreamPlanner:
    """Plans the batches of one query.

    Parameters
    ----------
    options
        What to read.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._finder = QueueFinder(options)
        self._consumer = PullConsumer(connect(options.cluster), options.group)
        self._committed: Offsets = {}
        self._ends: Offsets = {}
        self._target: Offsets | None = None

    def initial(self) -> Offsets:
        """Return where a query without a checkpoint begins; raise as a batch read does."""
        options = self._options
        resolver = Resolver(
            self._consumer, options.strategy, fail_on_data_loss=options.fail_on_data_loss
        )
        return resolver.starts(options.starting, self._finder.all_queues())

    def freeze(self) -> None:
        """Set the present ends of all queues as the end of the query."""
        self._target = self._consumer.end_offsets(self._finder.present_queues())

    def latest(self, start: Offsets, limit: int | None) -> Offsets:
        """Return the end of a batch that begins at ``start`` and reads at most ``limit`` messages.

        Raises
        ------
        OffsetExpiredError
            A queue ends before ``start``, because its topic was made anew.
        TopicNotFoundError
            A topic is gone, and data loss is an error.
        """
        # Spark asks for the end of a batch only when everything before its start is done.
        self.commit(start)
        self._ends = self._consumer.end_offsets(self._finder.present_queues())
        ends = self._ends if self._target is None else self._below_target()
        begins = self._begins(start, ends)
        backlogs = {q: ends[q] - begins[q] for q in sorted(ends) if ends[q] > begins[q]}
        shares = backlogs if limit is None else share_out(backlogs, limit)
        return {**start, **{queue: begins[queue] + size for queue, size in shares.items()}}

    def _below_target(self) -> Offsets:
        assert self._target is not None
        present = self._ends.items()
        return {q: min(end, self._target[q]) for q, end in present if q in self._target}

    def _begins(self, start: Mapping[MessageQueue, int], ends: Offsets) -> Offsets:
        """Return where the batch begins in each queue.

        New queues, and those of topics that were made anew, begin at their first message.  A queue
        that was made anew after :meth:`freeze` has nothing more to read.
        """
        first = [queue for queue in ends if queue not in start]
        for queue in ends:
            if queue in start and self._ends.get(queue, ends[queue]) < start[queue]:
                self._report_loss(queue, start[queue], self._ends[queue])
                first.append(queue)
        known = {queue: start[queue] for queue in ends if queue in start}
        return {**known, **self._consumer.begin_offsets(first)}

    def _report_loss(self, queue: MessageQueue, start: int, end: int) -> None:
        what = f"queue {queue} was read up to offset {start}, but now ends at {end}"
        if self._options.fail_on_data_loss:
            raise OffsetExpiredError(
                f"{what}: its topic was made anew, or its broker lost messages",
                hint="start the query with a new checkpoint, or set failOnDataLoss to false to go"
                " on at the first message there is",
            )
        logger.warning("%s; going on at its first message", what)

    def reported(self) -> Offsets | None:
        """Return where the queues ended when the brokers were last asked; None if never."""
        return self._ends or None

    def ranges(self, start: Offsets, end: Offsets) -> list[ReadRange]:
        """Return the ranges that the tasks of a batch read."""
        anew = [queue for queue in end if queue not in start or end[queue] < start[queue]]
        begins = {**start, **self._consumer.begin_offsets(anew)}
        found = [ReadRange(queue, begins[queue], end[queue]) for queue in sorted(end)]
        return split_ranges([one for one in found if len(one) > 0], self._options.min_partitions)

    def commit(self, offsets: Offsets) -> None:
        """Commit the offsets for the consumer group, if there is one."""
        if self._options.group is None:
            return
        moved = {q: at for q, at in offsets.items() if self._committed.get(q) != at}
        if moved:
            self._consumer.commit(moved)
            self._committed.update(moved)


# The readers that Spark drives: one for batch reads, one for queries.


class RangePartition(InputPartition):
    """The range that one task reads."""

    def __init__(self, part: ReadRange) -> None:
        super().__init__(part)
        self.part = part


def _read(options: ReadOptions, schema: pa.Schema, partition: InputPartition) -> Iterator[Any]:
    # For a read without partitions, Spark makes an empty one of its own.
    if isinstance(partition, RangePartition):
        reader = RangeReader(options.cluster, schema, options.fail_on_data_loss, options.committed)
        yield from clear_errors_of(reader.read(partition.part))
        end_of_task()


@dataclass(frozen=True, slots=True)
class RangeReader:
    """Reads ranges of queues as rows.

    Examples
    --------
    >>> from headrace.spark.rocketmq.source import arrow_schema, read_schema
    >>> def count(cluster: ClusterOptions, part: ReadRange) -> int:
    ...     reader = RangeReader(cluster, arrow_schema(read_schema(headers=False)))
    ...     return sum(batch.num_rows for batch in reader.read(part))
    """

    cluster: ClusterOptions
    #: The columns to return.
    schema: pa.Schema
    #: Whether a message that is gone is an error, or is passed over.
    fail_on_data_loss: bool = True
    #: Whether to read only committed messages of jobs.
    committed: bool = False

    def read(self, part: ReadRange) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range, in order.

        Raises
        ------
        OffsetExpiredError
            The queue no longer holds a message of the range, and data loss is an error.
        """
        consumer = PullConsumer(connect(self.cluster), committed=self.committed)
        left = part
        while len(left) > 0:
            try:
                for result in consumer.blocks(left.queue, left.begin, left.end):
                    batches = [
                        record_batch(left.queue, piece, left.end, self.schema)
                        for piece in result.pieces()
                    ]
                    left = replace(left, begin=result.next_offset)
                    yield from (batch for batch in batches if batch.num_rows)
                return
            except OffsetExpiredError as error:
                held = left if self.fail_on_data_loss else _still_held(consumer, left)
                if held == left:
                    raise _gone(error) from None
                left = held


def _still_held(consumer: PullConsumer, part: ReadRange) -> ReadRange:
    begin = max(part.begin, consumer.begin_offset(part.queue))
    return replace(part, begin=begin, end=min(part.end, consumer.end_offset(part.queue)))


def _gone(error: OffsetExpiredError) -> OffsetExpiredError:
    return OffsetExpiredError(
        error.message,
        hint="the broker's retention deleted messages before they were read, or the topic was made"
        " anew; set failOnDataLoss to false to pass over what is missing",
    )


class RocketMQReader(DataSourceReader):
    """Reads topics from one position to another.

    Parameters
    ----------
    options
        What to read.
    schema
        The columns to return.
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

    Its offsets have the form of the option ``startingOffsets``: by topic and queue.

    Parameters
    ----------
    options
        What to read.
    schema
        The columns to return.
    """

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._planner: StreamPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get a copy, and they read but never plan.
        return {**self.__dict__, "_planner": None}

    @property
    def _plans(self) -> StreamPlanner:
        if self._planner is None:
            self._planner = StreamPlanner(self._options)
        return self._planner

    @clear_errors
    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins."""
        return dict(offsets_to_json(self._plans.initial()))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of ``maxOffsetsPerTrigger``."""
        limit = self._options.max_offsets
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    @clear_errors
    def prepareForTriggerAvailableNow(self) -> None:
        """Set the present ends of all queues as the end of the query."""
        self._plans.freeze()

    @clear_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next batch ends."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return dict(offsets_to_json(self._plans.latest(offsets_from_json(start), most)))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return where the queues end, so that the query's progress shows its lag."""
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
        """Commit the offsets for the consumer group, if there is one."""
        self._plans.commit(offsets_from_json(end))


# The columns of reads and writes.

_HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", StringType())])
)
_BYTES: tuple[DataType, ...] = (BinaryType(), StringType())
_TEXT: tuple[DataType, ...] = (StringType(),)
_NUMBER: tuple[DataType, ...] = (IntegerType(), LongType())
_TIME: tuple[DataType, ...] = (TimestampType(),)

READ_COLUMNS: Mapping[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "broker": StringType(),
    "queue": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "bornTimestamp": TimestampType(),
    "tags": StringType(),
    "headers": _HEADERS,
}
"""The columns of a read, in order; ``headers`` only with ``includeHeaders``."""

WRITE_COLUMNS: Mapping[str, tuple[DataType, ...]] = {
    "value": _BYTES,
    "key": _BYTES,
    "topic": _TEXT,
    "queue": _NUMBER,
    "broker": _TEXT,
    "tags": _TEXT,
    "timestamp": _TIME,
    "bornTimestamp": _TIME,
    "headers": (_HEADERS,),
    "offset": _NUMBER,
}
"""The columns of a write, each with the types that it may have."""


def read_schema(*, headers: bool) -> StructType:
    """Return the schema of a read.

    Examples
    --------
    >>> read_schema(headers=False).fieldNames()[:3]
    ['key', 'value', 'topic']
    """
    names = [name for name in READ_COLUMNS if headers or name != "headers"]
    return StructType([StructField(name, READ_COLUMNS[name]) for name in names])


def arrow_schema(schema: StructType) -> pa.Schema:
    """Check the columns of a read and return them as an Arrow schema.

    Raises
    ------
    ConfigurationError
        There is no such column, or it has another type.
    """
    for field in schema.fields:
        if field.name not in READ_COLUMNS:
            raise _unknown(field.name, READ_COLUMNS, "source has")
        _check_type(field, (READ_COLUMNS[field.name],))
    return to_arrow_schema(schema, timezone="UTC")


def check_written(schema: StructType, *, topic_given: bool) -> None:
    """Check the columns of a write.

    Raises
    ------
    ConfigurationError
        A column is missing or unknown, or has a type that cannot be written.
    """
    names = schema.fieldNames()
    for field in schema.fields:
        if field.name not in WRITE_COLUMNS:
            raise _unknown(field.name, WRITE_COLUMNS, "sink takes")
        _check_type(field, WRITE_COLUMNS[field.name])
    if "value" not in names:
        raise ConfigurationError(
            f"the rocketmq sink needs a column 'value', but there are {_listed(names)}",
            hint="name it: df.select(to_json(struct('*')).alias('value'))",
        )
    if "topic" not in names and not topic_given:
        raise ConfigurationError(
            "the rocketmq sink needs a topic: there is neither the option 'topic' nor a column"
            " 'topic'",
            hint='add .option("topic", "...")',
        )


def _check_type(field: StructField, allowed: tuple[DataType, ...]) -> None:
    if not any(_same_type(field.dataType, one) for one in allowed):
        wanted = " or ".join(one.simpleString() for one in allowed)
        raise ConfigurationError(
            f"column '{field.name}' has the type {field.dataType.simpleString()}, but must have"
            f" {wanted}",
            hint=f"cast it: col('{field.name}').cast('{allowed[0].simpleString()}')",
        )


def _same_type(one: DataType, other: DataType) -> bool:
    # Nullability does not matter: Spark types a struct of literals as never null.
    return one.simpleString() == other.simpleString()


def _unknown(name: str, known: Iterable[str], which: str) -> ConfigurationError:
    names = list(known)
    hint = did_you_mean(name, names, f"choose from {_listed(names)}")
    return ConfigurationError(f"the rocketmq {which} no column '{name}'", hint=hint)


def _listed(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def register(spark: SparkSession) -> None:
    """Add the format ``rocketmq`` to a session, for batch and streaming reads and writes.

    Headrace must be installed where Spark's executors run.

    Parameters
    ----------
    spark
        The session.

    Examples
    --------
    >>> from pyspark.sql import DataFrame, SparkSession
    >>> def lines(spark: SparkSession) -> DataFrame:
    ...     register(spark)
    ...     return (
    ...         spark.readStream.format("rocketmq")
    ...         .option("rocketmq.namesrv", "127.0.0.1:9876")
    ...         .option("subscribe", "lines")
    ...         .load()
    ...         .selectExpr("CAST(value AS STRING) AS line")
    ...     )
    """
    spark.dataSource.register(RocketMQSource)


class RocketMQSource(DataSource):
    """RocketMQ topics as data frames, which Spark creates for ``format("rocketmq")``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "rocketmq"

    @property
    def _given(self) -> Mapping[str, str]:
        return cast("Mapping[str, str]", self.options)

    @clear_errors
    def schema(self) -> StructType:
        """Return the columns of a read; Spark asks for them as soon as ``load`` is called."""
        check_names(self._given, READ_OPTIONS)
        return read_schema(headers=include_headers(self._given))

    @clear_errors
    def reader(self, schema: StructType) -> RocketMQReader:
        """Return the reader of a batch read."""
        return RocketMQReader(read_options(self._given, "batch"), arrow_schema(schema))

    @clear_errors
    def streamReader(self, schema: StructType) -> RocketMQStreamReader:
        """Return the reader of a query."""
        return RocketMQStreamReader(read_options(self._given, "stream"), arrow_schema(schema))

    @clear_errors
    def writer(self, schema: StructType, overwrite: bool) -> RocketMQWriter:  # noqa: FBT001
        """Return the writer of a batch write."""
        if overwrite:
            raise ConfigurationError(
                "the rocketmq sink cannot overwrite a topic: messages stay until they expire",
                hint='write with .mode("append")',
            )
        return RocketMQWriter(self._write_options(schema))

    @clear_errors
    def streamWriter(
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001
    ) -> RocketMQStreamWriter:
        """Return the writer of a query; the output mode ``complete`` appends every result again."""
        return RocketMQStreamWriter(self._write_options(schema))

    def _write_options(self, schema: StructType) -> WriteOptions:
        options = write_options(self._given)
        check_written(schema, topic_given=options.topic is not None)
        if options.topic is not None:
            # A missing topic must raise here, and not only after some failed tasks.
            connect(options.cluster).queues(options.topic, for_="write")
        return options
