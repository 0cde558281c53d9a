"""The rows that are there when a slot is made: they come before its changes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from headrace.connect.connectors.postgres.catalog import quoted, table_info
from headrace.connect.connectors.postgres.database import RowReader, TypeBook
from headrace.connect.connectors.postgres.pgoutput import lsn_text
from headrace.connect.connectors.postgres.translation import (
    ChangeTime,
    Made,
    MadeColumns,
    Translator,
)

if TYPE_CHECKING:
    from headrace.connect import SourceBatch, SourceRecord
    from headrace.connect.connectors.postgres.connection import Connection
    from headrace.connect.connectors.postgres.replication import NewSlot
    from headrace.connect.connectors.sql import TableName
    from headrace.connect.records import Position

__all__ = ["snapshot"]

_Rows: TypeAlias = "Sequence[Made] | MadeColumns"


def snapshot(
    connection: Connection,
    translator: Translator,
    tables: Sequence[TableName],
    slot: NewSlot,
    partition: Position,
    options: TypeBook,
    most: int,
) -> Iterator[Sequence[SourceRecord] | SourceBatch]:
    """Give every row as it was when the slot was made, so many at once at most.

    Only the last record's position says that the snapshot is whole: a task that dies before that
    was committed takes a new one.
    """
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    connection.execute(f"SET TRANSACTION SNAPSHOT '{slot.snapshot}'")
    moment = ChangeTime(slot.consistent_point, int(time.time() * 1000), None, snapshot=True)
    types = TypeBook(connection, options.options)
    before: _Rows | None = None
    count = 0
    for table in tables:
        for made in _rows(connection, translator, types, table, moment, most):
            if before is not None:
                count += 1
                yield _given(before, partition, {"snapshot": count})
            before = made
    # Nobody need wait for its locks until the last rows are taken.
    connection.execute("COMMIT")
    if before is not None:
        done = {"lsn": lsn_text(slot.consistent_point), "record": 0}
        yield _given(before, partition, done, on_the_way={"snapshot": count + 1})


def _rows(
    connection: Connection,
    translator: Translator,
    types: TypeBook,
    table: TableName,
    moment: ChangeTime,
    most: int,
) -> Iterator[_Rows]:
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
    reader = RowReader(translator.topic(table), columns, keys)
    with connection.cursor("headrace") as cursor:
        cursor.execute(f"SELECT * FROM {source}")
        while rows := cursor.fetchmany(most):
            yield translator.snapshot_rows(table, reader, rows, moment)


def _given(
    made: _Rows, partition: Position, offset: Position, *, on_the_way: Position | None = None
) -> Sequence[SourceRecord] | SourceBatch:
    """Give rows that are behind a position as a whole, and on the way to it before."""
    if isinstance(made, MadeColumns):
        return made.placed(partition, offset)
    places = [on_the_way or offset] * (len(made) - 1) + [offset]
    return [one.placed(partition, place) for one, place in zip(made, places, strict=True)]
