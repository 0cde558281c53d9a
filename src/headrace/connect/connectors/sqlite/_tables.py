"""One table, or one query, read from a position on."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.connect import RetriableError
from headrace.connect.connectors.sqlite._schemas import fitted, table_schema
from headrace.errors import ConnectorConfigError

#: Names that may not meet those of a query's own columns.
_NUMBER = "headrace_number"
_TIME = "headrace_time"


@dataclass(frozen=True, slots=True)
class RowSelection:
    """What decides which rows are new."""

    #: ``bulk``, ``incrementing`` or ``timestamp``; rows of a time are told apart by the number.
    mode: str
    number: str
    time: str | None
    keys: tuple[str, ...]
    #: Whether rows have a schema, by the types of their columns.
    typed: bool = False


class NewRowReader:
    """Reads the rows behind a position, in order.

    Parameters
    ----------
    table
        Name of the table; ``None`` for a query.
    query
        What to read in place of a table.
    offset
        Where to go on.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        table: str | None,
        query: str | None,
        how: RowSelection,
        offset: Mapping[str, Any] | None,
    ) -> None:
        self._connection = connection
        self._how = how
        self._offset = dict(offset or {})
        self._source = f"({query})" if query else _quoted(table or "")
        self._place = table or "the query"
        self._keys = how.keys or (self._primary_key(table) if table else ())
        #: The schema of the rows, where they have one.
        self.schema = table_schema(connection, table) if table and how.typed else None

    def rows(self, most: int) -> list[tuple[Any, dict[str, Any], dict[str, Any]]]:
        """Return the next rows: key, value, and the offset behind each."""
        try:
            cursor = self._connection.execute(*self._statement(most))
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                message = f"{self._place} cannot be read now: {error}."
                hint = "Another process writes for longer than busy.timeout.ms."
                raise RetriableError(message, hint=hint) from error
            if "no such" not in str(error):
                raise
            message = f"{self._place} cannot be read: {error}."
            hint = "Correct incrementing.column.name, timestamp.column.name, tables or query."
            raise ConnectorConfigError(message, hint=hint) from error
        names = [column[0] for column in cursor.description][2:]
        # The reader moves once all rows are read: an error leaves it where it was.
        offset = self._offset
        found = []
        for time, number, *values in cursor:
            self._check(time, number)
            row = self._row(names, values)
            offset = offset | {"incrementing": number}
            if self._how.mode == "timestamp":
                offset["timestamp"] = time
            found.append((self._key(row), row, offset))
        self._offset = offset
        return found

    def begin_again(self) -> None:
        """Go back to the first row, for another load of all of them."""
        self._offset = {"load": self._offset.get("load", 0) + 1}

    def _statement(self, most: int) -> tuple[str, Sequence[Any]]:
        number = _quoted(self._how.number)
        time = _quoted(self._how.time) if self._how.time else "NULL"
        where, values = self._condition(time, number)
        order = f"{time}, {number}" if self._how.mode == "timestamp" else number
        statement = (  # names are quoted, values are parameters
            f"SELECT {time} AS {_TIME}, {number} AS {_NUMBER}, * FROM {self._source}"  # noqa: S608
            f" WHERE {where} ORDER BY {order} LIMIT ?"
        )
        return statement, (*values, most)

    def _condition(self, time: str, number: str) -> tuple[str, Sequence[Any]]:
        last = self._offset.get("incrementing")
        if self._how.mode != "timestamp":
            return (f"{number} > ?", (last,)) if last is not None else ("TRUE", ())
        moment = self._offset.get("timestamp")
        if moment is None:
            return f"{time} IS NOT NULL", ()
        return f"({time}, {number}) > (?, ?)", (moment, last)

    def _row(self, names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
        row = dict(zip(names, values, strict=True))
        if self.schema is None:
            return row
        if row.keys() != self.schema.by_name.keys():  # a column has come or gone
            self.schema = table_schema(self._connection, self._place)
        return fitted(row, self.schema, self._place)

    def _check(self, time: Any, number: Any) -> None:
        if isinstance(number, int | str) and not isinstance(time, bytes):
            return
        column = self._how.number if not isinstance(number, int | str) else self._how.time
        message = f"{self._place} has a row whose {column} is {number!r}, which has no next one."
        raise ConnectorConfigError(message, hint="Name a column that is never null.")

    def _key(self, row: Mapping[str, Any]) -> Any:
        if not self._keys:
            return None
        if missing := [name for name in self._keys if name not in row]:
            message = f"{self._place} has no column {missing[0]!r}, which key.fields names."
            raise ConnectorConfigError(message, hint=f"It has {', '.join(row)}.")
        if len(self._keys) == 1:
            return row[self._keys[0]]
        return {name: row[name] for name in self._keys}

    def _primary_key(self, table: str) -> tuple[str, ...]:
        rows = self._connection.execute(
            "SELECT name FROM pragma_table_info(?) WHERE pk > 0 ORDER BY pk", (table,)
        )
        return tuple(name for (name,) in rows)


def table_names(connection: sqlite3.Connection, patterns: Sequence[str]) -> list[str]:
    """Return the tables and views that match; ``*`` and ``?`` stand for other letters."""
    rows = connection.execute(
        "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
        " AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name <> 'headrace_connect_offsets'"
        " ORDER BY name"
    ).fetchall()
    matching = "SELECT ? GLOB ?"
    return [
        name
        for (name,) in rows
        if any(connection.execute(matching, (name, one)).fetchone()[0] for one in patterns)
    ]


def _quoted(name: str) -> str:
    # Not in double quotes: a name that is no column would be taken for a text.
    return "`" + name.replace("`", "``") + "`"
