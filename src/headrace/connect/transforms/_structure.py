"""What transforms of fields share: the checks of structs and maps, and schemas made from schemas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from headrace.connect.config import key
from headrace.connect.schema import Field, Schema, Type
from headrace.errors import TransformError

__all__ = [
    "REPLACE_NULLS",
    "SchemaCache",
    "field_value",
    "need_map",
    "need_struct",
    "rebuilt",
]

T = TypeVar("T")

REPLACE_NULLS: Final = key(
    "replace.null.with.default",
    bool,
    "Whether a field that is null takes the default of its schema.",
    default=True,
)


class SchemaCache(Generic[T]):
    """Keeps what was made of the schemas that came last.

    Converters give the same schema object again and again: looking it up by identity costs nothing,
    while comparing schemas walks through them.
    """

    def __init__(self, make: Callable[[Schema], T], size: int = 16) -> None:
        self._make = make
        self._size = size
        # The schema is kept beside its result: its identity is not given to another.
        self._made: dict[int, tuple[Schema, T]] = {}

    def __getitem__(self, schema: Schema) -> T:
        found = self._made.get(id(schema))
        if found is None:
            found = (schema, self._make(schema))
            if len(self._made) >= self._size:
                del self._made[next(iter(self._made))]
            self._made[id(schema)] = found
        return found[1]


def need_struct(schema: Schema, value: Any, purpose: str) -> dict[str, Any]:
    """Give a struct's fields.

    Raises
    ------
    TransformError
        It is none.
    """
    if schema.type is not Type.STRUCT or not isinstance(value, dict):
        raise TransformError(
            f"{purpose} needs a struct, and this is {schema.type}.",
            hint="Put HoistField before it, or choose the other side with $Key or $Value.",
        )
    return value


def need_map(value: Any, purpose: str) -> dict[Any, Any]:
    """Give a value without a schema as the map that it must be.

    Raises
    ------
    TransformError
        It is none.
    """
    if not isinstance(value, dict):
        raise TransformError(
            f"{purpose} needs a map where there is no schema, and this is a {type(value).__name__}.",
            hint="Put HoistField before it, or choose the other side with $Key or $Value.",
        )
    return value


def field_value(value: dict[str, Any], field: Field, *, replace_nulls: bool) -> Any:
    """Give a field of a struct, or its default where it is null."""
    found = value.get(field.name)
    if found is None and replace_nulls and field.schema.has_default:
        return field.schema.default
    return found


def rebuilt(schema: Schema, fields: tuple[Field, ...]) -> Schema:
    """Give a struct with other fields that keeps its name, version, doc and parameters."""
    return Schema(
        Type.STRUCT,
        name=schema.name,
        version=schema.version,
        doc=schema.doc,
        parameters=schema.parameters,
        fields=fields,
    )
