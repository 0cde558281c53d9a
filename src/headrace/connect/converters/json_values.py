"""Values with a schema as data of JSON, and back: one function per schema, made once.

A value that does not fit is refused, also where Kafka Connect would make 0, ``false``, an empty
list or another number of it.
"""

from __future__ import annotations

import binascii
import math
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

import orjson

from headrace.connect.converters.steps import (
    Step,
    UnfitError,
    array_of,
    entry,
    fields_of,
    kind_of,
    pairs_of,
    struct_of,
    whole_number,
    wrong,
    zoned,
)
from headrace.connect.numbers import shortest_float, single
from headrace.connect.schema import (
    BITS,
    DATE_NAME,
    DECIMAL_NAME,
    TIME_NAME,
    TIMESTAMP_NAME,
    Schema,
    Type,
)

# Logical types: decimals, dates, times and timestamps, and the plain values that carry them.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_EPOCH_DAY = date(1970, 1, 1)

_MILLISECOND = timedelta(milliseconds=1)

_DAY = 86_400_000

# Decimals may have any number of digits; rounding one would change it.
_EXACT = Context(prec=100_000, Emax=999_999_999, Emin=-999_999_999, traps=[Inexact])


def _decimal_bytes(schema: Schema, value: Any) -> bytes:
    if not isinstance(value, Decimal):
        raise wrong("a decimal", value, hint="give a decimal.Decimal")
    scale = _scale(schema)
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        reason = f"{value} is no number that a decimal can be"
        raise UnfitError(reason)
    if exponent != -scale:
        reason = f"{value} has {-exponent} digits after the point and the schema says {scale}"
        raise UnfitError(reason, hint=f"quantize it to {scale} digits, or change the schema")
    number = int("".join(map(str, digits))) * (-1 if value.is_signed() else 1)
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return number.to_bytes(size, "big", signed=True)


def _scale(schema: Schema) -> int:
    try:
        return int(schema.parameters["scale"])
    except (KeyError, ValueError):
        reason = "the schema of a decimal needs the parameter scale, a whole number"
        raise UnfitError(reason) from None


def _days(value: Any) -> int:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise wrong("a date", value, hint="give a datetime.date")
    return (value - _EPOCH_DAY).days


def _milliseconds_of_day(value: Any) -> int:
    if not isinstance(value, time):
        raise wrong("a time of day", value, hint="give a datetime.time")
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return seconds * 1000 + value.microsecond // 1000


def _milliseconds(value: Any) -> int:
    return (zoned(value) - _EPOCH) // _MILLISECOND


def _decimal(schema: Schema, value: Any) -> Decimal:
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


def _date(value: Any) -> date:
    try:
        return _EPOCH_DAY + timedelta(days=_whole(value))
    except OverflowError:
        reason = f"{value} days from 1970 is no date between the years 1 and 9999"
        raise UnfitError(reason) from None


