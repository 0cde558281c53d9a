"""``sqlite-sink``: topics become tables of a file, exactly once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

from headrace.connect import Config, ConfigDeclaration, Schema, SinkTask, declare, key, one_of
from headrace.connect.connectors.sql import (
    SINK_KEYS,
    Adapter,
    SqlDatabase,
    SqlSinkConnector,
    SqlSinkTask,
    TableLayout,
    TableName,
    Verdict,
)
from headrace.connect.connectors.sqlite.source import DATABASE_KEYS
from headrace.connect.connectors.texts import as_json
from headrace.connect.schema import Type
from headrace.errors import ConnectorConfigError

# SQLite as a database that sinks write to.

_TYPES: Mapping[Type, str] = {
    Type.INT8: "INTEGER",
    Type.INT16: "INTEGER",
    Type.INT32: "INTEGER",
    Type.INT64: "INTEGER",
    Type.FLOAT32: "REAL",
    Type.FLOAT64: "REAL",
    Type.BOOLEAN: "BOOLEAN",
    Type.STRING: "TEXT",
    Type.BYTES: "BLOB",
}
_LAYOUTS = ("no such table", "no such column", "has no column", "schema has changed")
_LOCKS = ("locked", "busy")


class SqliteDatabase(SqlDatabase):
    """A connection to a file of SQLite.

    Parameters
    ----------
    path
        The file, which is made where it is missing.
    wait
        Seconds to wait while others write.
    journal
        The file's journal mode, such as ``wal``.
    """

    big_integer: ClassVar[str] = "INTEGER"

    def __init__(self, path: Path, *, wait: float = 30.0, journal: str = "wal") -> None:
        self._path = path
        self._wait = wait
        self._journal = journal
        self._depth = 0
        self._connection = self._connected()

    def transaction(self) -> AbstractContextManager[None]:
        """Begin a transaction, or a savepoint within one; an error rolls it back."""
        return self._transaction()

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement; give the rows that it returns."""
        return self._connection.execute(statement, values).fetchall()

    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run one statement for each row of values."""
        self._connection.executemany(statement, rows)

    def layout(self, table: TableName) -> TableLayout | None:
        """Describe a table; ``None`` when it does not exist."""
        rows = self.execute(
            "SELECT name, type FROM pragma_table_xinfo(?, ?) WHERE hidden = 0",
            (table.name, table.schema or "main"),
        )
        return TableLayout(table, dict(rows)) if rows else None

    def column_type(self, schema: Schema, *, key: bool) -> str:
        """Return the type of a new column for values of this schema."""
        del key
        # Logical types are kept as text, which loses no digit of a decimal and sorts as time does.
        plain = schema.name is None and schema.type.primitive
        return _TYPES[schema.type] if plain else "TEXT"

    def adapter(self, column_type: str) -> Adapter | None:
        """Return what turns values into those that SQLite has."""
        del column_type
        return _plain

    def judge(self, error: BaseException) -> Verdict:
        """Return what an error means."""
        if isinstance(error, OverflowError | TypeError | UnicodeError):
            return "row"
        if not isinstance(error, sqlite3.Error):
            return "fatal"
        if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError | sqlite3.InterfaceError):
            return "row"
        text = str(error)
        if any(word in text for word in _LAYOUTS):
            return "layout"
        if any(word in text for word in _LOCKS):
            return "again"
        # A type that the driver does not know.
        return "row" if isinstance(error, sqlite3.ProgrammingError) else "fatal"

    def reconnect(self) -> None:
        """Make a new connection in place of this one."""
        self.close()
        self._connection = self._connected()

    def ping(self) -> None:
        """Ask the file."""
        self.execute("SELECT 1")

    def close(self) -> None:
        """End the connection."""
        self._connection.close()
        self._depth = 0

    def evict(self, owners: Sequence[str]) -> None:
        """Do nothing: locks are the process's, and go with it."""

    def _connected(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=self._wait, isolation_level=None, check_same_thread=False
        )
        connection.execute(f"PRAGMA journal_mode = {self._journal}")
        # A commit that was answered survives a loss of power.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        outer = self._depth == 0
        name = f"part{self._depth}"
        # IMMEDIATE: a transaction that writes later would fail where another writes first.
        self._connection.execute("BEGIN IMMEDIATE" if outer else f"SAVEPOINT {name}")
        self._depth += 1
        try:
            yield
            self._connection.execute("COMMIT" if outer else f"RELEASE {name}")
        except BaseException:
            if self._connection.in_transaction:
                self._roll_back(None if outer else name)
            raise
        finally:
            self._depth = max(0, self._depth - 1)

    def _roll_back(self, savepoint: str | None) -> None:
        if savepoint is None:
            self._connection.execute("ROLLBACK")
            return
        self._connection.execute(f"ROLLBACK TO {savepoint}")
        self._connection.execute(f"RELEASE {savepoint}")


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float | bytes):
        return value
    if isinstance(value, datetime):
        return value.isoformat(" ")
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID | timedelta):
        return str(value)
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return as_json(value).decode()


class SqliteSinkTask(SqlSinkTask):
    """Writes rows and offsets to a file of SQLite in one transaction per batch."""

    def connect(self, config: Config, owner: str) -> SqlDatabase:
        """Open the file, or make it."""
        del owner
        return _opened(config)


def _opened(config: Config) -> SqliteDatabase:
    path = config["database"]
    if not path.parent.is_dir():
        message = f"The folder {path.parent} of the database {path} does not exist."
        raise ConnectorConfigError(message, hint="Make the folder, or correct the key database.")
    return SqliteDatabase(
        path,
        wait=config["busy.timeout.ms"].total_seconds(),
        journal=config["journal.mode"],
    )


class SqliteSinkConnector(SqlSinkConnector):
    """Writes topics to tables of SQLite."""

    version: ClassVar[str] = "1.0"
    task: ClassVar[type[SinkTask]] = SqliteSinkTask
    config: ClassVar[ConfigDeclaration] = (
        DATABASE_KEYS
        | SINK_KEYS
        | declare(
            key(
                "journal.mode",
                str,
                "The file's journal mode: with wal, others read while the sink writes.",
                default="wal",
                valid=one_of("wal", "delete", "truncate", "persist"),
                importance="low",
                group="Connection",
            )
        )
    )

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        """One file has one writer at a time, so more tasks would only wait for each other."""
        del max_tasks
        return [{}]

    def database(self, config: Config) -> SqlDatabase:
        """Open the file, or make it."""
        return _opened(config)
