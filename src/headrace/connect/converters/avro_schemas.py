"""Schemas of Connect as schemas of Avro, and back.

What Avro has no word for stands in properties such as ``connect.type``, as Confluent's converter
writes them: other readers of Avro pass over them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, NamedTuple

from headrace.connect.schema import (
    DATE,
    DATE_NAME,
    DECIMAL_NAME,
    STRING,
    TIME,
    TIME_NAME,
    TIMESTAMP,
    TIMESTAMP_NAME,
    Field,
    Schema,
    Type,
    array,
    decimal,
    mapping,
)

# What a value or a body that does not fit is reported with: why, and where inside it.

_SHOWN = 80


class UnfitError(ValueError):
    """A value that a converter cannot write, or a body that it cannot read.

    Raised inside converters, which add topic and part of the record.

    Parameters
    ----------
    reason
        What is wrong, as the rest of a sentence.
    hint
        What to do about it.
    """

    def __init__(self, reason: str, *, hint: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self._path: list[str] = []

    def inside(self, step: str) -> UnfitError:
        """Say that it happened inside a field (``name``), an item or a map's entry (``[2]``)."""
        self._path.append(step)
        return self

    @property
    def path(self) -> str:
        """Where it happened: ``address.lines[2]``; empty for the whole value.

        >>> UnfitError("").inside("[2]").inside("lines").inside("address").path
        'address.lines[2]'
        """
        steps = (step if step.startswith("[") else f".{step}" for step in reversed(self._path))
        return "".join(steps).removeprefix(".")

    def __str__(self) -> str:
        return f"at {self.path}: {self.reason}" if self._path else self.reason


def beginning(value: Any) -> str:
    """Show the start of a value.

    >>> beginning("a" * 1000)
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa..."
    """
    if isinstance(value, str | bytes):
        value = value[:_SHOWN]
    text = repr(value)
    return text if len(text) < _SHOWN else f"{text[:_SHOWN]}..."


def kind_of(value: Any) -> str:
    """Name the type of a value for a message."""
    return "null" if value is None else type(value).__qualname__


# Logical types: decimals, dates, times and timestamps, and the plain values that carry them.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1)
_MILLISECOND = timedelta(milliseconds=1)
_DAY = 86_400_000
# Decimals may have any number of digits; rounding one would change it.
_EXACT = Context(prec=100_000, Emax=999_999_999, Emin=-999_999_999, traps=[Inexact])


def unscaled(schema: Schema, value: Any) -> int:
    """Return a decimal without its point.

    >>> from headrace.connect.schema import decimal
    >>> unscaled(decimal(2), Decimal("123.45"))
    12345
    """
    if not isinstance(value, Decimal):
        reason = f"a decimal is needed, not {kind_of(value)}"
        raise UnfitError(reason, hint="give a decimal.Decimal")
    scale = _scale(schema)
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        reason = f"{value} is no number that a decimal can be"
        raise UnfitError(reason)
    if exponent != -scale:
        reason = f"{value} has {-exponent} digits after the point and the schema says {scale}"
        raise UnfitError(reason, hint=f"quantize it to {scale} digits, or change the schema")
    number = int("".join(map(str, digits)))
    return -number if value.is_signed() else number


def _scale(schema: Schema) -> int:
    try:
        return int(schema.parameters["scale"])
    except (KeyError, ValueError):
        reason = "the schema of a decimal needs the parameter scale, a whole number"
        raise UnfitError(reason) from None


def days(schema: Schema, value: Any) -> int:  # noqa: ARG001
    """Return a date as days since 1970."""
    if not isinstance(value, date) or isinstance(value, datetime):
        reason = f"a date is needed, not {kind_of(value)}"
        raise UnfitError(reason, hint="give a datetime.date")
    return (value - _EPOCH_DAY).days


def milliseconds_of_day(schema: Schema, value: Any) -> int:  # noqa: ARG001
    """Return a time of day as milliseconds; what is finer is cut off."""
    if not isinstance(value, time):
        reason = f"a time of day is needed, not {kind_of(value)}"
        raise UnfitError(reason, hint="give a datetime.time")
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return seconds * 1000 + value.microsecond // 1000


def milliseconds(schema: Schema, value: Any) -> int:  # noqa: ARG001
    """Return a timestamp as milliseconds since 1970; what is finer is cut off."""
    if not isinstance(value, datetime):
        reason = f"a timestamp is needed, not {kind_of(value)}"
        raise UnfitError(reason, hint="give a datetime.datetime with a zone")
    if value.tzinfo is None:
        reason = "a timestamp needs a zone"
        raise UnfitError(reason, hint="give it one: value.replace(tzinfo=UTC)")
    return (value - _EPOCH) // _MILLISECOND


