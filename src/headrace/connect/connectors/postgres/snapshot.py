"""The rows that are there when a slot is made: they come before its changes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.connect import SourceRecord
from headrace.connect.connectors.postgres.catalog import quoted, table_info
from headrace.connect.connectors.postgres.columns import RowReader, TypeBook
from headrace.connect.connectors.postgres.pgoutput import lsn_text
from headrace.connect.connectors.postgres.translation import Made, Moment, Translator

if TYPE_CHECKING:
    from headrace.connect.connectors.postgres.connection import Connection
    from headrace.connect.connectors.postgres.replication import NewSlot
    from headrace.connect.connectors.sql import TableName
    from headrace.connect.records import Position

__all__ = ["snapshot"]


def snapshot(
    connection: Connection,
    translator: Translator,
    tables: Sequence[TableName],
    slot: NewSlot,
    partition: Position,
    options: TypeBook,
) -> Iterator[SourceRecord]:
    """Give every row as it was when the slot was made.

    Only the last record's position says that the snapshot is whole: a task that dies before that
    was committed takes a new one.
    """
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    connection.execute(f"SET TRANSACTION SNAPSHOT '{slot.snapshot}'")
    moment = Moment(slot.consistent_point, int(time.time() * 1000), None, snapshot=True)
    types = TypeBook(connection, options.options)
    before: Made | None = None
    count = 0
    for table in tables:
        for made in _rows(connection, translator, types, table, moment):
            if before is not None:
                count += 1
                yield _record(before, partition, {"snapshot": count})
            before = made
    if before is not None:
        done = {"lsn": lsn_text(slot.consistent_point), "record": 0}
        yield _record(before, partition, done)
    connection.execute("COMMIT")


def _rows(
    connection: Connection,
    translator: Translator,
    types: TypeBook,
    table: TableName,
    moment: Moment,
) -> Iterator[Made]:
    source = quoted(table)
    keys = table_info(connection, table).keys
    described = connection.execute(f"SELECT * FROM {source} LIMIT 0").description or ()
    columns = [
        types.column(
            one.name,
            one.type_code,
            one._fmod,  # noqa: SLF001  # the modifier, without what psycopg makes of it
            optional=one.name not in keys,
        )
        for one in described
    ]
    make = translator.snapshot_table(table, RowReader(translator.topic(table), columns, keys))
    with connection.cursor("headrace") as cursor:
        cursor.execute(f"SELECT * FROM {source}")
        while rows := cursor.fetchmany(1000):
            for row in rows:
                yield make(row, moment)


def _record(made: Made, partition: Position, offset: Mapping[str, Any]) -> SourceRecord:
    return SourceRecord(
        partition=partition,
        offset=offset,
        topic=made.topic,
        key=made.key,
        value=made.value,
        key_schema=made.key_schema,
        value_schema=made.value_schema,
        timestamp_ms=made.timestamp_ms,
    )
