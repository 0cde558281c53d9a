"""Schemas: what a key, a value or a header is, in the types that Kafka Connect has.

A value travels as a plain Python value beside its schema:

==================  ==============================================
type                Python value
==================  ==============================================
INT8 to INT64       ``int``
FLOAT32, FLOAT64    ``float``
BOOLEAN             ``bool``
STRING              ``str``
BYTES               ``bytes``
ARRAY               ``list``
MAP                 ``dict``
STRUCT              ``dict`` from field name to value
decimal(scale)      ``decimal.Decimal`` (a BYTES with that name)
DATE                ``datetime.date`` (an INT32)
TIME                ``datetime.time`` (an INT32, milliseconds)
TIMESTAMP           ``datetime.datetime`` with a zone (an INT64, milliseconds)
==================  ==============================================

A value without a schema is data of JSON's shape: dicts are maps then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headrace.errors import SchemaError as SchemaError  # noqa: PLC0414

if TYPE_CHECKING:
    import pyarrow as pa


DECIMAL_NAME = "org.apache.kafka.connect.data.Decimal"
DATE_NAME = "org.apache.kafka.connect.data.Date"
TIME_NAME = "org.apache.kafka.connect.data.Time"
TIMESTAMP_NAME = "org.apache.kafka.connect.data.Timestamp"


class Type(StrEnum):
    """The types of schemas, by the names that Kafka Connect writes into JSON."""

    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT32 = "float"
    FLOAT64 = "double"
    BOOLEAN = "boolean"
    STRING = "string"
    BYTES = "bytes"
    ARRAY = "array"
    MAP = "map"
    STRUCT = "struct"

    @property
    def primitive(self) -> bool:
        """Whether values of the type hold no other values."""
        return self not in {Type.ARRAY, Type.MAP, Type.STRUCT}


class _NoDefault:
    """Marker that distinguishes "no default" from the default ``None``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NO_DEFAULT"

    def __reduce__(self) -> str:
        return "NO_DEFAULT"


