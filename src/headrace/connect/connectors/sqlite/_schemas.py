"""Schemas out of the types that columns were declared with, and values that fit them."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from headrace.connect import Schema, SchemaError
from headrace.connect.schema import BOOLEAN, BYTES, FLOAT64, INT64, STRING, Type, struct

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
