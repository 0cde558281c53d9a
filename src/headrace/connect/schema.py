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
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from headrace.errors import SchemaError

__all__ = [
    "BOOLEAN",
    "BYTES",
    "DATE",
    "DATE_NAME",
    "DECIMAL_NAME",
    "FLOAT32",
    "FLOAT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "NO_DEFAULT",
    "STRING",
    "TIME",
    "TIMESTAMP",
    "TIMESTAMP_NAME",
    "TIME_NAME",
    "Field",
    "Schema",
    "Type",
    "array",
    "decimal",
    "mapping",
    "struct",
]

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
    """Tells "no default" from the default ``None``."""

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

    Schemas are immutable; the methods below give changed copies.

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
        """Give the field of a struct that has this name.

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
        """Give a copy in which the named attributes differ.

        >>> STRING.changed(name="word", doc="One word.")
        string word
        """
        return dataclasses.replace(self, **changes)

    def as_optional(self) -> Schema:
        """Give this schema with ``None`` allowed."""
        return self if self.optional else self.changed(optional=True)

    def as_required(self) -> Schema:
        """Give this schema with ``None`` refused."""
        return self.changed(optional=False) if self.optional else self

    def with_default(self, default: object) -> Schema:
        """Give this schema with a default for missing values."""
        return self.changed(default=default)

    def with_fields(self, *fields: Field) -> Schema:
        """Give this struct with these fields in place of its own."""
        return self.changed(fields=fields)

    def is_a(self, name: str) -> bool:
        """Whether this is the logical type of that name, such as ``TIMESTAMP_NAME``."""
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
