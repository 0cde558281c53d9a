"""Batches become few statements that leave the rows as one change after the other would."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st

from headrace.connect.connectors.sql import Change, Mode, TableName, plan
from tests.connect.connectors.sinks import record

Tables = dict[TableName, dict[tuple[Any, ...], dict[str, Any]]]

_KEYS = st.integers(0, 3)
_COLUMNS = st.sets(st.sampled_from("abc")).map(lambda names: tuple(sorted(names)))
_TABLES = st.sampled_from([TableName(None, "t"), TableName("s", "u")])


@st.composite
def changes(draw: st.DrawFn) -> list[Change]:
    found = []
    for number in range(draw(st.integers(0, 12))):
        key, columns = draw(_KEYS), draw(_COLUMNS)
        delete = draw(st.booleans())
        names = ("k",) if delete else ("k", *columns)
        row = (key,) if delete else (key, *(f"{name}{number}" for name in columns))
        found.append(Change(draw(_TABLES), ("k",), names, row, delete, record(number, None)))
    return found


def after(tables: Tables, action: str, change: Change) -> None:
    rows = tables.setdefault(change.table, {})
    values = dict(zip(change.columns, change.row, strict=True))
    if action == "delete":
        rows.pop(change.key, None)
    elif action == "upsert":
        rows[change.key] = rows.get(change.key, {}) | values
    elif action == "update" and change.key in rows:
        rows[change.key] |= values


def present() -> Tables:
    return {
        table: {(key,): {"k": key, "a": "old"} for key in range(2)}
        for table in (TableName(None, "t"), TableName("s", "u"))
    }


def by_plan(batch: list[Change], mode: Mode) -> Tables:
    tables = present()
    for step in plan(batch, mode):
        keys = [row[: len(step.keys)] for row in step.rows]
        if step.action in {"upsert", "update"}:
            assert len(set(keys)) == len(keys), "one statement may not meet a key twice"
        for row in step.rows:
            change = Change(step.table, step.keys, step.columns, row, False, record(0, None))
            after(tables, step.action, change)
    return tables


def one_by_one(batch: list[Change], mode: Mode) -> Tables:
    tables = present()
    for change in batch:
        after(tables, "delete" if change.delete else mode, change)
    return tables


@given(changes())
def test_upserts_leave_what_one_after_the_other_leaves(batch: list[Change]) -> None:
    assert by_plan(batch, "upsert") == one_by_one(batch, "upsert")


@given(changes())
def test_updates_leave_what_one_after_the_other_leaves(batch: list[Change]) -> None:
    assert by_plan(batch, "update") == one_by_one(batch, "update")


def test_inserts_and_deletes_keep_their_order() -> None:
    table = TableName(None, "t")
    batch = [
        Change(table, ("k",), ("k",), (1,), delete, record(number, None))
        for number, delete in enumerate([False, True, False])
    ]
    assert [step.action for step in plan(batch, "insert")] == ["insert", "delete", "insert"]


def test_upserts_of_one_shape_are_one_step() -> None:
    table = TableName(None, "t")
    batch = [
        Change(table, ("k",), ("k", "a"), (number % 3, number), False, record(number, None))
        for number in range(9)
    ]
    (step,) = plan(batch, "upsert")
    assert step.rows == [(0, 6), (1, 7), (2, 8)]