NO_DEFAULT = _NoDefault()


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct.

    >>> Field("age", INT32)
    Field('age', int32)
    """

    name: str
    schema: Schema

    def __repr__(self) -> str:
        return f"Field({self.name!r}, {self.schema})"


@dataclass(frozen=True, repr=False)
class Schema:
    """What a value is: its type, its name and version, whether it may be missing.

    Schemas are immutable; the methods below return changed copies.

    Examples
    --------
    >>> user = struct({"id": INT64, "name": STRING.as_optional()}, name="user", version=2)
    >>> user.field("name").schema.optional
    True
    >>> print(user)
    struct user v2 {id: int64, name: string?}
    """

    type: Type
    #: Whether ``None`` is a value.
    optional: bool = False
    #: What stands for a missing value; ``NO_DEFAULT`` where nothing does.
    default: Any = NO_DEFAULT
    name: str | None = None
    version: int | None = None
    doc: str | None = None
    #: More that the name's owner wants to know, such as the scale of a decimal.
    parameters: Mapping[str, str] = field(default_factory=dict)
    #: Fields of a struct.
    fields: tuple[Field, ...] = ()
    #: What a map's keys are.
    keys: Schema | None = None
    #: What an array's items or a map's values are.
    items: Schema | None = None

    def __post_init__(self) -> None:
        names = [one.name for one in self.fields]
        if twice := {name for name in names if names.count(name) > 1}:
            message = f"The struct {self.name or ''} has the field {min(twice)!r} twice."
            raise SchemaError(message, hint="Name each field once.")
        if self.type in {Type.ARRAY, Type.MAP} and self.items is None:
            message = f"An {self.type} needs a schema of its items."
            raise SchemaError(message, hint="Make it with array(...) or mapping(...).")
        if self.type is Type.MAP and self.keys is None:
            message = "A map needs a schema of its keys."
            raise SchemaError(message, hint="Make it with mapping(keys, values).")

    def __hash__(self) -> int:
        # A default may be a list or a dict: equal schemas agree in the rest anyway.
        return hash((self.type, self.optional, self.name, self.version, self.fields, self.items))

    def __str__(self) -> str:
        text = self._shape()
        if self.name is not None:
            version = "" if self.version is None else f" v{self.version}"
            before, brace, after = text.partition(" {")
            text = f"{before} {self.name}{version}{brace}{after}"
        return f"{text}?" if self.optional else text

    __repr__ = __str__

    def _shape(self) -> str:
        if self.type is Type.STRUCT:
            return f"struct {{{', '.join(f'{one.name}: {one.schema}' for one in self.fields)}}}"
        if self.type is Type.ARRAY:
            return f"array<{self.items}>"
        if self.type is Type.MAP:
            return f"map<{self.keys}, {self.items}>"
        return str(self.type)

    @cached_property
    def by_name(self) -> Mapping[str, Field]:
        """The fields of a struct by their names."""
        return {one.name: one for one in self.fields}

    def field(self, name: str) -> Field:
        """Return the field of a struct that has this name.

        Raises
        ------
        SchemaError
            When there is none; the message lists those that there are.
        """
        try:
            return self.by_name[name]
        except KeyError:
            message = f"The schema {self.name or self.type} has no field {name!r}."
            there = ", ".join(self.by_name) or "none"
            raise SchemaError(message, hint=f"It has: {there}.") from None

    @property
    def has_default(self) -> bool:
        """Whether something stands for a missing value."""
        return self.default is not NO_DEFAULT

    def changed(self, **changes: Any) -> Schema:
        """Return a copy in which the named attributes differ.

        >>> STRING.changed(name="word", doc="One word.")
        string word
        """
        return dataclasses.replace(self, **changes)

    def as_optional(self) -> Schema:
        """Return this schema with ``None`` allowed."""
        return self if self.optional else self.changed(optional=True)

    def as_required(self) -> Schema:
        """Return this schema with ``None`` refused."""
        return self.changed(optional=False) if self.optional else self

    def with_default(self, default: object) -> Schema:
        """Return this schema with a default for missing values."""
        return self.changed(default=default)

    def with_fields(self, *fields: Field) -> Schema:
        """Return this struct with these fields in place of its own."""
        return self.changed(fields=fields)

    def is_a(self, name: str) -> bool:
        """Return whether this is the logical type of that name, such as ``TIMESTAMP_NAME``."""
        return self.name == name

    @property
    def scale(self) -> int:
        """Digits after the point of a decimal."""
        return int(self.parameters.get("scale", "0"))


INT8 = Schema(Type.INT8)
INT16 = Schema(Type.INT16)
INT32 = Schema(Type.INT32)
INT64 = Schema(Type.INT64)
FLOAT32 = Schema(Type.FLOAT32)
FLOAT64 = Schema(Type.FLOAT64)
BOOLEAN = Schema(Type.BOOLEAN)
STRING = Schema(Type.STRING)
BYTES = Schema(Type.BYTES)
DATE = Schema(Type.INT32, name=DATE_NAME, version=1)
TIME = Schema(Type.INT32, name=TIME_NAME, version=1)
TIMESTAMP = Schema(Type.INT64, name=TIMESTAMP_NAME, version=1)


def decimal(scale: int) -> Schema:
    """Make the schema of decimals with this many digits after the point.

    >>> decimal(2).scale
    2
    """
    return Schema(Type.BYTES, name=DECIMAL_NAME, version=1, parameters={"scale": str(scale)})


def array(items: Schema) -> Schema:
    """Make the schema of lists.

    >>> array(INT32)
    array<int32>
    """
    return Schema(Type.ARRAY, items=items)


def mapping(keys: Schema, values: Schema) -> Schema:
    """Make the schema of maps.

    >>> mapping(STRING, FLOAT64)
    map<string, double>
    """
    return Schema(Type.MAP, keys=keys, items=values)


def struct(
    fields: Mapping[str, Schema],
    *,
    name: str | None = None,
    version: int | None = None,
    doc: str | None = None,
) -> Schema:
    """Make the schema of structs.

    >>> struct({"word": STRING, "count": INT64})
    struct {word: string, count: int64}
    """
    made = tuple(Field(one, schema) for one, schema in fields.items())
    return Schema(Type.STRUCT, name=name, version=version, doc=doc, fields=made)


# Values beside schemas: does one fit, and what schema follows from one.

#: How many bits whole numbers have.
BITS = {Type.INT8: 8, Type.INT16: 16, Type.INT32: 32, Type.INT64: 64}
_SIMPLE: dict[Type, tuple[type, ...]] = {
    Type.FLOAT32: (float, int),
    Type.FLOAT64: (float, int),
    Type.STRING: (str,),
    Type.BYTES: (bytes, bytearray, memoryview),
}
#: What values of logical types are in Python.
LOGICAL: Mapping[str, type] = {
    DATE_NAME: date,
    TIME_NAME: time,
    TIMESTAMP_NAME: datetime,
    DECIMAL_NAME: Decimal,
}


def check(value: Any, schema: Schema, where: str = "value") -> None:
    """Make sure that a value fits its schema.

    Raises
    ------
    SchemaError
        Naming the path to the part that does not fit, what it is and what it should be.

    Examples
    --------
    >>> from headrace.connect.schema import INT32, STRING, struct
    >>> check({"id": 1, "name": "x"}, struct({"id": INT32, "name": STRING}))
    >>> check({"id": "1", "name": "x"}, struct({"id": INT32, "name": STRING}))
    Traceback (most recent call last):
    headrace.errors.SchemaError: value.id is the str '1', which does not fit int32.
    """
    if value is None:
        # A default stands for a missing value, so the value may be missing.
        if not schema.optional and not schema.has_default:
            message = f"{where} is missing, and {schema} is not optional."
            raise SchemaError(message, hint="Give it a value, or make the schema optional.")
    elif schema.type is Type.STRUCT:
        _check_struct(value, schema, where)
    elif schema.type is Type.ARRAY and isinstance(value, list | tuple):
        assert schema.items is not None
        for index, item in enumerate(value):
            check(item, schema.items, f"{where}[{index}]")
    elif schema.type is Type.MAP and isinstance(value, Mapping):
        assert schema.keys is not None
        assert schema.items is not None
        for key, item in value.items():
            check(key, schema.keys, f"a key of {where}")
            check(item, schema.items, f"{where}[{key!r}]")
    elif not _fits(value, schema):
        raise _misfit(value, schema, where)


def _check_struct(value: Any, schema: Schema, where: str) -> None:
    if not isinstance(value, Mapping):
        raise _misfit(value, schema, where)
    if extra := [name for name in value if name not in schema.by_name]:
        message = f"{where} has the field {extra[0]!r}, which {schema} lacks."
        raise SchemaError(message)
    for one in schema.fields:
        check(value.get(one.name), one.schema, f"{where}.{one.name}")


def _fits(value: Any, schema: Schema) -> bool:
    if (logical := LOGICAL.get(schema.name or "")) is not None:
        # A datetime is a date for Python, and not for a schema.
        return isinstance(value, logical) and (
            logical is not date or not isinstance(value, datetime)
        )
    if schema.type is Type.BOOLEAN:
        return isinstance(value, bool)
    if (bits := BITS.get(schema.type)) is not None:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole and -(1 << bits - 1) <= value < 1 << bits - 1
    allowed = _SIMPLE.get(schema.type, ())
    return isinstance(value, allowed) and not isinstance(value, bool)


def _misfit(value: Any, schema: Schema, where: str) -> SchemaError:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    message = f"{where} is the {type(value).__name__} {shown}, which does not fit {schema}."
    return SchemaError(message)


def infer(value: Any) -> Schema | None:
    """Return the schema that follows from a value; ``None`` where none does.

    >>> infer(7), infer("x"), infer([1.5]), infer({"a": 1}), infer([1, "x"])
    (int64, string, array<double>, map<string, int64>, None)
    """
    # The order matters: a bool is an int for Python, a datetime a date.
    for kind, schema in _INFERRED:
        if isinstance(value, kind):
            return schema
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        return decimal(-exponent) if isinstance(exponent, int) and exponent <= 0 else None
    if isinstance(value, list | tuple):
        items = _common(value)
        return None if items is None else array(items)
    if isinstance(value, Mapping):
        keys, items = _common(value), _common(value.values())
        return None if keys is None or items is None else mapping(keys, items)
    return None


_INFERRED: tuple[tuple[type | tuple[type, ...], Schema], ...] = (
    (bool, BOOLEAN),
    (int, INT64),
    (float, FLOAT64),
    (str, STRING),
    ((bytes, bytearray, memoryview), BYTES),
    (datetime, TIMESTAMP),
    (date, DATE),
    (time, TIME),
)


def _common(values: Iterable[Any]) -> Schema | None:
    found = {infer(value) for value in values}
    return found.pop() if len(found) == 1 else None


def schema_of_arrow(kind: pa.DataType) -> Schema:
    """Return the schema that follows from an Arrow type; what may be null is optional.

    Raises
    ------
    SchemaError
        When no schema has such values.

    Examples
    --------
    >>> import pyarrow as pa
    >>> schema_of_arrow(pa.struct([pa.field("id", pa.int32(), nullable=False), ("x", pa.date32())]))
    struct {id: int32, x: int32 org.apache.kafka.connect.data.Date v1?}
    """
    from pyarrow import types

    if types.is_dictionary(kind):
        return schema_of_arrow(kind.value_type)
    if types.is_decimal(kind) and kind.scale >= 0:
        return decimal(kind.scale)
    if types.is_map(kind):
        return mapping(schema_of_arrow(kind.key_type), _of_field(kind.item_field))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return array(_of_field(kind.value_field))
    if types.is_struct(kind):
        return struct({field.name: _of_field(field) for field in kind})
    for name, schema in _ARROW.items():
        if getattr(types, f"is_{name}")(kind):
            return schema
    message = f"No schema has values of the Arrow type {kind}."
    raise SchemaError(message, hint="Cast the column to another type first.")


def _of_field(field: pa.Field) -> Schema:
    schema = schema_of_arrow(field.type)
    return schema.as_optional() if field.nullable else schema


# By what the functions of pyarrow.types are called; unsigned numbers need one size more.
_ARROW: dict[str, Schema] = {
    "boolean": BOOLEAN,
    "int8": INT8,
    "int16": INT16,
    "uint8": INT16,
    "int32": INT32,
    "uint16": INT32,
    "int64": INT64,
    "uint32": INT64,
    "float16": FLOAT32,
    "float32": FLOAT32,
    "float64": FLOAT64,
    "string": STRING,
    "large_string": STRING,
    "binary": BYTES,
    "large_binary": BYTES,
    "fixed_size_binary": BYTES,
    "date": DATE,
    "time": TIME,
    "timestamp": TIMESTAMP,
}
