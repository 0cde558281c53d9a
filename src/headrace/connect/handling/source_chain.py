"""From a source task to its topics: transforms, then converters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from headrace.connect.handling.failures import Handling, Skipped
from headrace.connect.handling.links import TransformLink, transformed
from headrace.connect.handling.rows import PROPERTIES, SOURCE_SCHEMA
from headrace.connect.handling.stages import Stage
from headrace.connect.records import Position, SourceBatch, SourceRecord
from headrace.errors import ProcessingError

if TYPE_CHECKING:
    from headrace.connect.handling.conversion import Converters
    from headrace.connect.plugins import SourceTask

__all__ = ["Encoded", "SourceChain"]


class Encoded(NamedTuple):
    """Rows for topics, and the positions between them.

    ``positions[i]`` is where the source stands after the first ``ends[i]`` rows.  A record that was
    dropped or left out has a position but no row.
    """

    rows: pa.RecordBatch
    ends: Sequence[int]
    positions: Sequence[tuple[Position, Position]]


class SourceChain:
    """Turns what a source task gives into rows for topics.

    Columns stay columns where no transform looks at single records.

    Examples
    --------
    >>> from headrace.connect.handling import Converters, ErrorPolicy, Masking
    >>> handling = Handling(
    ...     "lines", 0, ErrorPolicy(), masking=Masking([]), wait=lambda seconds: False
    ... )
    >>> chain = SourceChain((), Converters(), handling)
    >>> record = SourceRecord(partition={}, offset={"n": 1}, topic="t", value="hello")
    >>> encoded = chain.encode([record])
    >>> encoded.rows.column("value").to_pylist(), encoded.positions
    ([b'hello'], [({}, {'n': 1})])
    """

    def __init__(
        self, links: Sequence[TransformLink], converters: Converters, handling: Handling
    ) -> None:
        self._links = links
        self._converters = converters
        self.handling = handling

    def poll(self, task: SourceTask) -> Sequence[SourceRecord] | SourceBatch | None:
        """Poll a task, again and again where it raises errors that pass by themselves."""
        return self.handling.retrying.call(task.poll)

    def encode(self, polled: Sequence[SourceRecord] | SourceBatch) -> Encoded:
        """Give the rows, and the positions between them.

        Raises
        ------
        Exception
            What a transform or a converter raised, when the policy does not tolerate it.
        """
        if not isinstance(polled, SourceBatch):
            return self._encode_records(polled)
        if not self._links:
            try:
                return self._encode_columns(polled)
            except (ProcessingError, ValueError, TypeError, pa.ArrowException):
                if not self.handling.policy.tolerates:
                    raise
                # One by one it shows which record it is.
        encoded = self._encode_records(list(polled.records()))
        position = (polled.partition, polled.offset)
        return Encoded(encoded.rows, [encoded.rows.num_rows], [position])

    def close(self) -> None:
        """Close all transforms and predicates."""
        for link in self._links:
            link.close()

    def _encode_columns(self, batch: SourceBatch) -> Encoded:
        size, topic, converters = len(batch), batch.topic, self._converters
        key = None
        if batch.key is not None:
            key = converters.key.to_column(topic, batch.key_schema, batch.key)
        columns = {
            "topic": pa.repeat(pa.scalar(topic, pa.string()), size),
            "queue": _column(batch.queue, pa.int32(), size),
            "key": _column(key, pa.binary(), size),
            "value": converters.value.to_column(topic, batch.value_schema, batch.value),
            "properties": _column(batch.headers, PROPERTIES, size),
            "timestamp": _column(batch.timestamp_ms, pa.int64(), size),
        }
        rows = pa.RecordBatch.from_pydict(columns, schema=SOURCE_SCHEMA)
        return Encoded(rows, [size], [(batch.partition, batch.offset)])

    def _encode_records(self, polled: Sequence[SourceRecord]) -> Encoded:
        rows: list[tuple[Any, ...]] = []
        ends, positions = [], []
        for record in polled:
            rows += self._rows_of(record)
            ends.append(len(rows))
            positions.append((record.partition, record.offset))
        columns = list(zip(*rows, strict=True)) or [()] * len(SOURCE_SCHEMA)
        named = dict(zip(SOURCE_SCHEMA.names, columns, strict=True))
        return Encoded(pa.RecordBatch.from_pydict(named, schema=SOURCE_SCHEMA), ends, positions)

    def _rows_of(self, record: SourceRecord) -> list[tuple[Any, ...]]:
        records: Sequence[SourceRecord] = [record]
        if self._links:
            records = transformed(self._links, record, record, self.handling)
        rows = []
        for one in records:
            row = self._row_of(one, record)
            # All of what a record became goes out, or nothing.
            if row is None:
                return []
            rows.append(row)
        return rows

    def _row_of(self, record: SourceRecord, origin: SourceRecord) -> tuple[Any, ...] | None:
        step, converters = self.handling.step, self._converters
        key = step(Stage.KEY_CONVERTER, converters.key, self._key_of, record, origin)
        if isinstance(key, Skipped):
            return None
        value = step(Stage.VALUE_CONVERTER, converters.value, self._value_of, record, origin)
        if isinstance(value, Skipped):
            return None
        properties = None
        if record.headers:
            found = step(
                Stage.HEADER_CONVERTER, converters.header, self._properties_of, record, origin
            )
            if isinstance(found, Skipped):
                return None
            properties = found
        return record.topic, record.queue, key, value, properties, record.timestamp_ms

    def _key_of(self, record: SourceRecord) -> bytes | None:
        if record.key is None and record.key_schema is None:
            return None
        return self._converters.key.to_bytes(record.topic, record.key_schema, record.key)

    def _value_of(self, record: SourceRecord) -> bytes | None:
        return self._converters.value.to_bytes(record.topic, record.value_schema, record.value)

    def _properties_of(self, record: SourceRecord) -> list[tuple[str, str]]:
        return self._converters.properties_of(record.topic, record.headers)


def _column(column: pa.Array | None, kind: pa.DataType, size: int) -> pa.Array:
    return pa.nulls(size, kind) if column is None else column.cast(kind)
