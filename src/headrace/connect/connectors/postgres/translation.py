"""Changes of rows become records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from logging import Logger
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.connect import Schema, SchemaError, SourceBatch, SourceRecord
from headrace.connect.connectors.postgres.connection import (
    Connection,
    quoted,
    quoted_name,
    table_info,
)
from headrace.connect.connectors.postgres.database import RowReader, TypeBook
from headrace.connect.connectors.postgres.pgoutput import (
    UNCHANGED,
    Begin,
    Delete,
    Insert,
    Relation,
    Row,
    Truncate,
    Unchanged,
    Update,
    lsn_text,
)
from headrace.connect.connectors.sql import TableName
from headrace.connect.schema import BOOLEAN, INT64, STRING, struct

if TYPE_CHECKING:
    from headrace.connect.records import Position


Value = dict[str, Any]

_SOURCE = struct(
    {
        "schema": STRING,
        "table": STRING,
        "lsn": STRING,
        "txId": INT64.as_optional(),
        "snapshot": BOOLEAN,
    },
    name="headrace.postgres.Source",
)
_SOURCE_ARROW = pa.struct(
    {
        "schema": pa.string(),
        "table": pa.string(),
        "lsn": pa.string(),
        "txId": pa.int64(),
        "snapshot": pa.bool_(),
    }
)


@dataclass(frozen=True, slots=True)
class ChangeTime:
    """When a change was made."""

    lsn: int
    timestamp_ms: int | None
    xid: int | None
    snapshot: bool = False

    @classmethod
    def of(cls, begin: Begin) -> ChangeTime:
        """Return the moment of a transaction."""
        return cls(begin.commit_lsn, begin.timestamp_ms, begin.xid)


@dataclass(frozen=True, slots=True)
class Made:
    """What a record says, before it has a place."""

    topic: str
    key: Value | None
    value: Value | None
    key_schema: Schema | None
    value_schema: Schema | None
    timestamp_ms: int | None

    def placed(self, partition: Position, offset: Position) -> SourceRecord:
        """Return the record, at its place."""
        return SourceRecord(
            partition=partition,
            offset=offset,
            topic=self.topic,
            key=self.key,
            value=self.value,
            key_schema=self.key_schema,
            value_schema=self.value_schema,
            timestamp_ms=self.timestamp_ms,
        )


@dataclass(frozen=True, slots=True)
class MadeColumns:
    """What many records of a table say, as columns."""

    topic: str
    key: pa.StructArray | None
    value: pa.StructArray
    key_schema: Schema | None
    value_schema: Schema
    timestamp_ms: pa.Array

    def placed(self, partition: Position, offset: Position) -> SourceBatch:
        """Return the records, which have one place."""
        return SourceBatch(
            partition=partition,
            offset=offset,
            topic=self.topic,
            key=self.key,
            value=self.value,
            key_schema=self.key_schema,
            value_schema=self.value_schema,
            timestamp_ms=self.timestamp_ms,
        )


@dataclass(slots=True)
class _ServerTable:
    """A table as the server described it last."""

    name: TableName
    topic: str
    rows: RowReader
    loads: list[Callable[[bytes], Any]]
    envelope: Schema


@dataclass(slots=True)
class Translator:
    """Knows the tables of a stream, and turns their changes into records.

    Parameters
    ----------
    connection
        An ordinary connection, for what the stream does not say.
    types
        The database's types.
    topic
        Gives a table's topic.
    wanted
        The tables to read; others may share the publication.
    envelope, tombstones, unchanged
        As the config keys output.format, tombstones.on.delete and unchanged.values say.
    """

    connection: Connection
    types: TypeBook
    topic: Callable[[TableName], str]
    wanted: frozenset[TableName]
    logger: Logger
    envelope: bool = False
    tombstones: bool = True
    unchanged: str = "read"
    _tables: dict[int, _ServerTable | None] = field(default_factory=dict)

    def learn(self, relation: Relation) -> None:
        """Take note of a table as it is from here on."""
        name = TableName(relation.schema, relation.name)
        if name not in self.wanted:
            self._tables[relation.oid] = None
            return
        keys = [one.name for one in relation.columns if one.key]
        if relation.identity not in "di":
            known = {one.name for one in relation.columns}
            found = table_info(self.connection, name).keys
            keys = list(found) if known.issuperset(found) else []
        columns = [
            self.types.column(one.name, one.type_oid, one.modifier, optional=one.name not in keys)
            for one in relation.columns
        ]
        rows = RowReader(self.topic(name), columns, keys)
        self._tables[relation.oid] = self._table(name, rows)

    def _table(self, name: TableName, rows: RowReader) -> _ServerTable:
        topic = self.topic(name)
        return _ServerTable(
            name, topic, rows, rows.loaders(self.connection), _enveloped(topic, rows)
        )

    def snapshot_rows(
        self, name: TableName, reader: RowReader, rows: Sequence[Row], moment: ChangeTime
    ) -> list[Made] | MadeColumns:
        """Turn rows of a snapshot into records: as columns, where their types allow."""
        table = self._table(name, reader)
        structs = reader.struct(rows)
        if structs is None:
            return [self._row(table, reader.value(row), "r", moment, None) for row in rows]
        return self._columns(table, structs, "r", [moment] * len(rows))

    def takes_columns(self, relation: int) -> bool:
        """Return whether new rows of a table can be told as columns."""
        table = self._tables[relation]
        return table is not None and table.rows.has_columns

    def new_rows(self, changes: Sequence[Insert], moments: Sequence[ChangeTime]) -> MadeColumns:
        """Turn new rows of one table that :meth:`takes_columns` into records, as columns."""
        table = self._tables[changes[0].relation]
        assert table is not None
        structs = table.rows.loaded_struct([change.new for change in changes], table.loads)
        return self._columns(table, structs, "c", moments)

    def _columns(
        self,
        table: _ServerTable,
        structs: pa.StructArray,
        action: str,
        moments: Sequence[ChangeTime],
    ) -> MadeColumns:
        reader, count = table.rows, len(structs)
        key = reader.struct_key(structs)
        key_schema = None if key is None else reader.key_schema
        # Rows of one moment follow each other: what it says is made once, and repeated.
        runs = [(moment, len(list(rows))) for moment, rows in groupby(moments)]
        of = np.repeat(np.arange(len(runs)), [length for _, length in runs])
        times = pa.array([moment.timestamp_ms for moment, _ in runs], pa.int64()).take(of)
        if not self.envelope:
            return MadeColumns(table.topic, key, structs, key_schema, reader.schema, times)
        sources = pa.array([_source(table, moment) for moment, _ in runs], _SOURCE_ARROW)
        parts = {
            "before": pa.nulls(count, structs.type),
            "after": structs,
            "source": sources.take(of),
            "op": pa.repeat(action, count),
            "ts_ms": times,
        }
        value = pa.StructArray.from_arrays(list(parts.values()), list(parts))
        return MadeColumns(table.topic, key, value, key_schema, table.envelope, times)

    def translate(
        self, change: Insert | Update | Delete | Truncate, moment: ChangeTime
    ) -> Iterable[Made]:
        """Turn one change into its records, in their order."""
        if isinstance(change, Truncate):
            return self._truncated(change, moment)
        table = self._tables[change.relation]
        if table is None:
            return ()
        if isinstance(change, Insert):
            return [self._row(table, self._loaded(table, change.new), "c", moment, None)]
        if isinstance(change, Update):
            return self._updated(table, change, moment)
        return self._deleted(table, self._loaded(table, change.old), moment)

    def _updated(self, table: _ServerTable, change: Update, moment: ChangeTime) -> Iterator[Made]:
        old = None if change.old is None else self._loaded(table, change.old)
        new = self._loaded(table, self._completed(table, change))
        keys = table.rows.keys
        if old is not None and any(old[key] != new[key] for key in keys):
            # Under its new key it is another row.
            yield from self._deleted(table, old, moment)
            yield self._row(table, new, "c", moment, None)
        else:
            yield self._row(table, new, "u", moment, None if change.old_is_key else old)

    def _deleted(self, table: _ServerTable, old: Value, moment: ChangeTime) -> Iterator[Made]:
        key = table.rows.key(old)
        if self.envelope:
            yield self._event(table, key, old, None, "d", moment)
            if not self.tombstones:
                return
        elif key is None:
            raise SchemaError(
                f"A row of {table.name} was deleted, and the table has no primary key by which a"
                " record could say which.",
                hint="Give the table a primary key, or set output.format=envelope.",
            )
        yield self._made(table, key, None, None, moment)

    def _truncated(self, change: Truncate, moment: ChangeTime) -> Iterator[Made]:
        for oid in change.relations:
            table = self._tables.get(oid)
            if table is None:
                continue
            if self.envelope:
                yield self._event(table, None, None, None, "t", moment)
            else:
                self.logger.warning(
                    "%s was truncated: no record can say so with output.format=row", table.name
                )

    def _row(
        self,
        table: _ServerTable,
        value: Value,
        action: str,
        moment: ChangeTime,
        before: Value | None,
    ) -> Made:
        key = table.rows.key(value)
        if self.envelope:
            return self._event(table, key, before, value, action, moment)
        return self._made(table, key, value, table.rows.schema, moment)

    def _event(
        self,
        table: _ServerTable,
        key: Value | None,
        before: Value | None,
        after: Value | None,
        action: str,
        moment: ChangeTime,
    ) -> Made:
        value = {
            "before": before,
            "after": after,
            "source": _source(table, moment),
            "op": action,
            "ts_ms": moment.timestamp_ms,
        }
        return self._made(table, key, value, table.envelope, moment)

    def _made(
        self,
        table: _ServerTable,
        key: Value | None,
        value: Value | None,
        schema: Schema | None,
        moment: ChangeTime,
    ) -> Made:
        key_schema = None if key is None else table.rows.key_schema
        return Made(table.topic, key, value, key_schema, schema, moment.timestamp_ms)

    def _loaded(self, table: _ServerTable, row: Row) -> Value:
        cells = [
            None if cell is None or isinstance(cell, Unchanged) else load(cell)
            for cell, load in zip(row, table.loads, strict=True)
        ]
        return table.rows.value(cells)

    def _completed(self, table: _ServerTable, change: Update) -> Row:
        """Find the large values that the update left alone."""
        if UNCHANGED not in change.new:
            return change.new
        places = [at for at, cell in enumerate(change.new) if isinstance(cell, Unchanged)]
        if change.old is not None and not change.old_is_key:
            known: Sequence[Any] = [change.old[at] for at in places]
        elif self.unchanged == "null":
            known = [None] * len(places)
        else:
            known = self._reread(table, change.new, places)
        cells = list(change.new)
        for at, cell in zip(places, known, strict=True):
            cells[at] = cell
        return tuple(cells)

    def _reread(
        self, table: _ServerTable, row: Row, places: Sequence[int]
    ) -> Sequence[bytes | None]:
        names = [one.name for one in table.rows.columns]
        if self.unchanged == "fail" or not table.rows.keys:
            columns = ", ".join(names[at] for at in places)
            raise SchemaError(
                f"An update of {table.name} left {columns} alone, and the server does not send the"
                " value.",
                hint="ALTER TABLE ... REPLICA IDENTITY FULL makes it send them, or set"
                " unchanged.values to read or null.",
            )
        wanted = ", ".join(f"{quoted_name(names[at])}::text" for at in places)
        where = " AND ".join(f"{quoted_name(key)}::text = %s" for key in table.rows.keys)
        cells = [row[names.index(key)] for key in table.rows.keys]
        keys = [cell.decode() if isinstance(cell, bytes) else None for cell in cells]
        source = quoted(table.name).replace("%", "%%")
        found = self.connection.execute(
            f"SELECT {wanted} FROM {source} WHERE {where}", keys
        ).fetchone()
        # A row that is gone by now: its delete follows.
        texts: Sequence[str | None] = found or [None] * len(places)
        return [None if text is None else text.encode() for text in texts]


def _source(table: _ServerTable, moment: ChangeTime) -> Value:
    return {
        "schema": table.name.schema,
        "table": table.name.name,
        "lsn": lsn_text(moment.lsn),
        "txId": moment.xid,
        "snapshot": moment.snapshot,
    }


def _enveloped(topic: str, rows: RowReader) -> Schema:
    row = rows.schema.as_optional()
    fields = {
        "before": row,
        "after": row,
        "source": _SOURCE,
        "op": STRING,
        "ts_ms": INT64.as_optional(),
    }
    return struct(fields, name=f"{topic}.Envelope")
