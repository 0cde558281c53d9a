"""How a record becomes a row."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from operator import itemgetter
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from headrace.connect import (
    Config,
    ConfigProblem,
    Schema,
    SchemaError,
    SinkRecord,
    at_least,
    between,
    declare,
    key,
    one_of,
)
from headrace.connect.connectors.texts import place_of
from headrace.connect.schema import INT32, INT64, STRING, Type, infer, mapping

# Config keys that all SQL sinks share, by the names of Kafka Connect's JDBC sink.

SINK_KEYS = declare(
    key(
        "insert.mode",
        str,
        "How records become rows: insert adds a row for each, upsert replaces the row that has the"
        " same key, update changes rows that are there and adds none.",
        default="insert",
        valid=one_of("insert", "upsert", "update"),
        importance="high",
        group="Writing",
    ),
    key(
        "table.name.format",
        str,
        "The table of a topic; ${topic} stands for the topic's name, a dot parts schema and table.",
        default="${topic}",
        group="Mapping",
    ),
    key(
        "pk.mode",
        str,
        "What a row's primary key is made of: none, the record's key (record_key), fields of its"
        " value (record_value), or where it stands in its topic (coordinates).",
        default="none",
        valid=one_of("none", "record_key", "record_value", "coordinates", "kafka"),
        importance="high",
        group="Mapping",
        dependents=("pk.fields",),
    ),
    key(
        "pk.fields",
        list,
        "Columns of the primary key. With record_key: fields of the key, all of them where none is"
        " named, or the one name for a key that is a single value. With record_value: fields of the"
        " value. With coordinates: four names for topic, broker, queue and offset.",
        default=[],
        group="Mapping",
    ),
    key(
        "fields.include",
        list,
        "Fields of the value that become columns; all of them where none is named.",
        default=[],
        aliases=("fields.whitelist",),
        group="Mapping",
    ),
    key(
        "fields.exclude",
        list,
        "Fields of the value that are left out.",
        default=[],
        group="Mapping",
    ),
    key(
        "delete.enabled",
        bool,
        "Whether a record without a value deletes the row of its key; needs pk.mode=record_key.",
        default=False,
        group="Writing",
    ),
    key(
        "auto.create",
        bool,
        "Whether a missing table is created.",
        default=False,
        group="Tables",
    ),
    key(
        "auto.evolve",
        bool,
        "Whether missing columns are added to a table. Columns are never changed or dropped.",
        default=False,
        group="Tables",
    ),
    key(
        "exactly.once",
        bool,
        "Whether the offsets are kept in the database, in the transaction of the rows.",
        default=True,
        importance="high",
        group="Guarantee",
    ),
    key(
        "offsets.table",
        str,
        "The table that keeps the offsets.",
        default="headrace_connect_offsets",
        group="Guarantee",
    ),
    key(
        "offsets.name",
        str,
        "The name under which offsets are kept; the connector's name where none is given. Two"
        " clusters whose connectors share name and database need different ones.",
        group="Guarantee",
    ),
    key(
        "connection.attempts",
        int,
        "How often a transaction is tried again after a lost connection or a conflict.",
        default=5,
        valid=between(1, 100),
        group="Connection",
    ),
    key(
        "connection.backoff.ms",
        timedelta,
        "The pause before such a try; it doubles each time.",
        default=timedelta(seconds=0.2),
        valid=at_least(timedelta(0)),
        group="Connection",
    ),
)


def sink_problems(config: Config) -> Iterator[ConfigProblem]:
    """Name what contradicts itself in a sink's config."""
    mode, insert = config["pk.mode"], config["insert.mode"]
    fields = config["pk.fields"]
    if insert in {"upsert", "update"} and mode == "none":
        message = f"insert.mode={insert} needs a primary key: set pk.mode to another value."
        yield ConfigProblem("pk.mode", message)
    if config["delete.enabled"] and mode != "record_key":
        message = "delete.enabled=true needs pk.mode=record_key: deletes carry nothing but a key."
        yield ConfigProblem("delete.enabled", message)
    if mode == "record_value" and not fields:
        message = "pk.mode=record_value needs pk.fields: the fields of the value that are the key."
        yield ConfigProblem("pk.fields", message)
    if mode in {"coordinates", "kafka"} and len(fields) not in {0, 4}:
        message = "pk.fields must name four columns for topic, broker, queue and offset, or none."
        yield ConfigProblem("pk.fields", message)
    if mode == "none" and fields:
        message = "pk.fields says nothing while pk.mode=none."
        yield ConfigProblem("pk.fields", message)


