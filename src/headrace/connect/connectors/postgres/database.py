"""PostgreSQL as a database that sinks write to."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import orjson
import psycopg
import pyarrow as pa
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.conninfo import make_conninfo
from psycopg.types import TypeInfo
from psycopg.types.string import TextLoader

from headrace.connect import (
    Config,
    ConfigDeclaration,
    Schema,
    SchemaError,
    SinkTask,
)
from headrace.connect.connectors.postgres.connection import (
    CONNECTION_KEYS,
    Connection,
    connect,
    connection_words,
    is_outage,
    outages_told,
)
from headrace.connect.connectors.sql import (
    SINK_KEYS,
    Adapter,
    SqlDatabase,
    SqlSinkConnector,
    SqlSinkTask,
    TableLayout,
    TableName,
    Verdict,
    WritableRows,
    is_document,
)
from headrace.connect.schema import (
    BOOLEAN,
    BYTES,
    DATE,
    DATE_NAME,
    DECIMAL_NAME,
    FLOAT32,
    FLOAT64,
    INT16,
    INT32,
    INT64,
    STRING,
    TIME,
    TIME_NAME,
    TIMESTAMP,
    TIMESTAMP_NAME,
    Type,
    array,
    decimal,
    struct,
)

if TYPE_CHECKING:
    from headrace.connect.connectors.postgres.pgoutput import Row


# PostgreSQL's types and Connect's, both ways.

#: Names of strings that say more than their type does.
JSON_NAME = "headrace.Json"
UUID_NAME = "headrace.Uuid"

_BY_NAME: Mapping[str, str] = {
    DECIMAL_NAME: "numeric",
    DATE_NAME: "date",
    TIME_NAME: "time",
    TIMESTAMP_NAME: "timestamp with time zone",
    JSON_NAME: "jsonb",
    UUID_NAME: "uuid",
}
_BY_TYPE: Mapping[Type, str] = {
    Type.INT8: "smallint",
    Type.INT16: "smallint",
    Type.INT32: "integer",
    Type.INT64: "bigint",
    Type.FLOAT32: "real",
    Type.FLOAT64: "double precision",
    Type.BOOLEAN: "boolean",
    Type.STRING: "text",
    Type.BYTES: "bytea",
}


def column_type(schema: Schema) -> str:
    """Return the type of a column for values of a schema.

    >>> from headrace.connect.schema import INT64, array, decimal
    >>> column_type(decimal(2)), column_type(array(INT64))
    ('numeric', 'bigint[]')
    """
    if is_document(schema):
        return "jsonb"
    if schema.type is Type.ARRAY and schema.items is not None:
        return f"{column_type(schema.items)}[]"
    return _BY_NAME.get(schema.name or "") or _BY_TYPE[schema.type]


def value_adapter(kind: str) -> Callable[[Any], Any] | None:
    """Return what turns a value into one for a column of this type; ``None``: it is one already."""
    if kind in {"json", "jsonb"}:
        return _document
    if kind in {"text", "character varying", "character"}:
        return _text
    return None


def _document(value: Any) -> Any:
    # A string is a document already, as the source of this package and most others write it.
    return value if isinstance(value, str) else _dumps(value)


def _text(value: Any) -> Any:
    return _dumps(value) if isinstance(value, dict | list) else value


def _dumps(value: Any) -> str:
    return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS).decode()


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    message = f"a {type(value).__name__} has no place in a JSON document"
    raise TypeError(message)


# Columns as a source reads them: their schemas, and what turns their values into Connect's.

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
#: int8, int2, int4, text, bpchar and varchar, by their fixed numbers.
_AS_WRITTEN = frozenset({20, 21, 23, 25, 1042, 1043})
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
        """Return a row, as the driver loaded it, as a struct; cells behind the columns are left."""
        found = dict(zip(self._names, row, strict=False))
        for name, convert in self._converts:
            cell = found[name]
            if cell is not None:
                found[name] = convert(cell)
        return found

    def struct(self, rows: Sequence[Sequence[Any]]) -> pa.StructArray | None:
        """Return rows, as the driver loaded them, as structs in a column.

        None: not all types can be.
        """
        if self._kinds is None:
            return None
        cells = zip(*rows, strict=True)
        columns = [
            pa.array(list(some), kind) for some, kind in zip(cells, self._kinds, strict=True)
        ]
        return pa.StructArray.from_arrays(columns, self._names)

    @property
    def has_columns(self) -> bool:
        """Whether the types of all columns are ones that Arrow has."""
        return self._kinds is not None

    def loaded_struct(
        self, rows: Sequence[Row], loads: Sequence[Callable[[bytes], Any]]
    ) -> pa.StructArray:
        """Return rows of texts, as the server wrote them, as structs in a column."""
        assert self._kinds is not None
        columns = [
            _loaded_column(cells, column.type_oid, kind, load)
            for cells, column, kind, load in zip(
                zip(*rows, strict=True), self.columns, self._kinds, loads, strict=True
            )
        ]
        return pa.StructArray.from_arrays(columns, self._names)

    def struct_key(self, structs: pa.StructArray) -> pa.StructArray | None:
        """Return the keys of structs in a column; ``None`` where the table has none."""
        if not self.keys:
            return None
        return pa.StructArray.from_arrays([structs.field(name) for name in self.keys], self.keys)

    def key(self, value: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the key of a struct; ``None`` where the table has none."""
        return {name: value[name] for name in self.keys} if self.keys else None

    def loaders(self, connection: Connection) -> list[Callable[[bytes], Any]]:
        """Return what loads the text of each column, as the connection itself does."""
        transformer = Transformer(connection)
        return [transformer.get_loader(one.type_oid, pq.Format.TEXT).load for one in self.columns]


