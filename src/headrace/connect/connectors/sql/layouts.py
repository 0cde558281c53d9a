"""Tables as a sink sees them: names, columns, keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.connect.schema import BOOLEAN, BYTES, FLOAT64, INT64, STRING, Type, mapping

if TYPE_CHECKING:
    from headrace.connect import Schema

__all__ = ["Column", "Layout", "TableName", "inferred_schema", "is_document", "table_name"]

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
    """Give the table of a topic.

    >>> table_name("sales.${topic}", "orders")
    TableName(schema='sales', name='orders')
    """
    schema, dot, name = template.partition(".")
    if not dot:
        return TableName(None, _VARIABLE.sub(lambda _: topic, template))
    return TableName(schema, _VARIABLE.sub(lambda _: topic, name))


@dataclass(frozen=True, slots=True)
class Column:
    """A column that a record asks for."""

    name: str
    schema: Schema
    key: bool = False


@dataclass(frozen=True)
class Layout:
    """A table as the database has it."""

    table: TableName
    #: Column names to the types that the database gives them.
    columns: Mapping[str, str]

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of its columns."""
        return frozenset(self.columns)


def inferred_schema(value: Any) -> Schema | None:
    """Say what a value without a schema is; ``None`` when nobody can tell yet.

    >>> inferred_schema(True), inferred_schema(1.5), inferred_schema(None)
    (boolean?, double?, None)
    """
    # bool before int, of which it is a kind.
    for kind, schema in _PYTHON:
        if isinstance(value, kind):
            return schema.as_optional()
    return None


_PYTHON: tuple[tuple[type | tuple[type, ...], Schema], ...] = (
    (bool, BOOLEAN),
    (int, INT64),
    (float, FLOAT64),
    (str, STRING),
    ((bytes, bytearray, memoryview), BYTES),
    ((dict, list, tuple), _DOCUMENT),
)


def is_document(schema: Schema) -> bool:
    """Whether a value of this schema has no column type of its own and is kept as JSON."""
    if schema.type is Type.ARRAY:
        return schema.items is None or not schema.items.type.primitive
    return schema.type in {Type.MAP, Type.STRUCT}