# What a batch of records changes in tables, and in which order that is written.

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
class WritableRows:
    """Rows that one statement can write: one table, one action, the same columns."""

    action: Action
    table: TableName
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]] = field(default_factory=list)


def plan(changes: Sequence[Change], mode: Mode) -> list[WritableRows]:
    """Turn changes into steps that leave the same rows behind as one change after the other.

    Tables are written one after the other, as records of different tables have no order among
    them.  Of several upserts of a key, the last value of each column is what counts.
    """
    steps: list[WritableRows] = []
    for group in _by_table(changes):
        steps += _upserts(group) if mode == "upsert" else list(_in_order(group, mode))
    return steps


def _by_table(changes: Iterable[Change]) -> Iterable[list[Change]]:
    groups: dict[TableName, list[Change]] = {}
    for change in changes:
        groups.setdefault(change.table, []).append(change)
    return groups.values()


def _upserts(changes: Sequence[Change]) -> list[WritableRows]:
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


def _steps(changes: Iterable[Change], action: Action) -> Iterable[WritableRows]:
    steps: dict[tuple[str, ...], WritableRows] = {}
    for change in changes:
        step = steps.get(change.columns)
        if step is None:
            step = WritableRows(action, change.table, change.keys, change.columns)
            steps[change.columns] = step
        step.rows.append(change.row)
    return steps.values()


def _in_order(changes: Iterable[Change], mode: Mode) -> Iterator[WritableRows]:
    # A step ends where the kind of change does, or where an update meets its own key again.
    step: WritableRows | None = None
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
            step = WritableRows(action, change.table, change.keys, change.columns)
            seen.clear()
        step.rows.append(change.row)
        if action == "update":
            seen.add(change.key)
    if step is not None:
        yield step


# The seam between sinks and databases: what a database must offer to be written to.

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
    def layout(self, table: TableName) -> TableLayout | None:
        """Describe a table; ``None`` when it does not exist."""

    @abstractmethod
    def column_type(self, schema: Schema, *, key: bool) -> str:
        """Return the type of a new column for values of this schema."""

    @abstractmethod
    def judge(self, error: BaseException) -> Verdict:
        """Return what an error of this database means."""

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
        """Return what turns values into those that the driver writes into a column of this type."""
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

    def create(self, table: TableName, columns: Sequence[SqlColumn]) -> None:
        """Create a table."""
        lines = [self._definition(column) for column in columns]
        if keys := [self.quote(column.name) for column in columns if column.key]:
            lines.append(f"PRIMARY KEY ({', '.join(keys)})")
        self.execute(f"CREATE TABLE IF NOT EXISTS {self.named(table)} ({', '.join(lines)})")

    def add(self, table: TableName, columns: Sequence[SqlColumn]) -> None:
        """Add columns to a table."""
        for column in columns:
            self.execute(f"ALTER TABLE {self.named(table)} ADD COLUMN {self._definition(column)}")

    def _definition(self, column: SqlColumn) -> str:
        kind = self.column_type(column.schema, key=column.key)
        null = " NOT NULL" if column.key or not column.schema.optional else ""
        return f"{self.quote(column.name)} {kind}{null}"

    def write(self, step: WritableRows) -> None:
        """Write the rows of a step."""
        self.execute_many(self.statement(step), self.ordered(step))

    def ordered(self, step: WritableRows) -> list[tuple[Any, ...]]:
        """Put the values of a step into the order in which its statement names them."""
        if step.action != "update":
            return step.rows
        count = len(step.keys)
        return [(*row[count:], *row[:count]) for row in step.rows]

    def statement(self, step: WritableRows) -> str:
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

    def on_conflict(self, step: WritableRows) -> str:
        """Write what happens to a row whose key is there already."""
        keys = ", ".join(self.quote(key) for key in step.keys)
        others = [self.quote(name) for name in step.columns[len(step.keys) :]]
        if not others:
            return f"ON CONFLICT ({keys}) DO NOTHING"
        changed = ", ".join(f"{name} = excluded.{name}" for name in others)
        return f"ON CONFLICT ({keys}) DO UPDATE SET {changed}"


