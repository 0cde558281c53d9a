"""The seam between sinks and databases: what a database must offer to be written to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

if TYPE_CHECKING:
    from headrace.connect import Schema
    from headrace.connect.connectors.sql.changes import Step
    from headrace.connect.connectors.sql.layouts import Column, Layout, TableName

__all__ = ["Adapter", "SqlDatabase", "Verdict"]

Adapter: TypeAlias = Callable[[Any], Any]
"""Turns a value that is not null into one that a driver can write."""

Verdict: TypeAlias = Literal["row", "layout", "again", "lost", "fatal"]
"""What an error means: a row that cannot be stored, a table that is not as expected, a conflict
that passes when the transaction is repeated, a connection that is gone, or anything else."""


class SqlDatabase(ABC):
    """One connection to a database; subclasses know its dialect.

    The statements of this class are standard SQL with ``ON CONFLICT`` and ``RETURNING``, as
    PostgreSQL and SQLite know them.
    """

    #: What stands for a value in a statement.
    placeholder: ClassVar[str] = "?"
    #: What locks the rows that a statement reads, where the database can.
    for_update: ClassVar[str] = ""
    #: The type of whole numbers of 64 bits, and of text.
    big_integer: ClassVar[str] = "BIGINT"
    text: ClassVar[str] = "TEXT"

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Any]:
        """Begin a transaction, or a savepoint within one; an error rolls it back."""

    @abstractmethod
    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement; give the rows that it returns."""

    @abstractmethod
    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run one statement for each row of values."""

    @abstractmethod
    def layout(self, table: TableName) -> Layout | None:
        """Describe a table; ``None`` when it does not exist."""

    @abstractmethod
    def column_type(self, schema: Schema, *, key: bool) -> str:
        """Give the type of a new column for values of this schema."""

    @abstractmethod
    def judge(self, error: BaseException) -> Verdict:
        """Say what an error of this database means."""

    @abstractmethod
    def reconnect(self) -> None:
        """Make a new connection in place of this one."""

    @abstractmethod
    def ping(self) -> None:
        """Ask the database anything; any thread may call."""

    @abstractmethod
    def close(self) -> None:
        """End the connection."""

    @abstractmethod
    def evict(self, owners: Sequence[str]) -> None:
        """End other sessions of tasks by these names, so that their locks are free."""

    def check_constraints(self) -> None:  # noqa: B027  # most databases check at once
        """Raise now what the database would check only at the commit."""

    def lock_layouts(self) -> None:  # noqa: B027  # some lock whenever they write
        """Keep others from creating or changing tables until the transaction ends."""

    def adapter(self, column_type: str) -> Adapter | None:
        """Give what turns values into those that the driver writes into a column of this type."""
        del column_type
        return None

    def quote(self, name: str) -> str:
        """Write a name so that it means itself."""
        return '"' + name.replace('"', '""') + '"'

    def named(self, table: TableName) -> str:
        """Write the name of a table."""
        name = self.quote(table.name)
        return name if table.schema is None else f"{self.quote(table.schema)}.{name}"

    def marks(self, count: int) -> str:
        """Write so many placeholders."""
        return ", ".join([self.placeholder] * count)

    def create(self, table: TableName, columns: Sequence[Column]) -> None:
        """Create a table."""
        lines = [self._definition(column) for column in columns]
        if keys := [self.quote(column.name) for column in columns if column.key]:
            lines.append(f"PRIMARY KEY ({', '.join(keys)})")
        self.execute(f"CREATE TABLE IF NOT EXISTS {self.named(table)} ({', '.join(lines)})")

    def add(self, table: TableName, columns: Sequence[Column]) -> None:
        """Add columns to a table."""
        for column in columns:
            self.execute(f"ALTER TABLE {self.named(table)} ADD COLUMN {self._definition(column)}")

    def _definition(self, column: Column) -> str:
        kind = self.column_type(column.schema, key=column.key)
        null = " NOT NULL" if column.key or not column.schema.optional else ""
        return f"{self.quote(column.name)} {kind}{null}"

    def write(self, step: Step) -> None:
        """Write the rows of a step."""
        self.execute_many(self.statement(step), self.ordered(step))

    def ordered(self, step: Step) -> list[tuple[Any, ...]]:
        """Put the values of a step into the order in which its statement names them."""
        if step.action != "update":
            return step.rows
        count = len(step.keys)
        return [(*row[count:], *row[:count]) for row in step.rows]

    def statement(self, step: Step) -> str:
        """Write the statement of a step, for one row."""
        table = self.named(step.table)
        where = " AND ".join(f"{self.quote(key)} = {self.placeholder}" for key in step.keys)
        if step.action == "delete":
            return f"DELETE FROM {table} WHERE {where}"
        others = step.columns[len(step.keys) :]
        if step.action == "update":
            changed = ", ".join(f"{self.quote(name)} = {self.placeholder}" for name in others)
            return f"UPDATE {table} SET {changed} WHERE {where}"
        names = ", ".join(self.quote(name) for name in step.columns)
        insert = f"INSERT INTO {table} ({names}) VALUES ({self.marks(len(step.columns))})"
        return insert if step.action == "insert" else f"{insert} {self.on_conflict(step)}"

    def on_conflict(self, step: Step) -> str:
        """Write what happens to a row whose key is there already."""
        keys = ", ".join(self.quote(key) for key in step.keys)
        others = [self.quote(name) for name in step.columns[len(step.keys) :]]
        if not others:
            return f"ON CONFLICT ({keys}) DO NOTHING"
        changed = ", ".join(f"{name} = excluded.{name}" for name in others)
        return f"ON CONFLICT ({keys}) DO UPDATE SET {changed}"
