"""From a source task to its topics: transforms, then converters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from headrace.connect.columns import PROPERTIES, SOURCE_SCHEMA
from headrace.connect.config import Config, ConfigDeclaration, Masking
from headrace.connect.config.chain import Link, converter_links, links as read_links
from headrace.connect.handling.conversion import Converters
from headrace.connect.handling.failures import Handling, Skipped, TransformLink, transformed
from headrace.connect.handling.retrying import ErrorPolicy, HandlingStage
from headrace.connect.handling.sink_chain import SinkChain
from headrace.connect.plugins.catalog import Catalog
from headrace.connect.records import Position, SourceBatch, SourceRecord
from headrace.errors import ConnectorConfigError, HeadraceError, ProcessingError

if TYPE_CHECKING:
    from headrace.connect.converters import Converter
    from headrace.connect.plugins import SourceTask
    from headrace.connect.predicates import Predicate


class Encoded(NamedTuple):
    """Rows for topics, and the positions between them.

    ``positions[i]`` is where the source stands after the first ``ends[i]`` rows.  A record that was
    dropped or left out has a position but no row.
    """

    rows: pa.RecordBatch
    ends: Sequence[int]
    positions: Sequence[tuple[Position, Position | None]]


class SourceChain:
    """Turns what a source task returns into rows for topics.

    Columns stay columns where no transform looks at single records.

    Examples
    --------
    >>> from headrace.connect.config import Masking
    >>> from headrace.connect.handling import Converters, ErrorPolicy
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
        return self.handling.task_retrying.call(task.poll)

    def encode(self, polled: Sequence[SourceRecord] | SourceBatch) -> Encoded:
        """Return the rows, and the positions between them.

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
        positions = [(record.partition, record.offset) for record in polled]
        if self._links:
            made = [transformed(self._links, one, one, self.handling) for one in polled]
            records = list(chain.from_iterable(made))
        else:
            made, records = None, list(polled)
        rows = self._in_one_go(records)
        if rows is None:
            return self._one_by_one(polled, made or [[one] for one in polled], positions)
        ends = range(1, len(polled) + 1) if made is None else list(accumulate(map(len, made)))
        return Encoded(rows, ends, positions)

    def _in_one_go(self, records: Sequence[SourceRecord]) -> pa.RecordBatch | None:
        """Convert records whose conversion meets no failure; ``None`` where one does."""
        converters = self._converters
        try:
            columns = {
                "topic": pa.array([one.topic for one in records], pa.string()),
                "queue": pa.array([one.queue for one in records], pa.int32()),
                "key": pa.array([self._key_of(one) for one in records], pa.binary()),
                "value": self._values_of(records),
                "properties": pa.array(
                    [
                        converters.properties_of(one.topic, one.headers) if one.headers else None
                        for one in records
                    ],
                    PROPERTIES,
                ),
                "timestamp": pa.array([one.timestamp_ms for one in records], pa.int64()),
            }
        except Exception:  # noqa: BLE001 - shown again, one by one, with what is due to it
            return None
        return pa.RecordBatch.from_pydict(columns, schema=SOURCE_SCHEMA)

    def _values_of(self, records: Sequence[SourceRecord]) -> pa.Array:
        """Convert all values: texts of one topic and schema as a column."""
        values = [one.value for one in records]
        if set(map(type, values)) == {str}:
            first = records[0]
            topic, schema = first.topic, first.value_schema
            if all(one.topic == topic and one.value_schema is schema for one in records):
                texts = pa.array(values, pa.string())
                return self._converters.value.to_column(topic, schema, texts)
        return pa.array([self._value_of(one) for one in records], pa.binary())

    def _one_by_one(
        self,
        polled: Sequence[SourceRecord],
        made: Sequence[Sequence[SourceRecord]],
        positions: Sequence[tuple[Position, Position | None]],
    ) -> Encoded:
        rows: list[tuple[Any, ...]] = []
        ends = []
        for origin, records in zip(polled, made, strict=True):
            found = [self._row_of(one, origin) for one in records]
            # All of what a record became goes out, or nothing.
            rows += [] if None in found else [row for row in found if row is not None]
            ends.append(len(rows))
        columns = list(zip(*rows, strict=True)) or [()] * len(SOURCE_SCHEMA)
        named = dict(zip(SOURCE_SCHEMA.names, columns, strict=True))
        return Encoded(pa.RecordBatch.from_pydict(named, schema=SOURCE_SCHEMA), ends, positions)

    def _row_of(self, record: SourceRecord, origin: SourceRecord) -> tuple[Any, ...] | None:
        step, converters = self.handling.step, self._converters
        key = step(HandlingStage.KEY_CONVERTER, converters.key, self._key_of, record, origin)
        if isinstance(key, Skipped):
            return None
        value = step(
            HandlingStage.VALUE_CONVERTER, converters.value, self._value_of, record, origin
        )
        if isinstance(value, Skipped):
            return None
        properties = None
        if record.headers:
            found = step(
                HandlingStage.HEADER_CONVERTER,
                converters.header,
                self._properties_of,
                record,
                origin,
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


# Makes the chain of a task out of its connector's config.


def source_chain(
    connector: str,
    task: int,
    texts: Mapping[str, str],
    *,
    wait: Callable[[float], bool],
    masking: Masking | None = None,
    catalog: Catalog | None = None,
    logger: logging.Logger | None = None,
) -> SourceChain:
    """Make the chain of a source task.

    Parameters
    ----------
    connector, task
        Whose it is.
    texts
        The connector's config, with its providers resolved: also what the connector itself does
        not copy into its task configs.
    wait
        Waits so many seconds, and returns whether the task was asked to stop meanwhile.
    masking
        Hides secrets in logs and dead letters; it learns those of the parts, too.
    catalog
        Where plugins are found.
    logger
        Where failures are logged.

    Raises
    ------
    ConnectorConfigError
        A transform, a predicate, a converter or ``errors.*`` is configured wrongly.
    PluginError
        One of them cannot be loaded: it is never left out.

    Examples
    --------
    >>> texts = {"transforms": "t", "transforms.t.type": "HoistField$Value",
    ...          "transforms.t.field": "line"}
    >>> chain = source_chain("lines", 0, texts, wait=lambda seconds: False)
    >>> from headrace.connect.records import SourceRecord
    >>> record = SourceRecord(partition={}, offset={}, topic="t", value="hello")
    >>> chain.encode([record]).rows.column("value").to_pylist()
    [b'{"line":"hello"}']
    """
    parts = _ChainParts(texts, catalog or Catalog.installed(), masking or Masking())
    policy = ErrorPolicy.of(texts, "source")
    handling = Handling(connector, task, policy, masking=parts.masking, wait=wait, logger=logger)
    return SourceChain(parts.links, parts.converters, handling)


def sink_chain(
    connector: str,
    task: int,
    texts: Mapping[str, str],
    *,
    wait: Callable[[float], bool],
    masking: Masking | None = None,
    catalog: Catalog | None = None,
    logger: logging.Logger | None = None,
) -> SinkChain:
    """Make the chain of a sink task; the parameters are those of :func:`source_chain`."""
    parts = _ChainParts(texts, catalog or Catalog.installed(), masking or Masking())
    policy = ErrorPolicy.of(texts, "sink")
    handling = Handling(connector, task, policy, masking=parts.masking, wait=wait, logger=logger)
    return SinkChain(parts.links, parts.converters, handling)


class _ChainParts:
    """Makes transforms, predicates and converters, and has their secrets hidden."""

    def __init__(self, texts: Mapping[str, str], catalog: Catalog, masking: Masking) -> None:
        self._catalog = catalog
        self.masking = masking
        self.links = self._links(texts)
        self.converters = self._converters(texts)

    def _links(self, texts: Mapping[str, str]) -> list[TransformLink]:
        found, problems = read_links(texts)
        if problems:
            raise ConnectorConfigError.of((one.key, one.message) for one in problems)
        predicates: dict[str, Predicate] = {
            one.alias: self._made(one) for one in found if one.kind == "predicates"
        }
        return [
            TransformLink(
                self._made(one),
                None if one.predicate is None else predicates[one.predicate],
                one.negate,
            )
            for one in found
            if one.kind == "transforms"
        ]

    def _made(self, link: Link) -> Any:
        """Make a transform or a predicate."""
        kind = self._catalog.load(link.plugin, link.kind)
        made = kind()
        config = self._read(link, kind.config)
        try:
            made.configure(config)
        except HeadraceError:
            raise
        except ValueError as error:
            raise ConnectorConfigError.of([(link.prefix.rstrip("."), str(error))]) from error
        return made

    def _read(self, link: Link, declaration: ConfigDeclaration) -> Config:
        problems = declaration.problems(link.texts)
        if problems:
            wrong = ((link.prefix + one.key, one.message) for one in problems)
            raise ConnectorConfigError.of(wrong)
        config = declaration.parse(link.texts)
        self.masking.learn_typed(config)
        return config

    def _converters(self, texts: Mapping[str, str]) -> Converters:
        made: dict[str, Any] = {}
        for link in converter_links(texts):
            kind: type[Converter] = self._catalog.load(link.plugin, link.kind)
            self._read(link, kind.config)
            name = link.alias.partition(".")[0]
            made[name] = kind.of(link.texts, is_key=name == "key")
        return Converters(**made)
