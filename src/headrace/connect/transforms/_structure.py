"""What transforms of fields share: the checks of structs and maps, and schemas made from schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, TypeVar

from headrace.connect.config import key
from headrace.connect.schema import Field, Schema, Type
from headrace.errors import TransformError

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")

REPLACE_NULLS: Final = key(
    "replace.null.with.default",
    bool,
    "Whether a field that is null takes the default of its schema.",
    default=True,
)


class SchemaCache(Generic[T]):
    """Keeps what was made of the schemas that came last.

    Converters mostly use the same schema object again and again: looking it up by identity costs
    nothing, while comparing schemas walks through them.  Equal schemas have the same result.
    """

    def __init__(self, make: Callable[[Schema], T], size: int = 64) -> None:
        self._make = make
        self._size = size
        # The schema is kept beside its result: its identity is not given to another.
        self._same: dict[int, tuple[Schema, T]] = {}
        self._equal: dict[Schema, T] = {}

    def __getitem__(self, schema: Schema) -> T:
        found = self._same.get(id(schema))
        if found is not None:
            return found[1]
        made = self._equal.get(schema)
        if made is None:
            made = _keep(self._equal, schema, self._make(schema), self._size)
        _keep(self._same, id(schema), (schema, made), self._size)
        return made


def _keep(known: dict[K, V], name: K, value: V, most: int) -> V:
    """Put a value where the oldest one goes."""
    if len(known) >= most:
        del known[next(iter(known))]
    known[name] = value
    return value


def need_struct(schema: Schema, value: Any, purpose: str) -> dict[str, Any]:
    """Return a struct's fields.

    Raises
    ------
    TransformError
        It is not a struct.
    """
    if schema.type is not Type.STRUCT or not isinstance(value, dict):
        raise TransformError(
            f"{purpose} needs a struct, and this is {schema.type}.",
            hint="Put HoistField before it, or choose the other side with $Key or $Value.",
        )
    return value


def need_map(value: Any, purpose: str) -> dict[Any, Any]:
    """Return a value without a schema as the map that it must be.

    Raises
    ------
    TransformError
        It is not a map.
    """
    if not isinstance(value, dict):
        raise TransformError(
            f"{purpose} needs a map where there is no schema, and this is a {type(value).__name__}.",
            hint="Put HoistField before it, or choose the other side with $Key or $Value.",
        )
    return value


def field_value(value: dict[str, Any], field: Field, *, replace_nulls: bool) -> Any:
    """Return a field of a struct, or its default where it is null."""
    found = value.get(field.name)
    if found is None and replace_nulls and field.schema.has_default:
        return field.schema.default
    return found


def field_values(struct: dict[str, Any], schema: Schema, *, replace_nulls: bool) -> dict[str, Any]:
    """Return the fields of a struct, with defaults in place of nulls where that is asked for."""
    return {
        one.name: field_value(struct, one, replace_nulls=replace_nulls) for one in schema.fields
    }


def with_changed(
    schema: Schema | None,
    value: Any,
    names: Iterable[str],
    change: Callable[[str, Any, Schema | None], Any],
    *,
    purpose: str,
    replace_nulls: bool,
) -> dict[Any, Any]:
    """Return a struct, or a map without a schema, in which some fields are changed.

    A map gets those that it lacks; those that a struct lacks are passed over.
    """
    if schema is None:
        mapped = need_map(value, purpose)
        return mapped | {name: change(name, mapped.get(name), None) for name in names}
    values = field_values(need_struct(schema, value, purpose), schema, replace_nulls=replace_nulls)
    there = (schema.by_name[name] for name in names if name in values)
    return values | {one.name: change(one.name, values[one.name], one.schema) for one in there}


def rebuilt(schema: Schema, fields: tuple[Field, ...]) -> Schema:
    """Return a struct with other fields that keeps its name, version, doc and parameters."""
    return Schema(
        Type.STRUCT,
        name=schema.name,
        version=schema.version,
        doc=schema.doc,
        parameters=schema.parameters,
        fields=fields,
    )
