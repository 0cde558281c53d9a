"""Cast: turns fields, or the whole value, into another type."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from headrace.connect.config import Config, declare, key, not_empty
from headrace.connect.numbers import float_text, parse_float, single, whole
from headrace.connect.schema import (
    BITS,
    DATE_NAME,
    LOGICAL,
    Field,
    Schema,
    Type,
)
from headrace.connect.transforms._date_format import DAY_MS, DateFormat
from headrace.connect.transforms._structure import (
    REPLACE_NULLS,
    SchemaCache,
    rebuilt,
    with_changed,
)
from headrace.connect.transforms._times import milliseconds_of
from headrace.connect.transforms.base import SidedTransform, both_sides
from headrace.errors import TransformError

if TYPE_CHECKING:
    from headrace.connect.records import SinkRecord, SourceRecord


#: Targets by the names that configs use.
_TARGETS: Final[Mapping[str, Type]] = MappingProxyType(
    {
        "int8": Type.INT8,
        "int16": Type.INT16,
        "int32": Type.INT32,
        "int64": Type.INT64,
        "float32": Type.FLOAT32,
        "float64": Type.FLOAT64,
        "boolean": Type.BOOLEAN,
        "string": Type.STRING,
    }
)


class Cast(SidedTransform):
    """Turns fields, or the whole key or value, into another type.

    Numbers lose the bits that do not fit; a text must be a number of the type.  A
    date, a time or a point in time becomes its number, or ISO 8601.  What a logical type said is
    gone afterwards, so a time that became an int64 is an int64.

    Examples
    --------
    >>> from headrace.connect.records import SourceRecord
    >>> transform = CastValue()
    >>> transform.configure(Cast.config.parse({"spec": "id:string,price:float64"}))
    >>> record = SourceRecord(partition={}, offset={}, topic="t", value={"id": 7, "price": "1.5"})
    >>> transform.apply(record).value
    {'id': '7', 'price': 1.5}
    """

    config = declare(
        key(
            "spec",
            list[str],
            "Fields and their types, such as foo:int32,bar:string, or one type for the whole. "
            "Types are int8, int16, int32, int64, float32, float64, boolean and string; "
            "bytes can become a string only, in base64.",
            required=True,
            valid=not_empty(),
        ),
        REPLACE_NULLS,
    )

    def configure(self, config: Config) -> None:
        """Take the config."""
        self._whole, self._fields = _targets(config["spec"])
        self._replace_nulls = config["replace.null.with.default"]
        self._schemas = SchemaCache(self._changed)

    def change(
        self, record: SourceRecord | SinkRecord, schema: Schema | None, value: Any
    ) -> tuple[Schema | None, Any]:
        """Cast the fields, or the whole."""
        del record
        if value is None:
            return schema, value
        if self._whole is not None:
            return schema and self._schemas[schema], _cast(value, schema, self._whole, "")
        values = with_changed(
            schema,
            value,
            self._fields,
            lambda name, one, of: _cast(one, of, self._fields[name], name),
            purpose="Cast",
            replace_nulls=self._replace_nulls,
        )
        return schema and self._schemas[schema], values

    def _changed(self, schema: Schema) -> Schema:
        if self._whole is not None:
            return _cast_schema(schema, self._whole, keep=schema.name not in LOGICAL)
        fields = (
            Field(one.name, _cast_schema(one.schema, self._fields[one.name], keep=False))
            if one.name in self._fields
            else one
            for one in schema.fields
        )
        return rebuilt(schema, tuple(fields))


CastKey, CastValue = both_sides(Cast)


def _targets(spec: list[str]) -> tuple[Type | None, dict[str, Type]]:
    if len(spec) == 1 and ":" not in spec[0]:
        return _target(spec[0].strip()), {}
    fields = {}
    for one in spec:
        name, colon, target = one.partition(":")
        if not colon or ":" in target or not name.strip():
            raise ValueError(f"spec has {one!r}: write field:type, or one type alone.")
        fields[name.strip()] = _target(target.strip())
    return None, fields


def _target(name: str) -> Type:
    found = _TARGETS.get(name.lower())
    if found is None:
        raise ValueError(f"spec casts to {name!r}: the types are {', '.join(_TARGETS)}.")
    return found


def _cast_schema(schema: Schema, target: Type, *, keep: bool) -> Schema:
    default = schema.default
    if schema.has_default and default is not None:
        default = _cast(default, schema, target, "")
    made = Schema(target, optional=schema.optional, default=default)
    if not keep:
        return made
    return made.changed(
        name=schema.name, version=schema.version, doc=schema.doc, parameters=schema.parameters
    )


def _cast(value: Any, schema: Schema | None, target: Type, name: str) -> Any:
    if value is None:
        return None
    where = f"the field {name}" if name else "the value"
    try:
        if target is Type.STRING:
            return _text(value, schema)
        return _CASTS[target](_plain(value, schema))
    except ValueError:
        shown = f"{value!r:.50}"
        raise TransformError(
            f"Cast cannot make {where}, {shown}, {target.name.lower()}: it is no such number.",
            hint="Drop such records with Filter, or set errors.tolerance=all.",
        ) from None
    except TypeError:
        raise TransformError(
            f"Cast cannot make {where}, a {type(value).__name__}, {target.name.lower()}.",
            hint="Bytes can become a string only; structs, maps and lists nothing else.",
        ) from None


def _plain(value: Any, schema: Schema | None) -> Any:
    """Return what is a number or a text already, or the number behind a date or time."""
    if isinstance(value, bool | int | float | Decimal | str):
        return value
    milliseconds = milliseconds_of(value)
    if milliseconds is None:
        raise TypeError(value)
    # A day counts as a day only where a schema says that it is one.
    return milliseconds // DAY_MS if schema and schema.name == DATE_NAME else milliseconds


def _whole(bits: int) -> Callable[[Any], int]:
    def cast(value: Any) -> int:
        if not isinstance(value, str):
            return whole(value, bits)
        if not _is_whole(value) or not -(1 << (bits - 1)) <= int(value) < 1 << (bits - 1):
            raise ValueError(value)
        return int(value)

    return cast


def _is_whole(text: str) -> bool:
    return text.isascii() and text[text[:1] in {"+", "-"} :].isdigit()


def _double(value: Any) -> float:
    return parse_float(value) if isinstance(value, str) else float(value)


def _boolean(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() == "true"
    return whole(value, 64) != 0


_CASTS: Final[Mapping[Type, Callable[[Any], Any]]] = MappingProxyType(
    {kind: _whole(bits) for kind, bits in BITS.items()}
    | {Type.FLOAT32: lambda value: single(_double(value)), Type.FLOAT64: _double}
    | {Type.BOOLEAN: _boolean}
)

_POINT = DateFormat("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")
_DAY = DateFormat("yyyy-MM-dd")
_CLOCK = DateFormat("HH:mm:ss.SSS'Z'")


def _text(value: Any, schema: Schema | None) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return float_text(value, is_single=schema is not None and schema.type is Type.FLOAT32)
    if isinstance(value, int | Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, time | date | datetime):
        return _time_text(value)
    raise TypeError(value)


def _time_text(value: time | date | datetime) -> str:
    milliseconds = milliseconds_of(value)
    assert milliseconds is not None
    if isinstance(value, time) or milliseconds < DAY_MS:
        return _CLOCK.format(milliseconds)
    return (_POINT if milliseconds % DAY_MS else _DAY).format(milliseconds)
