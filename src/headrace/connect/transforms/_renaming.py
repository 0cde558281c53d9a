"""New names for the fields of structs."""

from __future__ import annotations

from collections.abc import Callable

from headrace.connect.schema import Field, Schema, Type


def renamed(schema: Schema, name_of: Callable[[str], str]) -> tuple[Schema, dict[str, str]]:
    """Return a struct with new names for its fields, and the new name of each.

    Any other schema stays as it is, without names.
    """
    if schema.type is not Type.STRUCT:
        return schema, {}
    names = {one.name: name_of(one.name) for one in schema.fields}
    fields = (Field(names[one.name], one.schema) for one in schema.fields)
    return schema.with_fields(*fields), names