# Tables as a sink sees them: names, columns, keys.

_VARIABLE = re.compile(r"\$\{topic\}")
#: Dicts and lists without a schema are kept as JSON.
_DOCUMENT = mapping(STRING, STRING)


class TableName(NamedTuple):
    """A table, in a schema of the database or where the database looks by itself."""

    schema: str | None
    name: str

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"


def table_name(template: str, topic: str) -> TableName:
    """Return the table of a topic.

    >>> table_name("sales.${topic}", "orders")
    TableName(schema='sales', name='orders')
    """
    schema, dot, name = template.partition(".")
    if not dot:
        return TableName(None, _VARIABLE.sub(lambda _: topic, template))
    return TableName(schema, _VARIABLE.sub(lambda _: topic, name))


@dataclass(frozen=True, slots=True)
class SqlColumn:
    """A column that a record asks for."""

    name: str
    schema: Schema
    key: bool = False


@dataclass(frozen=True)
class TableLayout:
    """A table as the database has it."""

    table: TableName
    #: Column names to the types that the database gives them.
    columns: Mapping[str, str]

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of its columns."""
        return frozenset(self.columns)


def inferred_schema(value: Any) -> Schema | None:
    """Return the schema of a value that has none; ``None`` when nobody can tell yet.

    >>> inferred_schema(True), inferred_schema(1.5), inferred_schema(None)
    (boolean?, double?, None)
    """
    if isinstance(value, dict | list | tuple):
        return _DOCUMENT.as_optional()
    found = infer(value)
    return None if found is None else found.as_optional()


def is_document(schema: Schema) -> bool:
    """Whether a value of this schema has no column type of its own and is kept as JSON."""
    if schema.type is Type.ARRAY:
        return schema.items is None or not schema.items.type.primitive
    return schema.type in {Type.MAP, Type.STRUCT}


#: Columns of a key that says where a record stands.
COORDINATES = ("__connect_topic", "__connect_broker", "__connect_queue", "__connect_offset")
_COORDINATE_TYPES = (STRING, STRING, INT32, INT64)

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class MappingOptions:
    """What decides how records become rows."""

    table: str = "${topic}"
    pk_mode: str = "none"
    pk_fields: tuple[str, ...] = ()
    include: frozenset[str] = frozenset()
    exclude: frozenset[str] = frozenset()
    delete: bool = False

    @classmethod
    def of(cls, config: Config) -> MappingOptions:
        """Read them from a sink's config."""
        mode = config["pk.mode"]
        return cls(
            table=config["table.name.format"],
            pk_mode="coordinates" if mode == "kafka" else mode,
            pk_fields=tuple(config["pk.fields"]),
            include=frozenset(config["fields.include"]),
            exclude=frozenset(config["fields.exclude"]),
            delete=config["delete.enabled"],
        )