def _time(value: Any) -> time:
    if not 0 <= _whole(value) < _DAY:
        reason = f"{value} is no time of day: it is from 0 to {_DAY - 1} milliseconds"
        raise UnfitError(reason)
    seconds, thousandths = divmod(value, 1000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return time(hour, minute, second, thousandths * 1000)


def _timestamp(value: Any) -> datetime:
    try:
        return _EPOCH + timedelta(milliseconds=_whole(value))
    except OverflowError:
        reason = f"{value} ms from 1970 is no timestamp between the years 1 and 9999"
        raise UnfitError(reason) from None


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong("a whole number", value)
    return value


#: By the name of the schema: from the value to what its type carries.
_TO_PLAIN: Mapping[str, Step] = {
    DATE_NAME: _days,
    TIME_NAME: _milliseconds_of_day,
    TIMESTAMP_NAME: _milliseconds,
}

#: By the name of the schema: from what its type carries to the value.
_FROM_PLAIN: Mapping[str, Step] = {
    DATE_NAME: _date,
    TIME_NAME: _time,
    TIMESTAMP_NAME: _timestamp,
}


@dataclass(frozen=True, slots=True)
class JsonRules:
    """What the config of a JSON converter decides about values."""

    #: Decimals are numbers of JSON; their bytes as base64 otherwise.
    numeric_decimals: bool = False
    #: A missing value becomes the default of its schema.
    replace_nulls: bool = True


def has_decimal(schema: Schema) -> bool:
    """Return whether a value of the schema may hold a decimal."""
    if schema.is_a(DECIMAL_NAME):
        return True
    inner = (*(one.schema for one in schema.fields), schema.keys, schema.items)
    return any(one is not None and has_decimal(one) for one in inner)


def json_writer(schema: Schema, rules: JsonRules) -> Step:
    """Make the function from values of a schema to data that :mod:`orjson` writes.

    >>> from headrace.connect.schema import DATE
    >>> from datetime import date
    >>> json_writer(DATE, JsonRules())(date(1970, 1, 3))
    2
    """
    write = _plain_writer(schema, rules)
    if schema.is_a(DECIMAL_NAME):
        in_bytes = _chained(lambda value: _decimal_bytes(schema, value), write)
        write = _numeric_decimal if rules.numeric_decimals else in_bytes
    elif logical := _TO_PLAIN.get(schema.name or ""):
        write = _chained(logical, write)
    return _missing(schema, rules, write, write)


def json_reader(schema: Schema, rules: JsonRules) -> Step:
    """Make the function from data of JSON to values of a schema.

    >>> from headrace.connect.schema import INT32, STRING, struct
    >>> read = json_reader(struct({"n": INT32.with_default(7), "s": STRING}), JsonRules())
    >>> read({"s": "x"})
    {'n': 7, 's': 'x'}
    """
    read = _plain_reader(schema, rules)
    if schema.is_a(DECIMAL_NAME):
        read = _decimal_reader(schema, read)
    elif logical := _FROM_PLAIN.get(schema.name or ""):
        read = _chained(read, logical)
    return _missing(schema, rules, read, None)


def _chained(first: Step, second: Step) -> Step:
    return lambda value: second(first(value))


def _missing(schema: Schema, rules: JsonRules, step: Step, default_step: Step | None) -> Step:
    """Handle null: the default, null itself, or a refusal."""
    if rules.replace_nulls and schema.has_default and schema.default is not None:
        default = schema.default

        def replacing(value: Any) -> Any:
            if value is not None:
                return step(value)
            return default if default_step is None else default_step(default)

        return replacing
    if schema.optional:
        return lambda value: None if value is None else step(value)

    def required(value: Any) -> Any:
        if value is None:
            raise UnfitError(
                f"it is null, and {schema.type} is required",
                hint="make the schema optional, or give it a default",
            )
        return step(value)

    return required


# Writing


def _plain_writer(schema: Schema, rules: JsonRules) -> Step:
    match schema.type:
        case Type.ARRAY if schema.items is not None:
            return array_of(json_writer(schema.items, rules))
        case Type.MAP if schema.keys is not None and schema.items is not None:
            pairs = pairs_of(json_writer(schema.keys, rules), json_writer(schema.items, rules))
            return _chained(pairs, dict) if schema.keys.type is Type.STRING else pairs
        case Type.STRUCT:
            return struct_of((one.name, json_writer(one.schema, rules)) for one in schema.fields)
        case kind:
            return _WRITERS[kind]


def _number(kind: Type, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, float | int):
        raise wrong(kind, value)
    return float(value)


def _write_double(value: Any) -> float | str:
    number = _number(Type.FLOAT64, value)
    return number if math.isfinite(number) else NOT_FINITE[str(number)]


def _write_float(value: Any) -> float | str:
    number = single(_number(Type.FLOAT32, value))
    return shortest_float(number) if math.isfinite(number) else NOT_FINITE[str(number)]


NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""What stands in JSON, as text, for what is no number there."""


def _boolean(value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    raise wrong("boolean", value)


def _string(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise wrong("string", value)


def _write_bytes(value: Any) -> str:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise wrong("bytes", value)
    return b64encode(value).decode()


def _numeric_decimal(value: Any) -> orjson.Fragment:
    if not isinstance(value, Decimal) or not value.is_finite():
        raise wrong("decimal", value)
    return orjson.Fragment(str(value))


_INTEGERS: Mapping[Type, Step] = {kind: whole_number(kind, bits) for kind, bits in BITS.items()}

_WRITERS: Mapping[Type, Step] = {
    **_INTEGERS,
    Type.FLOAT32: _write_float,
    Type.FLOAT64: _write_double,
    Type.BOOLEAN: _boolean,
    Type.STRING: _string,
    Type.BYTES: _write_bytes,
}


# Reading


def _plain_reader(schema: Schema, rules: JsonRules) -> Step:
    match schema.type:
        case Type.ARRAY if schema.items is not None:
            return array_of(json_reader(schema.items, rules))
        case Type.MAP if schema.keys is not None and schema.items is not None:
            return _map_reader(schema.keys, schema.items, rules)
        case Type.STRUCT:
            return _struct_reader(schema, rules)
        case kind:
            return _READERS[kind]


def _integer_reader(kind: Type) -> Step:
    check = _INTEGERS[kind]

    def read(value: Any) -> int:
        if isinstance(value, float | Decimal):
            # 1e3 and 2.0 are whole numbers, too; 1.5 is not.
            if value != value // 1:
                reason = f"{kind} is needed, not {value}"
                raise UnfitError(reason)
            value = int(value)
        number: int = check(value)
        return number

    return read


def _read_double(value: Any) -> float:
    if isinstance(value, float | int | Decimal) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and value in _FINITE_NOT:
        return _FINITE_NOT[value]
    raise wrong("number", value)


_FINITE_NOT = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _read_bytes(value: Any) -> bytes:
    if not isinstance(value, str):
        raise wrong("base64 text of bytes", value)
    try:
        return b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        reason = f"it is no base64 text: {error}"
        raise UnfitError(reason) from None


def _decimal_reader(schema: Schema, read: Step) -> Step:
    def decimal(value: Any) -> Decimal:
        if isinstance(value, Decimal):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return Decimal(value)
        return _decimal(schema, read(value))

    return decimal


_READERS: Mapping[Type, Step] = {
    **{kind: _integer_reader(kind) for kind in BITS},
    Type.FLOAT32: lambda value: single(_read_double(value)),
    Type.FLOAT64: _read_double,
    Type.BOOLEAN: _boolean,
    Type.STRING: _string,
    Type.BYTES: _read_bytes,
}


def _map_reader(keys: Schema, items: Schema, rules: JsonRules) -> Step:
    read_key, read = json_reader(keys, rules), json_reader(items, rules)
    as_object = keys.type is Type.STRING

    def mapping(value: Any) -> dict[Any, Any]:
        if isinstance(value, dict) and as_object:
            return dict(entry(read_key, read, one, item) for one, item in value.items())
        if isinstance(value, list) and not as_object:
            return dict(_pair(read_key, read, one) for one in value)
        raise wrong("object" if as_object else "array of pairs", value)

    return mapping


def _pair(read_key: Step, read: Step, pair: Any) -> tuple[Any, Any]:
    if not isinstance(pair, list) or len(pair) != 2:
        reason = "an entry of a map is an array of key and value"
        raise UnfitError(reason)
    name, item = entry(read_key, read, *pair)
    try:
        hash(name)
    except TypeError:
        reason = f"a key of a map cannot be a {kind_of(name)} in Python"
        raise UnfitError(reason, hint="use keys of single values") from None
    return name, item


def _struct_reader(schema: Schema, rules: JsonRules) -> Step:
    fields = [(one.name, json_reader(one.schema, rules)) for one in schema.fields]

    def struct(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong("object", value)
        return fields_of(fields, value)

    return struct
