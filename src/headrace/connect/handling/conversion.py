"""The converters of a task: key, value and headers together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connect.columns import SINK_SCHEMA
from headrace.connect.converters import Column, Converted, Converter, HeaderConverter
from headrace.connect.records import Header, Queue

if TYPE_CHECKING:
    from headrace.connect.schema import Schema


# Rows: records as they travel between a task and its topics, as Arrow columns of bytes.


@dataclass(frozen=True, slots=True)
class SinkRow:
    """One row of a sink, as it was read."""

    queue: Queue
    offset: int
    key: bytes | None
    value: bytes | None
    properties: Mapping[str, str]
    timestamp_ms: int | None


class RowRef(NamedTuple):
    """One row of a sink: made into a message only where something failed."""

    rows: pa.RecordBatch
    row: int

    def message(self) -> SinkRow:
        """Return the row as a message."""
        found = {name: self.rows.column(name)[self.row].as_py() for name in SINK_SCHEMA.names}
        return SinkRow(
            Queue(found["topic"], found["broker"], found["queue"]),
            found["offset"],
            found["key"],
            found["value"],
            dict(found["properties"] or ()),
            found["timestamp"],
        )


def queue_runs(rows: pa.RecordBatch) -> Iterator[tuple[Queue, pa.RecordBatch]]:
    """Cut rows where the queue changes.

    >>> row = {"topic": "t", "broker": "b", "queue": 0, "offset": 7}
    >>> rows = pa.RecordBatch.from_pylist([row, row, {**row, "queue": 1}], schema=SINK_SCHEMA)
    >>> [(queue.queue_id, run.num_rows) for queue, run in queue_runs(rows)]
    [(0, 2), (1, 1)]
    """
    size = rows.num_rows
    if not size:
        return
    starts = [0, *_changes(rows), size]
    columns = [rows.column(name) for name in ("topic", "broker", "queue")]
    for start, end in pairwise(starts):
        queue = Queue(*(column[start].as_py() for column in columns))
        yield queue, rows.slice(start, end - start)


def _changes(rows: pa.RecordBatch) -> list[int]:
    differs = None
    for name in ("topic", "broker", "queue"):
        column = rows.column(name)
        here = pc.not_equal(column.slice(1), column.slice(0, len(column) - 1))
        differs = here if differs is None else pc.or_(differs, here)
    changed: list[int] = pc.indices_nonzero(differs).to_pylist()
    return [one + 1 for one in changed]


# What converts where a connector names no converter.


class PlainConverter(HeaderConverter):
    r"""Bytes and texts as they are, all else as JSON; what is read is text, or else bytes.

    Examples
    --------
    >>> plain = PlainConverter.of({})
    >>> plain.to_bytes("t", None, "hello"), plain.to_bytes("t", None, {"a": 1})
    (b'hello', b'{"a":1}')
    >>> plain.from_bytes("t", b"hello").value, plain.from_bytes("t", b"\xff").value
    ('hello', b'\xff')
    """

    def write(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """Write one value."""
        del topic, schema
        if value is None or isinstance(value, bytes):
            return value
        return value.encode() if isinstance(value, str) else orjson.dumps(value, default=str)

    def read(self, topic: str, body: bytes | None) -> Converted:
        """Read one value."""
        del topic
        if body is None:
            return Converted(None, None)
        try:
            return Converted(None, body.decode())
        except UnicodeDecodeError:
            return Converted(None, body)

    def write_column(self, topic: str, schema: Schema | None, values: pa.Array) -> pa.Array | None:
        """Write a column of texts or bytes in one go."""
        del topic, schema
        kind = values.type
        texts = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        plain = texts or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        return values.cast(pa.binary()) if plain else None

    def read_column(self, topic: str, bodies: pa.Array) -> Column | None:
        """Read a column in one go where all of it is text."""
        del topic
        return Column(None, bodies.cast(pa.string()))


@dataclass(frozen=True, slots=True)
class Converters:
    """What turns records into messages, and messages into records."""

    key: Converter = field(default_factory=lambda: PlainConverter.of({}, is_key=True))
    value: Converter = field(default_factory=lambda: PlainConverter.of({}))
    #: ``None``: headers are texts, as the properties of messages are.
    header: HeaderConverter | None = None

    def properties_of(self, topic: str, headers: Sequence[Header]) -> list[tuple[str, str]]:
        """Write headers as properties; of several with one name the last one counts."""
        converter = self.header or _PLAIN
        written = {
            one.key: converter.header_to_bytes(topic, one.key, one.schema, one.value)
            for one in headers
        }
        return [(name, body.decode()) for name, body in written.items() if body is not None]

    def headers_of(self, topic: str, properties: Mapping[str, str]) -> tuple[Header, ...]:
        """Read properties as headers."""
        if self.header is None:
            return tuple(Header(*pair) for pair in properties.items())
        read = (
            (name, self.header.header_from_bytes(topic, name, text.encode()))
            for name, text in properties.items()
        )
        return tuple(Header(name, one.value, one.schema) for name, one in read)


_PLAIN = PlainConverter.of({})
