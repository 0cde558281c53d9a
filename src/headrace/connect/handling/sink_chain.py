"""From topics to a sink task: converters, transforms, put."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.connect.columns import PACKED
from headrace.connect.handling.conversion import Converters, RowRef, SinkRow, queue_runs
from headrace.connect.handling.failures import (
    Handling,
    Origin,
    Skipped,
    TransformLink,
    rows_of,
    transformed,
)
from headrace.connect.handling.retrying import HandlingStage, is_retriable
from headrace.connect.plugins import SinkTask
from headrace.connect.records import Header, Queue, SinkBatch, SinkRecord
from headrace.protocol.messages import readable

if TYPE_CHECKING:
    from headrace.connect.converters import Converted, Converter
    from headrace.connect.schema import Schema


# Puts records into a sink, and finds the one that it refuses.


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
            self._put(self._task.put_batch, batch, lambda part: part.records()[0])

    def _put(
        self, put: Callable[[Any], None], part: Any, first: Callable[[Any], SinkRecord]
    ) -> None:
        try:
            self._handling.task_retrying.call(partial(put, part))
        except Exception as error:
            if is_retriable(error) or not self._handling.policy.tolerates_put:
                error.add_note(
                    f"in stage {HandlingStage.TASK_PUT}, with {len(part)} records; "
                    "errors.put.tolerance=all would find the one that is refused"
                )
                raise
            if len(part) == 1:
                origin = self._origin_of(first(part))
                self._handling.failed(HandlingStage.TASK_PUT, self._task, error, origin)
                return
        else:
            return
        middle = len(part) // 2
        self._put(put, part[:middle], first)
        self._put(put, part[middle:], first)


_HEADERS: Final = pa.map_(pa.string(), pa.binary())


class SinkChain:
    """Turns rows of topics into what a sink task takes, and puts it there.

    Columns stay columns where no transform looks at single records and the task takes columns.

    Examples
    --------
    >>> from headrace.connect.config import Masking
    >>> from headrace.connect.handling import Converters, ErrorPolicy
    >>> from headrace.connect.columns import SINK_SCHEMA
    >>> class Shown(SinkTask):
    ...     def put(self, records):
    ...         print([record.value for record in records])
    >>> handling = Handling(
    ...     "lines", 0, ErrorPolicy(), masking=Masking([]), wait=lambda seconds: False
    ... )
    >>> chain = SinkChain((), Converters(), handling)
    >>> row = {"topic": "t", "broker": "b", "queue": 0, "offset": 7, "value": b"hello"}
    >>> chain.deliver(pa.RecordBatch.from_pylist([row], schema=SINK_SCHEMA), Shown())
    ['hello']
    """

    def __init__(
        self, links: Sequence[TransformLink], converters: Converters, handling: Handling
    ) -> None:
        self._links = links
        self._converters = converters
        self.handling = handling
        self._rows: pa.RecordBatch | None = None
        self._places: dict[tuple[Queue, int], int] | None = None

    def deliver(self, rows: pa.RecordBatch, task: SinkTask) -> None:
        """Call the task's ``put`` or ``put_batch`` with the rows.

        Raises
        ------
        Exception
            What a step raised, when the policy does not tolerate it.
        """
        self._rows, self._places = rows, None
        putter = Putter(task, self.handling, self._origin_of)
        if not self._links and takes_columns(type(task)):
            for queue, run in queue_runs(rows):
                batch = self._batch_of(queue, run)
                if batch is None:
                    putter.put(self._records_of(queue, run))
                else:
                    putter.put_batch(batch)
            return
        records = [
            record for queue, run in queue_runs(rows) for record in self._records_of(queue, run)
        ]
        putter.put(records)

    def report(self, task: SinkTask, record: SinkRecord, error: Exception) -> None:
        """Take a record that the task itself found to be bad.

        Raises
        ------
        Exception
            The error itself, when the policy does not tolerate it.
        """
        self.handling.report(task, error, self._origin_of(record))

    def take_letters(self) -> pa.RecordBatch | None:
        """Return the dead letters since the last call, in the columns of a source's records.

        They must be in their topic before the offsets of the records are committed.
        """
        letters = self.handling.take_letters()
        return rows_of(letters) if letters else None

    def close(self) -> None:
        """Close all transforms and predicates."""
        for link in self._links:
            link.close()

    def _batch_of(self, queue: Queue, run: pa.RecordBatch) -> SinkBatch | None:
        """Return a queue's rows as columns, or ``None`` where that must go one by one."""
        if PACKED.name in run.schema.names:
            return None
        value = self._converters.value.from_column(queue.topic, run.column("value"))
        key = self._converters.key.from_column(queue.topic, run.column("key"))
        if value is None or key is None or self._reads_headers(run):
            return None
        return SinkBatch(
            queue=queue,
            offset=run.column("offset"),
            value=value.values,
            key=key.values,
            timestamp_ms=run.column("timestamp"),
            headers=run.column("properties").cast(_HEADERS),
            value_schema=value.schema,
            key_schema=key.schema,
        )

    def _reads_headers(self, run: pa.RecordBatch) -> bool:
        properties = run.column("properties")
        return self._converters.header is not None and properties.null_count < len(properties)

    def _records_of(self, queue: Queue, run: pa.RecordBatch) -> list[SinkRecord]:
        records: list[SinkRecord] = []
        for row, record in self._read(queue, run):
            if not self._links:
                records.append(record)
                continue
            origin = RowRef(run, row)
            records += transformed(self._links, record, origin, self.handling)
        return records

    def _read(self, queue: Queue, run: pa.RecordBatch) -> Iterator[tuple[int, SinkRecord]]:
        """Convert a queue's rows; those that are left out are missing."""
        topic, converters = queue.topic, self._converters
        keys = self._read_column(HandlingStage.KEY_CONVERTER, converters.key, run, "key")
        values = self._read_column(HandlingStage.VALUE_CONVERTER, converters.value, run, "value")
        offsets, times, properties = (
            run.column(name).to_pylist() for name in ("offset", "timestamp", "properties")
        )
        for row, (key, value) in enumerate(zip(keys, values, strict=True)):
            if key is None or value is None:
                continue
            headers = self._headers(topic, dict(properties[row] or ()), RowRef(run, row))
            if isinstance(headers, Skipped):
                continue
            yield (
                row,
                SinkRecord(
                    topic=topic,
                    queue=queue,
                    offset=offsets[row],
                    key=key[1],
                    key_schema=key[0],
                    value=value[1],
                    value_schema=value[0],
                    headers=headers,
                    timestamp_ms=times[row],
                ),
            )

    def _read_column(
        self, stage: HandlingStage, converter: Converter, run: pa.RecordBatch, name: str
    ) -> list[tuple[Schema | None, Any] | None]:
        """Convert one column: as a whole, or one by one; what is left out is ``None``."""
        bodies, topic = run.column(name), run.column("topic")[0].as_py()
        flags = _packed(run) if stage is HandlingStage.VALUE_CONVERTER else {}
        column = None if flags else converter.from_column(topic, bodies)
        if column is not None:
            return [(column.schema, value) for value in column.values.to_pylist()]
        found: list[tuple[Schema | None, Any] | None] = []
        for row, body in enumerate(bodies.to_pylist()):
            read = partial(_converted, converter, topic, flags.get(row, 0))
            step = self.handling.step(stage, converter, read, body, RowRef(run, row))
            found.append(None if isinstance(step, Skipped) else step)
        return found

    def _headers(
        self, topic: str, properties: Mapping[str, str], origin: RowRef
    ) -> tuple[Header, ...] | Skipped:
        read = partial(self._converters.headers_of, topic)
        if self._converters.header is None:
            return read(properties)
        converter = self._converters.header
        return self.handling.step(
            HandlingStage.HEADER_CONVERTER, converter, read, properties, origin
        )

    def _origin_of(self, record: SinkRecord) -> RowRef | SinkRow:
        """Return the row that a record was made of."""
        if self._rows is not None:
            if self._places is None:
                self._places = _places(self._rows)
            row = self._places.get((record.queue, record.offset))
            if row is not None:
                return RowRef(self._rows, row)
        return self._written(record)

    def _written(self, record: SinkRecord) -> SinkRow:
        """Write a record whose row is gone, because the task reports it late."""
        topic, converters = record.queue.topic, self._converters
        return SinkRow(
            record.queue,
            record.offset,
            None
            if record.key is None
            else converters.key.to_bytes(topic, record.key_schema, record.key),
            converters.value.to_bytes(topic, record.value_schema, record.value),
            dict(converters.properties_of(topic, record.headers)),
            record.timestamp_ms,
        )


def _packed(run: pa.RecordBatch) -> dict[int, int]:
    """Return the rows whose value cannot be unpacked, with their system flags."""
    if PACKED.name not in run.schema.names:
        return {}
    flags = run.column(PACKED.name).to_pylist()
    return {row: flag for row, flag in enumerate(flags) if flag is not None}


def _converted(converter: Converter, topic: str, flag: int, body: bytes | None) -> Converted:
    return converter.from_bytes(topic, None if body is None else readable(body, flag))


def takes_columns(kind: type[SinkTask]) -> bool:
    """Return whether tasks of a class take Arrow columns."""
    return kind.put_batch is not SinkTask.put_batch


def _places(rows: pa.RecordBatch) -> dict[tuple[Queue, int], int]:
    columns = (rows.column(name).to_pylist() for name in ("topic", "broker", "queue", "offset"))
    return {
        (Queue(topic, broker, queue), offset): row
        for row, (topic, broker, queue, offset) in enumerate(zip(*columns, strict=True))
    }
