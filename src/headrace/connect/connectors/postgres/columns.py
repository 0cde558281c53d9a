"""Columns as a source reads them: their schemas, and what turns their values into Connect's."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.types import TypeInfo
from psycopg.types.string import TextLoader

from headrace.connect import Schema, SchemaError
from headrace.connect.connectors.postgres.types import JSON_NAME, UUID_NAME
from headrace.connect.schema import (
    BOOLEAN,
    BYTES,
    DATE,
    FLOAT32,
    FLOAT64,
    INT16,
    INT32,
    INT64,
    STRING,
    TIME,
    TIMESTAMP,
    Type,
    array,
    decimal,
    struct,
)

if TYPE_CHECKING:
    from headrace.connect.connectors.postgres.connection import Connection

__all__ = ["RowReader", "SourceColumn", "TypeBook", "TypeOptions"]

Convert = Callable[[Any], Any]

_PLAIN: Mapping[str, Schema] = {
    "bool": BOOLEAN,
    "int2": INT16,
    "int4": INT32,
    "int8": INT64,
    "oid": INT64,
    "float4": FLOAT32,
    "float8": FLOAT64,
    "bytea": BYTES,
    "date": DATE,
    "time": TIME,
    "json": STRING.changed(name=JSON_NAME),
    "jsonb": STRING.changed(name=JSON_NAME),
    "uuid": STRING.changed(name=UUID_NAME),
}
_TIMES = frozenset({"timestamp", "timestamptz"})
#: Types whose values the driver gives as Connect wants them; all others are read as text.
_LOADED = frozenset(_PLAIN) - {"json", "jsonb", "uuid"} | _TIMES | {"numeric"}
#: A modifier holds the digits behind the point of a numeric, and this much more.
_MODIFIER = 4
#: Types whose values are in Arrow's columns what they are by themselves.
_ARROW: Mapping[Type, pa.DataType] = {
    Type.BOOLEAN: pa.bool_(),
    Type.INT16: pa.int16(),
    Type.INT32: pa.int32(),
    Type.INT64: pa.int64(),
    Type.FLOAT64: pa.float64(),
    Type.STRING: pa.string(),
}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class TypeOptions:
    """What types become that Connect cannot hold exactly."""

    #: ``precise``, ``string`` or ``double``.
    numeric: str = "precise"
    #: ``connect``, ``string`` or ``micros``.
    timestamp: str = "connect"


class SourceColumn(NamedTuple):
    """A column of a table or a query."""

    name: str
    schema: Schema
    convert: Convert | None
    type_oid: int


class _Type(NamedTuple):
    oid: int
    name: str
    category: str
    element: int
    base: int
    base_modifier: int
    array: int


@dataclass
class TypeBook:
    """What is known of a database's types; it asks for each one once."""

    connection: Connection
    options: TypeOptions = TypeOptions()
    _types: dict[int, _Type] = field(default_factory=dict)

    def column(self, name: str, oid: int, modifier: int, *, optional: bool) -> SourceColumn:
        """Describe a column by its type, and let the connection load it in the right way."""
        schema, convert = self._described(oid, modifier)
        return SourceColumn(name, schema.as_optional() if optional else schema, convert, oid)

    def _described(self, oid: int, modifier: int) -> tuple[Schema, Convert | None]:
        kind = self._type(oid)
        if kind.base:
            # A domain: its values look like those of the type below it.
            self.connection.adapters.register_loader(oid, _loader(self.connection, kind.base))
            inner = modifier if kind.base_modifier < 0 else kind.base_modifier
            return self._described(kind.base, inner)
        if kind.category == "A" and kind.element:
            return self._array(kind, modifier)
        if kind.name == "numeric":
            return self._numeric(modifier)
        if kind.name in _TIMES:
            return self._timestamp(kind)
        if kind.name not in _LOADED:
            self.connection.adapters.register_loader(oid, TextLoader)
        return _PLAIN.get(kind.name, STRING), None

    def _array(self, kind: _Type, modifier: int) -> tuple[Schema, Convert | None]:
        element = self._type(kind.element)
        if self.connection.adapters.types.get(kind.element) is None:
            info = TypeInfo(element.name, element.oid, kind.oid)
            info.register(self.connection)
        items, convert = self._described(kind.element, modifier)
        return array(items.as_optional()), _of_items(convert)

    def _numeric(self, modifier: int) -> tuple[Schema, Convert | None]:
        if self.options.numeric == "double":
            return FLOAT64, float
        if self.options.numeric == "precise" and modifier >= _MODIFIER:
            # Eleven bits, and a sign.
            scale = ((modifier - _MODIFIER) & 0x7FF ^ 0x400) - 0x400
            if scale >= 0:
                return decimal(scale), None
        return STRING, _digits

    def _timestamp(self, kind: _Type) -> tuple[Schema, Convert | None]:
        if self.options.timestamp == "string":
            self.connection.adapters.register_loader(kind.oid, TextLoader)
            return STRING, None
        zoned = kind.name == "timestamptz"
        if self.options.timestamp == "micros":
            return INT64, (_micros if zoned else _naive_micros)
        return TIMESTAMP, (None if zoned else _in_utc)

    def _type(self, oid: int) -> _Type:
        found = self._types.get(oid)
        if found is None:
            row = self.connection.execute(
                "SELECT oid, typname, typcategory, typelem, typbasetype, typtypmod, typarray"
                " FROM pg_type WHERE oid = %s",
                (oid,),
            ).fetchone()
            if row is None:
                message = f"PostgreSQL has no type number {oid} any more."
                raise SchemaError(message, hint="Restart the task: the table has changed.")
            found = self._types[oid] = _Type(*row)
        return found


