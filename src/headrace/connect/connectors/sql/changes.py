"""What a batch of records changes in tables, and in which order that is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from headrace.connect import SinkRecord
    from headrace.connect.connectors.sql.layouts import TableName

__all__ = ["Change", "Mode", "Step", "plan"]

Mode: TypeAlias = Literal["insert", "upsert", "update"]
Action: TypeAlias = Literal["insert", "upsert", "update", "delete"]


class Change(NamedTuple):
    """What one record does to one row."""

    table: TableName
    #: Names of the key's columns; empty where the table has no key.
    keys: tuple[str, ...]
    #: Names of all columns that are written, the key's first; the key's alone for a delete.
    columns: tuple[str, ...]
    #: Their values, in the same order.
    row: tuple[Any, ...]
    delete: bool
    #: The record behind it, to report should the database refuse it.
    record: SinkRecord

    @property
    def key(self) -> tuple[Any, ...]:
        """The values of the key's columns."""
        return self.row[: len(self.keys)]


@dataclass(slots=True)
class Step:
    """Rows that one statement can write: one table, one action, the same columns."""

    action: Action
    table: TableName
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]] = field(default_factory=list)


def plan(changes: Sequence[Change], mode: Mode) -> list[Step]:
    """Turn changes into steps that leave the same rows behind as one change after the other.

    Tables are written one after the other, as records of different tables have no order among
    them.  Of several upserts of a key, the last value of each column is what counts.
    """
    steps: list[Step] = []
    for group in _by_table(changes):
        steps += _upserts(group) if mode == "upsert" else list(_in_order(group, mode))
    return steps


def _by_table(changes: Iterable[Change]) -> Iterable[list[Change]]:
    groups: dict[TableName, list[Change]] = {}
    for change in changes:
        groups.setdefault(change.table, []).append(change)
    return groups.values()


def _upserts(changes: Sequence[Change]) -> list[Step]:
    # At most one delete and one upsert of each key are left, so that all deletes may come first.
    deletes: dict[tuple[Any, ...], Change] = {}
    upserts: dict[tuple[Any, ...], Change] = {}
    for change in changes:
        key = change.key
        if change.delete:
            deletes[key] = change
            upserts.pop(key, None)
            continue
        before = upserts.get(key)
        upserts[key] = change if before is None else _merged(before, change)
    return [*_steps(deletes.values(), "delete"), *_steps(upserts.values(), "upsert")]


def _merged(before: Change, change: Change) -> Change:
    if before.columns == change.columns:
        return change
    values = dict(zip(before.columns, before.row, strict=True))
    values |= dict(zip(change.columns, change.row, strict=True))
    return change._replace(columns=tuple(values), row=tuple(values.values()))


def _steps(changes: Iterable[Change], action: Action) -> Iterable[Step]:
    steps: dict[tuple[str, ...], Step] = {}
    for change in changes:
        step = steps.get(change.columns)
        if step is None:
            step = Step(action, change.table, change.keys, change.columns)
            steps[change.columns] = step
        step.rows.append(change.row)
    return steps.values()


def _in_order(changes: Iterable[Change], mode: Mode) -> Iterator[Step]:
    # A step ends where the kind of change does, or where an update meets its own key again.
    step: Step | None = None
    seen: set[tuple[Any, ...]] = set()
    for change in changes:
        action: Action = "delete" if change.delete else mode
        if action == "update" and change.columns == change.keys:
            # Nothing but the key: there is nothing to change.
            continue
        fits = step is not None and (action, change.columns) == (step.action, step.columns)
        again = action == "update" and change.key in seen
        if step is None or not fits or again:
            if step is not None:
                yield step
            step = Step(action, change.table, change.keys, change.columns)
            seen.clear()
        step.rows.append(change.row)
        if action == "update":
            seen.add(change.key)
    if step is not None:
        yield step