@dataclass(slots=True)
class RowMapper:
    """Turns records into changes of rows.

    Raises
    ------
    SchemaError
        By :meth:`change`, for a record that cannot be a row.
    """

    options: MappingOptions
    _tables: dict[str, TableName] = field(default_factory=dict)
    #: What to take out of a value with these fields, for a key with those columns.
    _shapes: dict[tuple[tuple[str, ...], tuple[str, ...]], _Shape] = field(default_factory=dict)

    def change(self, record: SinkRecord) -> Change:
        """Return what a record does to which row."""
        topic = record.topic
        table = self._tables.get(topic)
        if table is None:
            table = self._tables[topic] = table_name(self.options.table, topic)
        if record.value is None:
            return self._delete(table, record)
        value = _fields(record.value, record, "value")
        keys, key = self._key(record, value)
        shape = self._shape(keys, tuple(value))
        return Change(table, keys, shape.columns, key + shape.values(value), False, record)  # noqa: FBT003

    def columns(self, change: Change) -> list[SqlColumn]:
        """Return the columns that a change writes to, as far as the record tells their types."""
        record = change.record
        value = _by_field(record.value_schema)
        key = self._key_schemas(record, change, value)
        found = []
        for name, cell in zip(change.columns, change.row, strict=True):
            is_key = name in change.keys
            schema = (key if is_key else value).get(name) or inferred_schema(cell)
            if schema is not None:
                found.append(SqlColumn(name, schema.as_required() if is_key else schema, is_key))
        return found

    def _delete(self, table: TableName, record: SinkRecord) -> Change:
        if not self.options.delete:
            raise SchemaError(
                f"The {place_of(record)} has no value, which would delete a row.",
                hint="Set delete.enabled=true, or drop such records with the transform Filter.",
            )
        keys, key = self._record_key(record)
        return Change(table, keys, keys, key, True, record)  # noqa: FBT003

    def _key(self, record: SinkRecord, value: Mapping[str, Any]) -> tuple[tuple[str, ...], Row]:
        mode = self.options.pk_mode
        if mode == "none":
            return (), ()
        if mode == "record_key":
            return self._record_key(record)
        if mode == "coordinates":
            queue = record.queue
            names = self.options.pk_fields or COORDINATES
            return names, (queue.topic, queue.broker, queue.queue_id, record.offset)
        names = self.options.pk_fields
        return names, _picked(names, value, record, "value")

    def _record_key(self, record: SinkRecord) -> tuple[tuple[str, ...], Row]:
        names, key = self.options.pk_fields, record.key
        if key is None:
            raise SchemaError(
                f"The {place_of(record)} has no key, which pk.mode=record_key takes a row's key from.",
                hint="Set keys where the records are made, or use the transform ValueToKey.",
            )
        if isinstance(key, Mapping):
            names = names or tuple(key)
            return names, _picked(names, key, record, "key")
        if len(names) != 1:
            raise SchemaError(
                f"The {place_of(record)} has the single value {key!r:.100} for a key, and pk.fields"
                f" names {len(names)} columns.",
                hint="Set pk.fields to the one column that takes the key.",
            )
        return names, (key,)

    def _shape(self, keys: tuple[str, ...], fields: tuple[str, ...]) -> _Shape:
        found = self._shapes.get((keys, fields))
        if found is None:
            include, exclude = self.options.include, self.options.exclude
            others = tuple(
                name
                for name in fields
                if name not in keys and (not include or name in include) and name not in exclude
            )
            found = self._shapes[keys, fields] = _Shape(keys + others, _taker(others))
        return found

    def _key_schemas(
        self, record: SinkRecord, change: Change, value: Mapping[str, Schema]
    ) -> Mapping[str, Schema]:
        if self.options.pk_mode == "coordinates":
            return dict(zip(change.keys, _COORDINATE_TYPES, strict=True))
        if self.options.pk_mode == "record_value":
            return value
        schema = record.key_schema
        if schema is not None and schema.type is not Type.STRUCT and len(change.keys) == 1:
            return {change.keys[0]: schema}
        return _by_field(schema)


@dataclass(frozen=True, slots=True)
class _Shape:
    columns: tuple[str, ...]
    values: Callable[[Mapping[str, Any]], Row]


def _taker(names: Sequence[str]) -> Callable[[Mapping[str, Any]], Row]:
    if not names:
        return lambda _: ()
    if len(names) == 1:
        name = names[0]
        return lambda value: (value[name],)
    return itemgetter(*names)


def _by_field(schema: Schema | None) -> Mapping[str, Schema]:
    if schema is None or schema.type is not Type.STRUCT:
        return {}
    return {one.name: one.schema for one in schema.fields}


def _fields(value: Any, record: SinkRecord, part: str) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    raise SchemaError(
        f"The {place_of(record)}: its {part} is {type(value).__name__} {value!r:.100}, and a row"
        " needs named fields.",
        hint="Choose a converter that gives structs or maps, or use the transform HoistField.",
    )


def _picked(names: Iterable[str], values: Mapping[str, Any], record: SinkRecord, part: str) -> Row:
    found = tuple(values.get(name) for name in names)
    for name, one in zip(names, found, strict=True):
        if one is None:
            raise SchemaError(
                f"The {place_of(record)}: field {name!r} of its {part}, which pk.fields names, is"
                " missing or null.",
                hint=f"The {part} has the fields {', '.join(map(str, values)) or 'none'}.",
            )
        if isinstance(one, dict | list):
            raise SchemaError(
                f"The {place_of(record)}: field {name!r} of its {part} is a {type(one).__name__},"
                " which cannot be part of a primary key.",
                hint="Name another field in pk.fields.",
            )
    return found
