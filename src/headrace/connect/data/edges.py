"""Between a job's tasks and a task's host: what Spark's workers carry from one to the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.client import MessageQueue
from headrace.connect.columns import PACKED, SINK_SCHEMA
from headrace.connect.hosts.channel import PolledBatch, TaskChannel
from headrace.connect.records import Queue, position_key
from headrace.protocol.codes import SysFlag
from headrace.protocol.properties import encode_properties
from headrace.runtime.outside import key_bytes, property_pairs
from headrace.topology.operators.core import Taken

_MOST_RECORDS = 200_000
_MOST_BYTES = 32 << 20
_NO_VALUE = pa.scalar(None, pa.binary())


@lru_cache(maxsize=256)
def _channel(address: str, timeout: timedelta) -> TaskChannel:
    """Return this process's connection to a host; addresses are never used twice."""
    return TaskChannel(address, timeout)


@dataclass(frozen=True, slots=True)
class HostIntake:
    """Takes the records of a source task's host.

    Parameters
    ----------
    address
        Where the host listens.
    timeout
        How long an answer may take.
    """

    address: str
    timeout: timedelta = timedelta(minutes=1)

    def take(self, epoch: int, batch: int) -> Taken:
        """Return what the host gives for a batch: the same again until it is committed."""
        del epoch
        polled = _channel(self.address, self.timeout).poll(
            batch, max_records=_MOST_RECORDS, max_bytes=_MOST_BYTES
        )
        return records_in(polled, round(time.time() * 1000))


@dataclass(frozen=True, slots=True)
class HostOutlet:
    """Hands messages over to a sink task's host.

    Parameters
    ----------
    address
        Where the host listens.
    timeout
        How long an answer may take.
    """

    address: str
    timeout: timedelta = timedelta(minutes=1)

    def put(self, epoch: int, batch: int, messages: pa.RecordBatch) -> None:
        """Hand messages over."""
        rows = messages_out(messages)
        ends = _ends(messages)
        channel = _channel(self.address, self.timeout)
        ranges = [(place, 0, end) for place, end in ends.items()]
        channel.put_ahead(batch, ranges, rows, epoch=epoch)
        _unflushed.setdefault((self.address, epoch, batch), {}).update(ends)

    def flush(self, epoch: int, batch: int) -> None:
        """Have the task make sure of the batch."""
        ends = _unflushed.pop((self.address, epoch, batch), {})
        _channel(self.address, self.timeout).flush(batch, ends, epoch=epoch)

    def refused(self, epoch: int, batch: int) -> pa.RecordBatch | None:
        """Return the dead letters of the batch."""
        del epoch
        letters = _channel(self.address, self.timeout).letters(batch)
        return None if letters is None else _wire_columns(letters, round(time.time() * 1000))


#: What a task of Spark has put and not flushed: it does both, in one process.
_unflushed: dict[tuple[str, int, int], dict[Queue, int]] = {}


class HostImpulse:
    """Wakes the driver when a source task's host has records, and passes commits on to the host.

    Parameters
    ----------
    address
        Where the host listens.
    committed
        Gives the last committed batch.
    """

    def __init__(self, address: str, committed: Callable[[], int]) -> None:
        self._channel = TaskChannel(address, timedelta(seconds=30))
        self._committed = committed
        self._told = 0
        #: How many queues a topic shall have that is made for the task, where the task says so.
        self.queues: dict[str, int] = {}

    @property
    def waiting(self) -> int:
        """How many records the host had when it was asked last."""
        return self._channel.waiting

    def wait(self, seconds: float) -> Sequence[str] | None:
        """Wait until the host has records."""
        committed = self._committed()
        if committed > self._told:
            self._channel.committed(committed)
            self._told = committed
        found = self._channel.await_topics(timedelta(seconds=seconds))
        if found is None:
            return None
        self.queues |= {topic: count for topic, count in found.items() if count is not None}
        return list(found)


def records_in(polled: PolledBatch, now: int) -> Taken:
    """Put what a host gave into the columns of an intake; records without a time have this one."""
    positions = [
        (position_key(partition).decode(), None if at is None else dict(at))
        for partition, at in polled.positions
    ]
    return Taken(_wire_columns(polled.rows, now), positions)


def _wire_columns(rows: pa.RecordBatch, now: int) -> pa.RecordBatch:
    columns = {name: rows.column(name) for name in ("topic", "queue", "key", "value")}
    columns["properties"] = _encoded(rows.column("properties"))
    columns["timestamp"] = pc.fill_null(rows.column("timestamp"), now)
    return pa.RecordBatch.from_pydict(columns)


def _encoded(properties: pa.MapArray) -> pa.BinaryArray:
    if properties.null_count == len(properties):
        return pa.array([b""] * len(properties), pa.binary())
    rows = properties.to_pylist()
    return pa.array([encode_properties(dict(row)) if row else b"" for row in rows], pa.binary())


def messages_out(messages: pa.RecordBatch) -> pa.RecordBatch:
    """Put messages into the columns that a host takes; a message without a body has no value."""
    names = messages.column("queue")
    places = [place_of_queue(name) for name in names.dictionary.to_pylist()]
    raw = messages.column("properties")
    body = messages.column("body")
    flags = messages.column("sys_flag")
    packed = pc.not_equal(pc.bit_wise_and(flags, int(SysFlag.COMPRESSED)), 0)
    empty = pc.and_not(pc.equal(pc.binary_length(body), 0), packed)
    columns = {
        "topic": _spread(names, [place.topic for place in places], pa.string()),
        "broker": _spread(names, [place.broker for place in places], pa.string()),
        "queue": _spread(names, [place.queue_id for place in places], pa.int32()),
        "offset": messages.column("offset"),
        "key": key_bytes(raw),
        "value": pc.if_else(empty, _NO_VALUE, body) if pc.any(empty).as_py() else body,
        "properties": property_pairs(raw),
        "timestamp": messages.column("timestamp"),
    }
    rows = pa.RecordBatch.from_pydict(columns, schema=SINK_SCHEMA)
    if not pc.any(packed).as_py():
        return rows
    return rows.append_column(PACKED, pc.if_else(packed, flags, None))


def _spread(names: pa.DictionaryArray, values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind).take(names.indices)


def _ends(messages: pa.RecordBatch) -> dict[Queue, int]:
    names = messages.column("queue")
    table = pa.table({"queue": names.indices, "offset": messages.column("offset")})
    found = table.group_by("queue").aggregate([("offset", "max")]).to_pydict()
    known = names.dictionary.to_pylist()
    return {
        place_of_queue(known[number]): last + 1
        for number, last in zip(found["queue"], found["offset_max"], strict=True)
    }


def place_of_queue(name: str) -> Queue:
    """Return the place of a queue that has a name of RocketMQ's, ``topic@broker@number``."""
    queue = MessageQueue.parse(name)
    return Queue(queue.topic, queue.broker, queue.queue_id)
