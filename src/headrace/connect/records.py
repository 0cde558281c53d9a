"""Records: what source tasks return and sink tasks take, one at a time or as Arrow columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec
import orjson

from headrace.connect.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa


Position = Mapping[str, Any]
"""A source's partition, or where it stands in one: names to values of JSON."""


def position_key(partition: Position) -> bytes:
    """Write a partition so that equal partitions have equal bytes, whatever their order.

    >>> position_key({"b": 1, "a": "x"}) == position_key({"a": "x", "b": 1})
    True
    """
    return orjson.dumps(dict(partition), option=orjson.OPT_SORT_KEYS)


class Queue(NamedTuple):
    """One queue of a topic."""

    topic: str
    broker: str
    queue_id: int


class Header(NamedTuple):
    """A named value that travels beside key and value."""

    key: str
    value: Any
    schema: Schema | None = None


class _Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What source and sink records share."""

    topic: str
    value: Any = None
    key: Any = None
    value_schema: Schema | None = None
    key_schema: Schema | None = None
    headers: tuple[Header, ...] = ()
    #: Milliseconds since 1970.
    timestamp_ms: int | None = None

    def replace(self, **changes: Any) -> Self:
        """Return a copy in which the named fields differ."""
        return msgspec.structs.replace(self, **changes)

    def header(self, key: str) -> Header | None:
        """Return the last header of that name."""
        return next((one for one in reversed(self.headers) if one.key == key), None)


class SourceRecord(_Record, frozen=True, kw_only=True, gc=False):
    """One record from outside, on its way to a topic.

    Parameters
    ----------
    partition, offset
        Where the record stands in its source: a restart goes on after the last offset of each
        partition that was committed.
    topic
        Where it goes.
    value, key, value_schema, key_schema
        What it says; see :mod:`headrace.connect.schema`.
    headers
        Named values beside it.
    timestamp_ms
        Its time in milliseconds since 1970; the time of sending where it has none.
    queue
        The queue of the topic; chosen by the key where it is ``None``.

    Examples
    --------
    >>> record = SourceRecord(
    ...     partition={"file": "a.txt"}, offset={"byte": 6}, topic="lines", value="hello"
    ... )
    >>> record.replace(topic="words").topic
    'words'
    """

    partition: Position
    offset: Position
    queue: int | None = None


class SinkRecord(_Record, frozen=True, kw_only=True, gc=False):
    """One record of a topic, on its way out.

    Parameters
    ----------
    queue, offset
        Where it stands in its topic.
    topic
        The topic that it counts as: that of its queue unless a transform has renamed it.

    Examples
    --------
    >>> queue = Queue("lines", "broker-a", 0)
    >>> SinkRecord(topic="lines", queue=queue, offset=7, value="hello").offset
    7
    """

    queue: Queue
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceBatch:
    """Many records as Arrow columns, with the one position behind the last of them.

    The batch is committed whole, so it needs no object and no position per record.

    Parameters
    ----------
    partition, offset
        The position after the whole batch; no offset says that the partition is gone, or done with
        for good, so that nobody need remember it.
    topic
        The topic of all its records.
    value, key
        Columns of equal length, of any Arrow type that the converter takes.
    timestamp_ms, queue
        Columns of int64 and int32, where there are any.
    headers
        A column of ``map<string, binary>``, where there is one.
    value_schema, key_schema
        What the columns are; ``None`` says that they have no schema, as in records.
        :func:`headrace.connect.schema.schema_of_arrow` makes one of an Arrow type.

    Examples
    --------
    >>> import pyarrow as pa
    >>> batch = SourceBatch(
    ...     partition={"file": "a"}, offset={"byte": 9}, topic="lines", value=pa.array(["x", "y"])
    ... )
    >>> [record.value for record in batch.records()]
    ['x', 'y']
    """

    partition: Position
    offset: Position | None
    topic: str
    value: pa.Array
    key: pa.Array | None = None
    timestamp_ms: pa.Array | None = None
    queue: pa.Array | None = None
    headers: pa.Array | None = None
    value_schema: Schema | None = None
    key_schema: Schema | None = None

    def __len__(self) -> int:
        return len(self.value)

    def records(self) -> Iterator[SourceRecord]:
        """Yield the batch as records; each carries the position of the whole batch."""
        values, keys, times, queues = (
            _pylist(column, len(self))
            for column in (self.value, self.key, self.timestamp_ms, self.queue)
        )
        headers = _headers(self.headers, len(self))
        for row, value in enumerate(values):
            yield SourceRecord(
                partition=self.partition,
                offset=self.offset or {},
                topic=self.topic,
                value=value,
                key=keys[row],
                value_schema=self.value_schema,
                key_schema=self.key_schema,
                headers=headers[row],
                timestamp_ms=times[row],
                queue=queues[row],
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkBatch:
    """Many records of one queue as Arrow columns, in the order of their offsets.

    Parameters
    ----------
    queue
        Where they all stand.
    offset
        A column of int64.
    value, key
        Columns after the converter.
    timestamp_ms
        A column of int64.
    headers
        A column of ``map<string, binary>``, where there is one.
    """

    queue: Queue
    offset: pa.Array
    value: pa.Array
    key: pa.Array | None = None
    timestamp_ms: pa.Array | None = None
    headers: pa.Array | None = None
    value_schema: Schema | None = None
    key_schema: Schema | None = None

    def __len__(self) -> int:
        return len(self.offset)

    def __getitem__(self, rows: slice) -> SinkBatch:
        """Return some rows that follow each other, such as ``batch[2:]``."""
        start, end, _ = rows.indices(len(self))
        columns = {
            name: column.slice(start, max(0, end - start))
            for name in ("offset", "value", "key", "timestamp_ms", "headers")
            if (column := getattr(self, name)) is not None
        }
        return replace(self, **columns)

    def records(self) -> list[SinkRecord]:
        """Return the batch as records."""
        keys, times = (_pylist(column, len(self)) for column in (self.key, self.timestamp_ms))
        headers = _headers(self.headers, len(self))
        return [
            SinkRecord(
                topic=self.queue.topic,
                queue=self.queue,
                offset=offset,
                value=value,
                key=keys[row],
                value_schema=self.value_schema,
                key_schema=self.key_schema,
                headers=headers[row],
                timestamp_ms=times[row],
            )
            for row, (offset, value) in enumerate(
                zip(self.offset.to_pylist(), _pylist(self.value, len(self)), strict=True)
            )
        ]


def _pylist(column: pa.Array | None, length: int) -> Sequence[Any]:
    if column is None:
        return [None] * length
    values = column.to_pylist()
    return (
        [_with_dicts(value, column.type) for value in values] if _has_maps(column.type) else values
    )


def _has_maps(kind: pa.DataType) -> bool:
    return "map<" in str(kind)


def _with_dicts(value: Any, kind: pa.DataType) -> Any:
    """Make the dicts of Arrow's maps, which come as lists of pairs."""
    if value is None or not _has_maps(kind):
        return value
    if str(kind).startswith("map<"):
        return {key: _with_dicts(item, kind.item_type) for key, item in value}
    if isinstance(value, dict):
        return {name: _with_dicts(item, kind.field(name).type) for name, item in value.items()}
    return [_with_dicts(item, kind.value_type) for item in value]


def _headers(column: pa.Array | None, length: int) -> list[tuple[Header, ...]]:
    # Headers may have the same name twice, so they stay pairs.
    rows = [None] * length if column is None else column.to_pylist()
    return [tuple(Header(key, value) for key, value in pairs or ()) for pairs in rows]
