"""Between a task and the data channel: converters and transforms, behind one small interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import orjson
import pyarrow as pa

from headrace.connect.hosts.ahead import Polled
from headrace.connect.hosts.columns import PROPERTIES, SOURCE_SCHEMA
from headrace.connect.records import Header, Queue, SinkRecord, SourceBatch, SourceRecord

if TYPE_CHECKING:
    from headrace.connect.plugins import SinkTask

__all__ = ["PlainSinkChain", "PlainSourceChain", "SinkChain", "SourceChain"]


class SourceChain(Protocol):
    """Turns what a source task gave into rows."""

    def encode(self, polled: Sequence[SourceRecord] | SourceBatch) -> Polled:
        """Give the rows, and the position after each."""


class SinkChain(Protocol):
    """Turns rows into what a sink task takes."""

    def deliver(self, rows: pa.RecordBatch, task: SinkTask) -> None:
        """Call the task's ``put`` or ``put_batch`` with them."""


class PlainSourceChain:
    """Bytes and texts as they are, everything else as JSON."""

    def encode(self, polled: Sequence[SourceRecord] | SourceBatch) -> Polled:
        """Give the rows, and the position after each."""
        if isinstance(polled, SourceBatch):
            return _columns_of(polled)
        columns = {
            "topic": pa.array([one.topic for one in polled], pa.string()),
            "queue": pa.array([one.queue for one in polled], pa.int32()),
            "key": pa.array([_as_bytes(one.key) for one in polled], pa.binary()),
            "value": pa.array([_as_bytes(one.value) for one in polled], pa.binary()),
            "properties": pa.array([_properties(one.headers) for one in polled], PROPERTIES),
            "timestamp": pa.array([one.timestamp_ms for one in polled], pa.int64()),
        }
        rows = pa.RecordBatch.from_pydict(columns, schema=SOURCE_SCHEMA)
        return Polled(
            rows, range(1, len(polled) + 1), [(one.partition, one.offset) for one in polled]
        )


def _columns_of(batch: SourceBatch) -> Polled:
    count = len(batch)
    columns = {
        "topic": pa.repeat(pa.scalar(batch.topic, pa.string()), count),
        "queue": _column(batch.queue, pa.int32(), count),
        "key": _column(batch.key, pa.binary(), count),
        "value": _column(batch.value, pa.binary(), count),
        "properties": _column(batch.headers, PROPERTIES, count),
        "timestamp": _column(batch.timestamp_ms, pa.int64(), count),
    }
    rows = pa.RecordBatch.from_pydict(columns, schema=SOURCE_SCHEMA)
    return Polled(rows, [count], [(batch.partition, batch.offset)])


def _column(column: pa.Array | None, kind: pa.DataType, count: int) -> pa.Array:
    return pa.nulls(count, kind) if column is None else column.cast(kind)


def _as_bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return orjson.dumps(value)


def _properties(headers: Sequence[Header]) -> list[tuple[str, str]] | None:
    return [(one.key, _text(one.value)) for one in headers] if headers else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else (_as_bytes(value) or b"").decode()


class PlainSinkChain:
    """Values as bytes, properties as headers."""

    def deliver(self, rows: pa.RecordBatch, task: SinkTask) -> None:
        """Call the task's ``put`` with records."""
        columns = rows.to_pydict()
        task.put(
            [
                SinkRecord(
                    topic=topic,
                    queue=Queue(topic, broker, queue),
                    offset=offset,
                    key=key,
                    value=value,
                    headers=tuple(Header(*pair) for pair in properties or ()),
                    timestamp_ms=time,
                )
                for topic, broker, queue, offset, key, value, properties, time in zip(
                    *(columns[name] for name in rows.schema.names), strict=True
                )
            ]
        )
