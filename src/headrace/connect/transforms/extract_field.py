"""ExtractField: a field in place of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.connect.config import Config, declare, key, one_of
from headrace.connect.schema import Schema, Type
from headrace.connect.transforms._structure import (
    REPLACE_NULLS,
    field_value,
    need_map,
    need_struct,
)
from headrace.connect.transforms.base import SidedTransform, both_sides
from headrace.errors import TransformError

if TYPE_CHECKING:
    from headrace.connect.records import SinkRecord, SourceRecord


_PURPOSE = "ExtractField"


# Paths to fields: a name (V1), or names with dots between and backticks around (V2).


def field_path(text: str, version: str) -> tuple[str, ...]:
    """Cut a path into names.

    >>> field_path("`a.b`.c", "V2")
    ('a.b', 'c')
    >>> field_path("a.b", "V1")
    ('a.b',)

    Raises
    ------
    ValueError
        It is empty, or a backtick has no partner.
    """
    if not text:
        raise ValueError("field is empty: name the field to extract.")
    if version.upper() == "V1" or not {".", "`"} & set(text):
        return (text,)
    names = []
    at = 0
    while at <= len(text):
        name, at = _quoted(text, at) if text.startswith("`", at) else _bare(text, at)
        names.append(name)
    return tuple(names)


def _bare(text: str, at: int) -> tuple[str, int]:
    end = text.find(".", at)
    return (text[at:], len(text) + 1) if end < 0 else (text[at:end], end + 1)


def _quoted(text: str, at: int) -> tuple[str, int]:
    """Read a name in backticks: one that stands before a dot or at the end closes it.

    A backslash before such a one says that it belongs to the name.
    """
    name, start = "", at + 1
    end = text.find("`", start)
    while end >= 0:
        closes = end + 1 == len(text) or text[end + 1] == "."
        if closes and text[end - 1] != "\\":
            return name + text[start:end], end + 2
        if closes:
            name, start = f"{name}{text[start : end - 1]}`", end + 1
        end = text.find("`", end + 1)
    raise ValueError(
        f"the path {text!r} has a backtick at character {at + 1} that nothing closes: "
        "write a backslash before it if it belongs to the name."
    )


def schema_at(schema: Schema, path: Sequence[str]) -> Schema | None:
    """Return the schema of the field at a path, or ``None`` where there is none."""
    for name in path:
        if schema.type is not Type.STRUCT:
            raise TransformError(
                f"The path {'.'.join(path)} goes on below a {schema.type}.",
                hint="A path can go through structs only.",
            )
        field = schema.by_name.get(name)
        if field is None:
            return None
        schema = field.schema
    return schema


def value_in_struct(
    value: dict[str, Any], schema: Schema, path: Sequence[str], *, replace_nulls: bool
) -> Any:
    """Return the value at a path through structs; ``None`` where one on the way is null."""
    found: Any = value
    for name in path:
        if found is None:
            return None
        field = schema.by_name[name]
        found, schema = field_value(found, field, replace_nulls=replace_nulls), field.schema
    return found


def value_in_map(value: dict[Any, Any], path: Sequence[str], purpose: str) -> Any:
    """Return the value at a path through maps; ``None`` where there is none."""
    found: Any = value
    for name in path:
        if found is None:
            return None
        found = need_map(found, purpose).get(name)
    return found


class ExtractField(SidedTransform):
    """Puts one field in the place of the whole key or value.

    Examples
    --------
    >>> from headrace.connect.records import SourceRecord
    >>> transform = ExtractFieldValue()
    >>> texts = {"field": "user.name", "field.syntax.version": "V2"}
    >>> transform.configure(ExtractField.config.parse(texts))
    >>> record = SourceRecord(partition={}, offset={}, topic="t", value={"user": {"name": "Ann"}})
    >>> transform.apply(record).value
    'Ann'
    """

    config = declare(
        key("field", str, "The field to extract.", required=True),
        REPLACE_NULLS,
        key(
            "field.syntax.version",
            str,
            "V1: the field is a name. V2: it is a path such as a.b, with backticks around a name "
            "that has a dot.",
            default="V1",
            valid=one_of("V1", "V2", ignore_case=True),
            importance="high",
        ),
    )

    def configure(self, config: Config) -> None:
        """Take the config."""
        self._path = field_path(config["field"], config["field.syntax.version"])
        self._replace_nulls = config["replace.null.with.default"]

    def change(
        self, record: SourceRecord | SinkRecord, schema: Schema | None, value: Any
    ) -> tuple[Schema | None, Any]:
        """Return the field."""
        del record
        if schema is None:
            mapped = None if value is None else need_map(value, _PURPOSE)
            return None, None if mapped is None else value_in_map(mapped, self._path, _PURPOSE)
        if value is not None:
            need_struct(schema, value, _PURPOSE)
        found = schema_at(schema, self._path)
        if found is None:
            there = ", ".join(schema.by_name) or "none"
            raise TransformError(
                f"There is no field {'.'.join(self._path)} to extract.", hint=f"There are: {there}."
            )
        if value is None:
            return found, None
        replace_nulls = self._replace_nulls
        return found, value_in_struct(value, schema, self._path, replace_nulls=replace_nulls)


ExtractFieldKey, ExtractFieldValue = both_sides(ExtractField)