def _logical_decimal(schema: Schema, value: Any) -> Decimal:
    if isinstance(value, Decimal):
        return value
    if not isinstance(value, bytes):
        reason = f"the bytes of a decimal are needed, not {kind_of(value)}"
        raise UnfitError(reason)
    if not value:
        reason = "a decimal has at least one byte"
        raise UnfitError(reason)
    scale = _scale(schema)
    number = int.from_bytes(value, "big", signed=True)
    try:
        return Decimal(number).scaleb(-scale, _EXACT)
    except (Inexact, InvalidOperation):
        reason = "the decimal has more digits than can be kept"
        raise UnfitError(reason) from None


def _date(schema: Schema, value: Any) -> date:  # noqa: ARG001
    try:
        return _EPOCH_DAY + timedelta(days=_whole(value))
    except OverflowError:
        reason = f"{value} days from 1970 is no date between the years 1 and 9999"
        raise UnfitError(reason) from None


def _time(schema: Schema, value: Any) -> time:  # noqa: ARG001
    if not 0 <= _whole(value) < _DAY:
        reason = f"{value} is no time of day: it is from 0 to {_DAY - 1} milliseconds"
        raise UnfitError(reason)
    seconds, thousandths = divmod(value, 1000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return time(hour, minute, second, thousandths * 1000)


def moment(value: int) -> datetime:
    """Return the timestamp of milliseconds since 1970."""
    try:
        return _EPOCH + timedelta(milliseconds=value)
    except OverflowError:
        reason = f"{value} ms from 1970 is no timestamp between the years 1 and 9999"
        raise UnfitError(reason) from None


def _timestamp(schema: Schema, value: Any) -> datetime:  # noqa: ARG001
    return moment(_whole(value))


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        reason = f"a whole number is needed, not {kind_of(value)}"
        raise UnfitError(reason)
    return value


def _decimal_bytes(schema: Schema, value: Any) -> bytes:
    number = unscaled(schema, value)
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return number.to_bytes(size, "big", signed=True)


#: By the name of the schema: from the value to what its type carries.
TO_PLAIN: Mapping[str, Callable[[Schema, Any], Any]] = {
    DECIMAL_NAME: _decimal_bytes,
    DATE_NAME: days,
    TIME_NAME: milliseconds_of_day,
    TIMESTAMP_NAME: milliseconds,
}
#: By the name of the schema: from what its type carries to the value.
FROM_PLAIN: Mapping[str, Callable[[Schema, Any], Any]] = {
    DECIMAL_NAME: _logical_decimal,
    DATE_NAME: _date,
    TIME_NAME: _time,
    TIMESTAMP_NAME: _timestamp,
}


#: The name of the struct that a union of several types becomes: a field for each of them.
UNION = "io.confluent.connect.avro.Union"
#: The parameter that holds the words of an enum.
_ENUM = "io.confluent.connect.avro.Enum"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
# Digits of a decimal where nothing says how many: as Confluent's converter has it.
_PRECISION = 64

_PLAIN: Mapping[Type, str] = {
    Type.INT8: "int",
    Type.INT16: "int",
    Type.INT32: "int",
    Type.INT64: "long",
    Type.FLOAT32: "float",
    Type.FLOAT64: "double",
    Type.BOOLEAN: "boolean",
    Type.STRING: "string",
    Type.BYTES: "bytes",
}
_TYPES: Mapping[str, Type] = {
    "int": Type.INT32,
    "long": Type.INT64,
    "float": Type.FLOAT32,
    "double": Type.FLOAT64,
    "boolean": Type.BOOLEAN,
    "string": Type.STRING,
    "bytes": Type.BYTES,
    "enum": Type.STRING,
    "fixed": Type.BYTES,
}
_TO_LOGICAL: Mapping[str, tuple[str, str]] = {
    DATE_NAME: ("int", "date"),
    TIME_NAME: ("int", "time-millis"),
    TIMESTAMP_NAME: ("long", "timestamp-millis"),
}
_FROM_LOGICAL: Mapping[str, Schema] = {
    "date": DATE,
    "local-timestamp-micros": TIMESTAMP,
    "local-timestamp-millis": TIMESTAMP,
    "time-micros": TIME,
    "time-millis": TIME,
    "timestamp-micros": TIMESTAMP,
    "timestamp-millis": TIMESTAMP,
    "uuid": STRING,
}


def schema_to_avro(schema: Schema) -> Any:
    """Return the Avro schema of a schema, as data of JSON.

    >>> from headrace.connect.schema import INT64
    >>> schema_to_avro(INT64.as_optional())
    ['null', 'long']
    """
    return _Writer().written(schema, _SchemaPlace())


class _SchemaPlace(NamedTuple):
    """Where a part of a schema stands."""

    #: The namespace of the record around it, which names without a dot belong to.
    namespace: str = ""
    steps: tuple[str, ...] = ()

    def into(self, step: str) -> _SchemaPlace:
        return self._replace(steps=(*self.steps, step))

    def full(self, name: str) -> str:
        return f"{self.namespace}.{name}" if self.namespace and "." not in name else name


class _Writer:
    """Writes one schema; each record is defined where it first stands."""

    def __init__(self) -> None:
        self._defined: dict[str, Schema] = {}

    def written(self, schema: Schema, place: _SchemaPlace) -> Any:
        made = self._required(schema, place)
        return ["null", made] if schema.optional else made

    def _required(self, schema: Schema, place: _SchemaPlace) -> Any:
        if schema.type is Type.STRUCT:
            return self._record(schema, place)
        made = self._bare(schema, place) | _extras(schema)
        return made["type"] if len(made) == 1 else made

    def _bare(self, schema: Schema, place: _SchemaPlace) -> dict[str, Any]:
        if schema.is_a(DECIMAL_NAME):
            return _decimal(schema)
        if (found := _TO_LOGICAL.get(schema.name or "")) is not None:
            carrier, logical = found
            return {"type": carrier, "logicalType": logical}
        if schema.type is Type.ARRAY and schema.items is not None:
            return {"type": "array", "items": self.written(schema.items, place.into("items"))}
        if schema.type is Type.MAP and schema.keys is not None and schema.items is not None:
            return self._mapping(schema.keys, schema.items, place)
        made = {"type": _PLAIN[schema.type]}
        if schema.type in {Type.INT8, Type.INT16}:
            made["connect.type"] = schema.type.value
        return made

    def _mapping(self, keys: Schema, items: Schema, place: _SchemaPlace) -> dict[str, Any]:
        values = self.written(items, place.into("values"))
        if keys == STRING:
            return {"type": "map", "values": values}
        # Avro's maps have keys of text only: others are lists of pairs.
        entry = {
            "type": "record",
            "name": "_".join((*place.steps, "MapEntry")),
            "fields": [
                {"name": "key", "type": self.written(keys, place.into("keys"))},
                {"name": "value", "type": values},
            ],
        }
        return {"type": "array", "items": entry, "connect.type": "map"}

    def _record(self, schema: Schema, place: _SchemaPlace) -> Any:
        name = schema.name or "_".join((*place.steps, "Record"))
        if not _NAME.fullmatch(name):
            reason = f"{name!r} cannot be the name of a record of Avro"
            raise UnfitError(reason, hint="name the struct in letters, digits, _ and dots")
        required = schema.as_required()
        full = place.full(name)
        if full in self._defined:
            if self._defined[full] == required:
                return full
            reason = f"two different structs have the name {name!r}"
            raise UnfitError(reason, hint="give each struct a name of its own")
        self._defined[full] = required
        inside = place._replace(namespace=full.rpartition(".")[0])
        fields = [self._field(one, inside.into(one.name)) for one in schema.fields]
        made = {"type": "record", "name": name, "fields": fields} | _extras(schema)
        if schema.name is None:
            made["connect.unnamed"] = True
        elif full != name:
            made["connect.name"] = name
        return made

    def _field(self, field: Field, place: _SchemaPlace) -> dict[str, Any]:
        if not _NAME.fullmatch(field.name) or "." in field.name:
            reason = f"{field.name!r} cannot be the name of a field of Avro"
            raise UnfitError(reason, hint="rename it, for example with ReplaceField")
        made: dict[str, Any] = {"name": field.name, "type": self.written(field.schema, place)}
        if field.schema.optional:
            made["default"] = None
        return made


def _decimal(schema: Schema) -> dict[str, Any]:
    if schema.scale < 0:
        reason = f"Avro has no decimals of the scale {schema.scale}"
        raise UnfitError(reason, hint="use a scale of 0 or more")
    precision = int(schema.parameters.get("connect.decimal.precision", _PRECISION))
    return {
        "type": "bytes",
        "logicalType": "decimal",
        "precision": max(precision, schema.scale, 1),
        "scale": schema.scale,
    }


def _extras(schema: Schema) -> dict[str, Any]:
    """Return what Avro has no word for, without what its own words say already."""
    parameters = {name: text for name, text in schema.parameters.items() if name != "scale"}
    logical = schema.is_a(DECIMAL_NAME) or schema.name in _TO_LOGICAL
    said = {
        "connect.name": None if logical or schema.type is Type.STRUCT else schema.name,
        "connect.version": None if logical else schema.version,
        "connect.doc": schema.doc,
        "connect.parameters": parameters or None,
        "connect.default": _default(schema),
    }
    return {name: one for name, one in said.items() if one is not None}


def _default(schema: Schema) -> str | None:
    if not schema.has_default or schema.default is None:
        return None
    from headrace.connect.converters.json_values import JsonRules, json_writer

    return json.dumps(json_writer(schema, JsonRules())(schema.default))


def expanded(node: Any) -> Any:
    """Return an Avro schema in which each name stands for what it names.

    Raises
    ------
    UnfitError
        It is no schema.
    """
    from fastavro.schema import SchemaParseException, UnknownType, expand_schema

    try:
        return expand_schema(node)
    except (SchemaParseException, UnknownType, KeyError, TypeError) as error:
        reason = f"it is no schema of Avro: {type(error).__name__}: {error}"
        raise UnfitError(reason) from None


def schema_from_avro(node: Any) -> Schema | None:
    """Return the schema of an Avro schema; ``None`` for one that contains itself.

    >>> schema_from_avro({"type": "array", "items": ["null", "string"]})
    array<string?>
    """
    try:
        return _read(expanded(node))
    except RecursionError:
        return None


def _read(node: Any) -> Schema:
    if isinstance(node, list):
        return _union(node)
    if isinstance(node, str):
        if node not in _TYPES:
            # A name that is left over names a record that it stands in.
            raise RecursionError
        return Schema(_TYPES[node])
    return _with_extras(_of_type(node), node)


def _of_type(node: dict[str, Any]) -> Schema:
    kind = node["type"]
    if isinstance(kind, dict | list):
        return _read(kind)
    if node.get("logicalType") == "decimal":
        return decimal(int(node.get("scale", 0)))
    if (logical := _FROM_LOGICAL.get(node.get("logicalType", ""))) is not None:
        return logical
    match kind:
        case "record" | "error":
            name = None if node.get("connect.unnamed") else node["name"]
            fields = tuple(Field(one["name"], _read(one["type"])) for one in node["fields"])
            return Schema(Type.STRUCT, name=name, doc=node.get("doc"), fields=fields)
        case "array" if node.get("connect.type") == "map":
            pair = {one["name"]: one["type"] for one in node["items"]["fields"]}
            return mapping(_read(pair["key"]), _read(pair["value"]))
        case "array":
            return array(_read(node["items"]))
        case "map":
            return mapping(STRING, _read(node["values"]))
        case "enum":
            return STRING.changed(name=node["name"], parameters={_ENUM: ",".join(node["symbols"])})
        case "fixed":
            return Schema(Type.BYTES, name=node["name"])
        case _:
            return _read(kind)


def _union(branches: list[Any]) -> Schema:
    present = [one for one in branches if one != "null"]
    if len(present) == 1:
        made = _read(present[0])
    else:
        fields = tuple(Field(branch_name(one), _read(one).as_optional()) for one in present)
        made = Schema(Type.STRUCT, name=UNION, fields=fields)
    return made.as_optional() if len(present) < len(branches) else made


def branch_name(node: Any) -> str:
    """Return what a branch of a union is called: its type, or its name without the namespace."""
    if isinstance(node, str):
        return node.rpartition(".")[2]
    name: str = node.get("name") or node["type"]
    return name.rpartition(".")[2]


def _with_extras(schema: Schema, node: dict[str, Any]) -> Schema:
    changes: dict[str, Any] = {}
    if node.get("connect.type") in {"int8", "int16"}:
        changes["type"] = Type(node["connect.type"])
    for name in ("name", "version", "doc"):
        if f"connect.{name}" in node:
            changes[name] = node[f"connect.{name}"]
    if "connect.parameters" in node:
        changes["parameters"] = {**schema.parameters, **node["connect.parameters"]}
    schema = schema.changed(**changes) if changes else schema
    return schema.with_default(_read_default(schema, node)) if "connect.default" in node else schema


def _read_default(schema: Schema, node: dict[str, Any]) -> Any:
    from headrace.connect.converters.json_values import JsonRules, json_reader

    return json_reader(schema, JsonRules())(json.loads(node["connect.default"]))