def _loaded_column(
    cells: Row, oid: int, kind: pa.DataType, load: Callable[[bytes], Any]
) -> pa.Array:
    if oid in _AS_WRITTEN:
        # The text is the value, or its digits: Arrow reads a column of them at once.
        return pa.array(cells, pa.string()).cast(kind)
    return pa.array([load(cell) if isinstance(cell, bytes) else None for cell in cells], kind)


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

    def layout(self, table: TableName) -> TableLayout | None:
        """Describe a table; ``None`` when it does not exist."""
        rows = self.execute(
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
            " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
            " AND attgenerated = '' ORDER BY attnum",
            (self.named(table),),
        )
        return TableLayout(table, dict(rows)) if rows else None

    def column_type(self, schema: Schema, *, key: bool) -> str:
        """Return the type of a new column for values of this schema."""
        del key
        return column_type(schema)

    def adapter(self, column_type: str) -> Adapter | None:
        """Return what turns values into those that a column of this type takes."""
        return value_adapter(column_type)

    def judge(self, error: BaseException) -> Verdict:
        """Return what an error means."""
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

    def write(self, step: WritableRows) -> None:
        """Write the rows of a step: many of them by way of COPY."""
        if len(step.rows) < _BULK:
            super().write(step)
        elif step.action == "insert":
            self._copy(self.named(step.table), step)
        else:
            temporary = self._filled(step)
            self.execute(self._from_temporary(step, temporary))

    def _filled(self, step: WritableRows) -> str:
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

    def _copy(self, table: str, step: WritableRows) -> None:
        columns = ", ".join(map(self.quote, step.columns))
        statement = f"COPY {table} ({columns}) FROM STDIN"
        with self._cursor.copy(statement) as copy:
            write = copy.write_row
            for row in step.rows:
                write(row)

    def _from_temporary(self, step: WritableRows, temporary: str) -> str:
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


# ``postgres-sink``: topics become tables, exactly once.


class PostgresSinkTask(SqlSinkTask):
    """Writes rows and offsets to PostgreSQL in one transaction per batch."""

    def connect(self, config: Config, owner: str) -> SqlDatabase:
        """Open a connection that ends by itself when its task hangs inside a transaction."""
        # A process that stands still would keep its locks for ever.
        more = {"idle_in_transaction_session_timeout": "60s", "lock_timeout": "30s"}
        with outages_told():
            return PostgresDatabase(connection_words(config, owner, **more))


class PostgresSinkConnector(SqlSinkConnector):
    """Writes topics to tables of PostgreSQL."""

    version: ClassVar[str] = "1.0"
    config: ClassVar[ConfigDeclaration] = CONNECTION_KEYS | SINK_KEYS
    task: ClassVar[type[SinkTask]] = PostgresSinkTask

    def database(self, config: Config) -> SqlDatabase:
        """Open a connection."""
        return PostgresDatabase(connection_words(config, "headrace-offsets"))