class RowReader:
    """Turns the rows of one table, as they are now, into structs.

    Parameters
    ----------
    name
        What the schema of the rows is called.
    columns
        The columns, in the order of the rows.
    keys
        Names of those that are the record's key.
    """

    def __init__(self, name: str, columns: Sequence[SourceColumn], keys: Sequence[str]) -> None:
        by_name = {column.name: column for column in columns}
        self.columns = tuple(columns)
        self.keys = tuple(keys)
        self.schema = struct({one.name: one.schema for one in columns}, name=f"{name}.Value")
        self.key_schema = (
            struct({key: by_name[key].schema.as_required() for key in keys}, name=f"{name}.Key")
            if keys
            else None
        )
        self._names = tuple(by_name)
        self._converts = [(one.name, one.convert) for one in columns if one.convert is not None]
        kinds = [None if one.convert else _ARROW.get(one.schema.type) for one in columns]
        logical = any(one.schema.name and one.schema.type is not Type.STRING for one in columns)
        self._kinds = None if logical or None in kinds or not columns else kinds

    def value(self, row: Sequence[Any]) -> dict[str, Any]:
        """Give a row, as the driver loaded it, as a struct; cells behind the columns are left."""
        found = dict(zip(self._names, row, strict=False))
        for name, convert in self._converts:
            cell = found[name]
            if cell is not None:
                found[name] = convert(cell)
        return found

    def struct(self, rows: Sequence[Sequence[Any]]) -> pa.StructArray | None:
        """Give rows, as the driver loaded them, as structs in a column; None: not all types can be."""
        if self._kinds is None:
            return None
        cells = zip(*rows, strict=True)
        columns = [
            pa.array(list(some), kind) for some, kind in zip(cells, self._kinds, strict=True)
        ]
        return pa.StructArray.from_arrays(columns, self._names)

    def struct_key(self, structs: pa.StructArray) -> pa.StructArray | None:
        """Give the keys of structs in a column; ``None`` where the table has none."""
        if not self.keys:
            return None
        return pa.StructArray.from_arrays([structs.field(name) for name in self.keys], self.keys)

    def key(self, value: Mapping[str, Any]) -> dict[str, Any] | None:
        """Give the key of a struct; ``None`` where the table has none."""
        return {name: value[name] for name in self.keys} if self.keys else None

    def loaders(self, connection: Connection) -> list[Callable[[bytes], Any]]:
        """Give what loads the text of each column, as the connection itself does."""
        transformer = Transformer(connection)
        return [transformer.get_loader(one.type_oid, pq.Format.TEXT).load for one in self.columns]


def _loader(connection: Connection, oid: int) -> Any:
    return connection.adapters.get_loader(oid, pq.Format.TEXT) or TextLoader


def _of_items(convert: Convert | None) -> Convert:
    def items(value: Any) -> Any:
        for item in value:
            if isinstance(item, list):
                message = f"An array of several dimensions has no schema in Connect: {value!r:.100}"
                raise SchemaError(message, hint="Read the table by a query that unnests it.")
        if convert is None:
            return value
        return [None if item is None else convert(item) for item in value]

    return items


def _digits(value: Decimal) -> str:
    return format(value, "f")


def _in_utc(value: dt.datetime) -> dt.datetime:
    return value.replace(tzinfo=dt.UTC)


def _micros(value: dt.datetime) -> int:
    return (value - _EPOCH) // _MICROSECOND


def _naive_micros(value: dt.datetime) -> int:
    return _micros(_in_utc(value))
