"""PostgreSQL as a database that sinks write to."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

import psycopg
from psycopg.conninfo import make_conninfo

from headrace.connect.connectors.postgres.connection import connect, is_outage
from headrace.connect.connectors.postgres.types import column_type, value_adapter
from headrace.connect.connectors.sql import Adapter, Layout, SqlDatabase, Step, TableName, Verdict

if TYPE_CHECKING:
    from headrace.connect import Schema

__all__ = ["PostgresDatabase"]

#: From so many rows on, COPY into a temporary table is faster than a statement per row.
_BULK = 20
#: How long the server has for an answer to a ping, s.
_PING = 5
_LOCK = 0x6865_6164  # of all sinks that change tables

_CONFLICTS = frozenset({"40001", "40P01", "55P03", "57014"})
_LAYOUTS = frozenset({"42P01", "42703", "42804"})
_CLASSES: dict[str, Verdict] = {"22": "row", "23": "row"}


class PostgresDatabase(SqlDatabase):
    """A connection to PostgreSQL.

    Parameters
    ----------
    words
        Where it is, in libpq's words.
    """

    placeholder: ClassVar[str] = "%s"
    for_update: ClassVar[str] = "FOR UPDATE"

    def __init__(self, words: str) -> None:
        self._words = words
        self._connection = connect(words)
        self._cursor = self._connection.cursor()
        #: Temporary tables by the columns that they hold.
        self._temporary: dict[tuple[TableName, tuple[str, ...]], str] = {}

    def transaction(self) -> AbstractContextManager[psycopg.Transaction]:
        """Begin a transaction, or a savepoint within one; an error rolls it back."""
        return self._connection.transaction()

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement; give the rows that it returns."""
        cursor = self._cursor.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []

    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run one statement for each row of values, without waiting in between."""
        self._cursor.executemany(statement, rows)

    def layout(self, table: TableName) -> Layout | None:
        """Describe a table; ``None`` when it does not exist."""
        rows = self.execute(
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
            " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
            " AND attgenerated = '' ORDER BY attnum",
            (self.named(table),),
        )
        return Layout(table, dict(rows)) if rows else None

    def column_type(self, schema: Schema, *, key: bool) -> str:
        """Give the type of a new column for values of this schema."""
        del key
        return column_type(schema)

    def adapter(self, column_type: str) -> Adapter | None:
        """Give what turns values into those that a column of this type takes."""
        return value_adapter(column_type)

    def judge(self, error: BaseException) -> Verdict:
        """Say what an error means."""
        if isinstance(error, TypeError | UnicodeError | OverflowError):
            return "row"
        if not isinstance(error, psycopg.Error):
            return "fatal"
        state = error.sqlstate
        if state is None:
            # Raised by the driver, without the server: a connection, or a value.
            if not (self._connection.closed or isinstance(error, psycopg.OperationalError)):
                return "row"
            return "lost" if is_outage(error) else "fatal"
        if state in _CONFLICTS or state.startswith("53"):
            return "again"
        if self._connection.closed or is_outage(error):
            return "lost"
        return "layout" if state in _LAYOUTS else _CLASSES.get(state[:2], "fatal")

    def reconnect(self) -> None:
        """Make a new connection in place of this one."""
        self.close()
        self._temporary.clear()
        self._connection = connect(self._words)
        self._cursor = self._connection.cursor()

    def ping(self) -> None:
        """Ask the server, by a connection of its own: this one may be in the middle of something."""
        connect(make_conninfo(self._words, connect_timeout=_PING)).close()

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def evict(self, owners: Sequence[str]) -> None:
        """End other sessions of tasks by these names, so that their locks are free."""
        if owners:
            self.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = ANY(%s) AND usename = current_user"
                " AND pid <> pg_backend_pid()",
                (list(owners),),
            )

    def check_constraints(self) -> None:
        """Raise now what the database would check only at the commit."""
        self.execute("SET CONSTRAINTS ALL IMMEDIATE")

    def lock_layouts(self) -> None:
        """Keep others from creating or changing tables until the transaction ends."""
        self.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))

    def write(self, step: Step) -> None:
        """Write the rows of a step: many of them by way of COPY."""
        if len(step.rows) < _BULK:
            super().write(step)
        elif step.action == "insert":
            self._copy(self.named(step.table), step)
        else:
            temporary = self._filled(step)
            self.execute(self._from_temporary(step, temporary))

    def _filled(self, step: Step) -> str:
        place = (step.table, step.columns)
        number = len(self._temporary)
        name = self._temporary.setdefault(place, f'pg_temp."headrace_{number}"')
        # A rollback removes it again, so that its name alone says nothing.
        if self.execute("SELECT to_regclass(%s)", (name,)) == [(None,)]:
            columns = ", ".join(map(self.quote, step.columns))
            self.execute(
                f"CREATE TEMPORARY TABLE {name.partition('.')[2]} ON COMMIT DELETE ROWS"
                f" AS SELECT {columns} FROM {self.named(step.table)} WITH NO DATA"
            )
        else:
            self.execute(f"TRUNCATE {name}")
        self._copy(name, step)
        return name

    def _copy(self, table: str, step: Step) -> None:
        columns = ", ".join(map(self.quote, step.columns))
        statement = f"COPY {table} ({columns}) FROM STDIN"
        with self._cursor.copy(statement) as copy:
            write = copy.write_row
            for row in step.rows:
                write(row)

    def _from_temporary(self, step: Step, temporary: str) -> str:
        table = self.named(step.table)
        columns = ", ".join(map(self.quote, step.columns))
        where = " AND ".join(f"t.{self.quote(key)} = n.{self.quote(key)}" for key in step.keys)
        if step.action == "delete":
            return f"DELETE FROM {table} AS t USING {temporary} AS n WHERE {where}"
        if step.action == "update":
            others = map(self.quote, step.columns[len(step.keys) :])
            changed = ", ".join(f"{name} = n.{name}" for name in others)
            return f"UPDATE {table} AS t SET {changed} FROM {temporary} AS n WHERE {where}"
        return (
            f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {temporary}"
            f" {self.on_conflict(step)}"
        )
