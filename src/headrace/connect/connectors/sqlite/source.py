"""``sqlite-source``: new and changed rows of tables."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from headrace.connect import (
    Config,
    ConfigDeclaration,
    ConfigProblem,
    RetriableError,
    Schema,
    SchemaError,
    SourceConnector,
    SourceRecord,
    SourceTask,
    declare,
    key,
    one_of,
)
from headrace.connect.connectors.sharing import TaskShare, is_pattern
from headrace.connect.connectors.sql import SOURCE_KEYS, source_problems
from headrace.connect.schema import BOOLEAN, BYTES, FLOAT64, INT64, STRING, Type, struct
from headrace.errors import ConnectorConfigError

if TYPE_CHECKING:
    from headrace.connect.plugins import OffsetReader

# Config keys that the source and the sink share.

DATABASE_KEYS = declare(
    key("database", Path, "The file of the database.", required=True, group="Connection"),
    key(
        "busy.timeout.ms",
        timedelta,
        "How long to wait while another process writes to the file.",
        default=timedelta(seconds=30),
        importance="low",
        group="Connection",
    ),
)


# Schemas out of the types that columns were declared with, and values that fit them.

#: Parts of declared types, in the order in which SQLite looks for them, and ours before.
_BY_PART: tuple[tuple[str, Schema], ...] = (
    ("BOOL", BOOLEAN),
    ("DATE", STRING),
    ("TIME", STRING),
    ("JSON", STRING),
    ("UUID", STRING),
    ("INT", INT64),
    ("CHAR", STRING),
    ("CLOB", STRING),
    ("TEXT", STRING),
    ("BLOB", BYTES),
    ("REAL", FLOAT64),
    ("FLOA", FLOAT64),
    ("DOUB", FLOAT64),
    ("NUM", FLOAT64),
    ("DEC", FLOAT64),
)
_PYTHON: Mapping[Type, type] = {
    Type.INT64: int,
    Type.FLOAT64: float,
    Type.STRING: str,
    Type.BYTES: bytes,
    Type.BOOLEAN: bool,
}


def table_schema(connection: sqlite3.Connection, table: str) -> Schema:
    """Read the schema of a table's rows.

    Raises
    ------
    SchemaError
        Where a column's type says nothing.
    """
    rows = connection.execute(
        "SELECT name, type FROM pragma_table_xinfo(?) WHERE hidden <> 1", (table,)
    )
    return struct({name: _schema(table, name, kind) for name, kind in rows}, name=table)


def _schema(table: str, name: str, kind: str) -> Schema:
    for part, schema in _BY_PART:
        if part in kind.upper():
            return schema.as_optional()
    message = f"The column {name} of {table} was declared as {kind!r}, which names no type."
    raise SchemaError(message, hint="Set schemas=none: its rows are then maps without a schema.")


def fitted(row: dict[str, Any], schema: Schema, table: str) -> dict[str, Any]:
    """Return a row whose values are what its schema says.

    Raises
    ------
    SchemaError
        Where a value is something else, which SQLite allows.
    """
    return {name: _fitted(value, schema, table, name) for name, value in row.items()}


def _fitted(value: Any, schema: Schema, table: str, name: str) -> Any:
    kind = schema.field(name).schema.type
    if value is None or type(value) is _PYTHON[kind]:
        return value
    if kind is Type.FLOAT64 and isinstance(value, int):
        return float(value)
    if kind is Type.BOOLEAN and value in {0, 1}:
        return bool(value)
    message = f"The column {name} of {table} is {kind}, and a row of it holds {value!r:.100}."
    raise SchemaError(message, hint="Correct the row, or set schemas=none.")


#: Names that may not meet those of a query's own columns.
_NUMBER = "headrace_number"
_TIME = "headrace_time"


class NewRowReader:
    """Reads the rows behind a position, in order.

    Parameters
    ----------
    table
        Name of the table; empty for the query of the config.
    offsets
        Where to go on.
    """

    def __init__(
        self, connection: sqlite3.Connection, table: str, config: Config, offsets: OffsetReader
    ) -> None:
        query, prefix = config["query"], config["topic.prefix"]
        self._connection = connection
        self._config = config
        self._number: str = config["incrementing.column.name"]
        #: What tells rows apart only with their numbers.
        self._time = config["timestamp.column.name"] if config["mode"] == "timestamp" else None
        self._topic = prefix + table
        self._partition = {"table": table} if table else {"query": prefix}
        self._offset = dict(offsets.get(self._partition) or {})
        self._source = _quoted(table) if table else f"({query})"
        self._place = table or "the query"
        self._keys = config["key.fields"] or self._primary_key(table)
        typed = table and config["schemas"] == "declared"
        self._schema = table_schema(connection, table) if typed else None
        #: When it is worth another look.
        self.due = time.monotonic()

    def read(self) -> list[SourceRecord]:
        """Return the next rows; in mode bulk, begin again where there are none."""
        try:
            cursor = self._connection.execute(*self._statement())
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
        for moment, number, *values in cursor:
            self._check(moment, number)
            offset = offset | {"incrementing": number}
            if self._time:
                offset["timestamp"] = moment
            found.append(self._record(dict(zip(names, values, strict=True)), offset))
        if not found and self._config["mode"] == "bulk":
            offset = {"load": offset.get("load", 0) + 1}
        self._offset = offset
        return found

    def _statement(self) -> tuple[str, Sequence[Any]]:
        number = _quoted(self._number)
        moment = _quoted(self._time) if self._time else "NULL"
        where, values = self._condition(moment, number)
        order = f"{moment}, {number}" if self._time else number
        statement = (  # names are quoted, values are parameters
            f"SELECT {moment} AS {_TIME}, {number} AS {_NUMBER}, * FROM {self._source}"  # noqa: S608
            f" WHERE {where} ORDER BY {order} LIMIT ?"
        )
        return statement, (*values, self._config["batch.max.rows"])

    def _condition(self, moment: str, number: str) -> tuple[str, Sequence[Any]]:
        last = self._offset.get("incrementing")
        if not self._time:
            return (f"{number} > ?", (last,)) if last is not None else ("TRUE", ())
        last_moment = self._offset.get("timestamp")
        if last_moment is None:
            return f"{moment} IS NOT NULL", ()
        return f"({moment}, {number}) > (?, ?)", (last_moment, last)

    def _record(self, row: dict[str, Any], offset: dict[str, Any]) -> SourceRecord:
        if self._schema is not None:
            if row.keys() != self._schema.by_name.keys():  # a column has come or gone
                self._schema = table_schema(self._connection, self._place)
            row = fitted(row, self._schema, self._place)
        return SourceRecord(
            partition=self._partition,
            offset=offset,
            topic=self._topic,
            key=self._key(row),
            value=row,
            value_schema=self._schema,
        )

    def _check(self, moment: Any, number: Any) -> None:
        if isinstance(number, int | str) and not isinstance(moment, bytes):
            return
        column = self._number if not isinstance(number, int | str) else self._time
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


# A task that reads tables in turn.


class SqliteSourceTask(SourceTask):
    """Reads its share of the tables, each in turn."""

    def start(self, config: Config) -> None:
        """Open the file."""
        self._config = config
        self._connection = _opened(config)
        self._share = TaskShare.of(config)
        self._interval = config["poll.interval.ms"].total_seconds()
        self._readers: dict[str, NewRowReader] = {}
        self._looked = float("-inf")

    def poll(self) -> Sequence[SourceRecord] | None:
        """Return the next rows of the table whose turn it is."""
        self._look()
        now = time.monotonic()
        for reader in sorted(self._readers.values(), key=lambda one: one.due):
            if reader.due > now:
                break
            if records := reader.read():
                reader.due = now
                return records
            reader.due = time.monotonic() + self._interval
        due = min((one.due for one in self._readers.values()), default=now + self._interval)
        self.context.stopping.wait(max(0.0, min(1.0, due - time.monotonic())))
        return None

    def stop(self) -> None:
        """Close the file."""
        if connection := getattr(self, "_connection", None):
            connection.close()

    def _look(self) -> None:
        """Find tables that are new."""
        if time.monotonic() - self._looked < self._interval:
            return
        self._looked = time.monotonic()
        query = self._config["query"]
        names = [""] if query else table_names(self._connection, self._config["tables"])
        for name in names:
            if (query or self._share.has(name)) and name not in self._readers:
                self._readers[name] = NewRowReader(
                    self._connection, name, self._config, self.context.offsets
                )


def _opened(config: Config) -> sqlite3.Connection:
    path: Path = config["database"]
    if not path.is_file():
        message = f"The database {path} does not exist."
        raise ConnectorConfigError(message, hint="Correct the key database.")
    return sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode=ro",
        uri=True,
        timeout=config["busy.timeout.ms"].total_seconds(),
        isolation_level=None,
        check_same_thread=False,
    )


class SqliteSourceConnector(SourceConnector):
    """Reads new and changed rows of SQLite's tables."""

    version = "1.0"
    task = SqliteSourceTask
    exactly_once = True
    config: ClassVar[ConfigDeclaration] = (
        DATABASE_KEYS
        | SOURCE_KEYS
        | declare(
            key(
                "mode",
                str,
                "Which rows are new: those with a higher number (incrementing), those with a later "
                "time (timestamp), or all, again and again (bulk).",
                default="incrementing",
                valid=one_of("incrementing", "timestamp", "bulk"),
                importance="high",
            ),
            key(
                "tables",
                list,
                "Tables and views to read; * and ? stand for other letters, and find tables that come "
                "later.",
                default=[],
                importance="high",
            ),
            key(
                "incrementing.column.name",
                str,
                "The column that rises with each new row; rowid is there in every ordinary table.",
                default="rowid",
            ),
            key(
                "timestamp.column.name",
                str,
                "The column that is set whenever a row changes, and sorts as time does.",
            ),
            key(
                "schemas",
                str,
                "Whether rows have the schema that their columns were declared with, or none.",
                default="none",
                valid=one_of("none", "declared"),
            ),
        )
    )

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        """Share the tables out by their names."""
        config = self.context.config
        several = any(map(is_pattern, config["tables"])) or len(config["tables"]) > 1
        return TaskShare.configs(max_tasks if several else 1)

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Name what does not fit together."""
        yield from source_problems(config)
        if config["query"] and config["schemas"] == "declared":
            yield ConfigProblem("schemas", "schemas=declared needs tables: a query declares none.")
