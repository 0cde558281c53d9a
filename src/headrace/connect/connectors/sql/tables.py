"""The tables that a sink writes to: looked up once, created and widened where that is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.connect import SchemaError
from headrace.connect.connectors.sql.changes import Change, Step
from headrace.connect.connectors.sql.layouts import Column, Layout, TableName

if TYPE_CHECKING:
    from headrace.connect.connectors.sql.database import Adapter, SqlDatabase

__all__ = ["Tables"]


@dataclass(slots=True)
class Tables:
    """What is known of the tables of one database."""

    database: SqlDatabase
    create: bool = False
    evolve: bool = False
    _layouts: dict[TableName, Layout] = field(default_factory=dict)
    #: Shapes of rows that have been seen to fit.
    _fitting: set[tuple[TableName, tuple[str, ...]]] = field(default_factory=set)

    def fits(self, change: Change) -> bool:
        """Whether the table of a change is known to have its columns."""
        return (change.table, change.columns) in self._fitting

    def forget(self) -> None:
        """Look every table up again: one is not as it was."""
        self._layouts.clear()
        self._fitting.clear()

    def prepare(self, change: Change, wanted: Sequence[Column]) -> None:
        """Make sure that a table has the columns of a change.

        Raises
        ------
        SchemaError
            It has not, and may not be created or widened.
        """
        layout = self._layouts.get(change.table) or self.database.layout(change.table)
        if layout is None or not layout.names.issuperset(one.name for one in wanted):
            self._change_table(change, wanted)
            layout = self.database.layout(change.table)
        if layout is None:
            message = f"Table {change.table} is gone right after it was there."
            raise SchemaError(message, hint="Let nobody drop it while the sink runs.")
        self._layouts[change.table] = layout
        # Null fields of records without a schema get their column when they get a value.
        if layout.names.issuperset(change.columns):
            self._fitting.add((change.table, change.columns))

    def _change_table(self, change: Change, wanted: Sequence[Column]) -> None:
        database = self.database
        with database.transaction():
            database.lock_layouts()
            # Another task may have been here first.
            layout = database.layout(change.table)
            if layout is None:
                self._may(change, allowed=self.create, what="does not exist", key="auto.create")
                database.create(change.table, wanted)
                return
            missing = [one for one in wanted if one.name not in layout.names]
            if missing:
                names = ", ".join(one.name for one in missing)
                what = f"has no column {names}"
                self._may(change, allowed=self.evolve, what=what, key="auto.evolve")
                _check_no_key(change, missing)
                # Rows that are there have no value of a new column.
                optional = [Column(one.name, one.schema.as_optional()) for one in missing]
                database.add(change.table, optional)

    def _may(self, change: Change, *, allowed: bool, what: str, key: str) -> None:
        if not allowed:
            record = change.record
            raise SchemaError(
                f"Table {change.table} {what}, which record {record.offset} of queue"
                f" {record.queue.queue_id} of topic {record.queue.topic} needs.",
                hint=f"Make it by hand, or set {key}=true.",
            )

    def adapted(self, step: Step) -> Step:
        """Give a step with values as the columns of its table take them."""
        layout = self._layouts[step.table]
        columns = tuple(name for name in step.columns if name in layout.names)
        if columns != step.columns:
            pick = [step.columns.index(name) for name in columns]
            step.rows = [tuple(row[at] for at in pick) for row in step.rows]
        adapters = [self.database.adapter(layout.columns[name]) for name in columns]
        for at, adapter in enumerate(adapters):
            if adapter is not None:
                step.rows = [_changed(row, at, adapter) for row in step.rows]
        return Step(step.action, step.table, step.keys, columns, step.rows)


def _changed(row: tuple[Any, ...], at: int, adapter: Adapter) -> tuple[Any, ...]:
    value = row[at]
    changed = None if value is None else adapter(value)
    return row if changed is value else (*row[:at], changed, *row[at + 1 :])


def _check_no_key(change: Change, missing: Sequence[Column]) -> None:
    for column in missing:
        if column.key:
            raise SchemaError(
                f"Table {change.table} has no column {column.name} of the primary key, and a key"
                " cannot be added to a table.",
                hint="Correct pk.fields, or add the column and the key by hand.",
            )
