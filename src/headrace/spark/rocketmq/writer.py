"""The writers that Spark drives: rows go out as messages, at least once."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from headrace.client import Producer
from headrace.spark.rocketmq.cluster import connect
from headrace.spark.rocketmq.failures import clear_errors
from headrace.spark.rocketmq.outgoing import Outgoing, RowRouter
from headrace.spark.worker import end_of_task

if TYPE_CHECKING:
    from headrace.spark.rocketmq.options import WriteOptions

__all__ = ["RocketMQStreamWriter", "RocketMQWriter", "Written", "write_rows"]

#: Rows are collected up to so many bytes, so that requests are full and go to queues side by side.
_ENOUGH = 8 * 1024 * 1024
_SENDERS = 8


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task has sent."""

    messages: int


def write_rows(options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> Written:
    """Send rows as messages, and return when brokers have confirmed all of them.

    Raises
    ------
    ConfigurationError
        A row names no topic, or a queue that does not exist.
    MessageRejectedError
        A row holds what a message cannot carry.
    MessageTooLargeError
        A message is above the size limit.
    """
    client = connect(options.cluster)
    producer = Producer(client)
    router = RowRouter(
        options.topic,
        lambda topic: client.queues(topic, for_="write"),
        spread=random.randrange(1 << 16),
    )
    messages = 0
    with ThreadPoolExecutor(_SENDERS, "headrace-send") as senders:
        for rows in _collected(batches):
            parts = list(router.route(rows))
            for _ in senders.map(lambda part: _send(producer, part), parts):
                pass
            messages += len(rows)
    return Written(messages)


def _collected(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            size += batch.nbytes
        if size >= _ENOUGH:
            yield pa.Table.from_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _send(producer: Producer, part: Outgoing) -> None:
    if part.born is None:
        producer.send_columns(part.queue, part.bodies, properties=part.properties)
        return
    for begin, end, born in _runs(part.born):
        producer.send_columns(
            part.queue,
            part.bodies[begin:end],
            properties=part.properties[begin:end],
            born=born,
        )


def _runs(born: pa.Int64Array) -> Iterator[tuple[int, int, int | None]]:
    """Rows of one time in a row: a batch on the wire has one time for all its messages."""
    times = np.asarray(born.fill_null(-1).to_numpy(zero_copy_only=False))
    edges = [0, *(np.flatnonzero(times[1:] != times[:-1]) + 1).tolist(), len(times)]
    for begin, end in itertools.pairwise(edges):
        yield begin, end, born[begin].as_py()


class RocketMQWriter(DataSourceArrowWriter):
    """Writes the rows of a batch.

    Parameters
    ----------
    options
        Where to write.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    @clear_errors
    def write(self, iterator: Iterator[Any]) -> Written:
        """Send the rows of one task."""
        written = write_rows(self._options, iterator)
        end_of_task()
        return written


class RocketMQStreamWriter(DataSourceStreamArrowWriter):
    """Writes the rows of a query.

    Parameters
    ----------
    options
        Where to write.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    @clear_errors
    def write(self, iterator: Iterator[Any]) -> Written:
        """Send the rows of one task of one batch."""
        written = write_rows(self._options, iterator)
        end_of_task()
        return written

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: brokers have confirmed what was sent."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: what was sent cannot be taken back."""
