"""Values with a schema as data of JSON, and back: one function per schema, made once.

A value that does not fit is refused, also where Kafka Connect would make 0, ``false``, an empty
list or another number of it.
"""

from __future__ import annotations

import binascii
import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

import orjson

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

Step = Callable[[Any], Any]
"""One direction of one schema."""

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
        """Note that it happened inside a field (``name``), an item or a map's entry (``[2]``)."""
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
    """Return the name of a value's type, for a message."""
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
    logical = TO_PLAIN.get(schema.name or "")
    if schema.is_a(DECIMAL_NAME) and rules.numeric_decimals:
        write = _numeric_decimal
    elif logical is not None:
        write = _chained(lambda value: logical(schema, value), write)
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
    elif logical := FROM_PLAIN.get(schema.name or ""):
        read = _chained(read, lambda value: logical(schema, value))
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
        case Type.INT8 | Type.INT16 | Type.INT32 | Type.INT64:
            return _integer_writer(schema.type)
        case Type.ARRAY if schema.items is not None:
            return _array(json_writer(schema.items, rules))
        case Type.MAP:
            return _map_writer(schema, rules)
        case Type.STRUCT:
            return _struct_writer(schema, rules)
        case kind:
            return _WRITERS[kind]


def _integer_writer(kind: Type) -> Step:
    high = (1 << BITS[kind] - 1) - 1
    low = -high - 1

    def write(value: Any) -> int:
        # A bool is an int to Python, and no number to anybody else.
        if type(value) is not int and (isinstance(value, bool) or not isinstance(value, int)):
            raise _wrong(kind, value)
        if not low <= value <= high:
            reason = f"{value} is beyond the range of {kind}"
            raise UnfitError(reason, hint="use a wider type in the schema")
        return int(value)

    return write


def _wrong(kind: str, value: Any) -> UnfitError:
    return UnfitError(f"{kind} is needed, not {kind_of(value)}")


def _number(kind: Type, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, float | int):
        raise _wrong(kind, value)
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
    raise _wrong("boolean", value)


def _string(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise _wrong("string", value)


def _write_bytes(value: Any) -> str:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _wrong("bytes", value)
    return b64encode(value).decode()


def _numeric_decimal(value: Any) -> orjson.Fragment:
    if not isinstance(value, Decimal) or not value.is_finite():
        raise _wrong("decimal", value)
    return orjson.Fragment(str(value))


_WRITERS: Mapping[Type, Step] = {
    Type.FLOAT32: _write_float,
    Type.FLOAT64: _write_double,
    Type.BOOLEAN: _boolean,
    Type.STRING: _string,
    Type.BYTES: _write_bytes,
}


def _array(step: Step) -> Step:
    def array(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise _wrong("array", value)
        done: list[Any] = []
        try:
            for one in value:
                done.append(step(one))  # noqa: PERF401 - how many are done says where it failed
        except UnfitError as error:
            raise error.inside(f"[{len(done)}]") from None
        return done

    return array


def _map_writer(schema: Schema, rules: JsonRules) -> Step:
    assert schema.keys is not None
    assert schema.items is not None
    write_key, write = json_writer(schema.keys, rules), json_writer(schema.items, rules)
    as_object = schema.keys.type is Type.STRING

    def mapping(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _wrong("map", value)
        pairs = [_entry(write_key, write, one, item) for one, item in value.items()]
        return dict(pairs) if as_object else pairs

    return mapping


def _entry(step_key: Step, step: Step, one: Any, item: Any) -> tuple[Any, Any]:
    try:
        return step_key(one), step(item)
    except UnfitError as error:
        raise error.inside(f"[{one!r:.40}]") from None


def _struct_writer(schema: Schema, rules: JsonRules) -> Step:
    fields = [(one.name, json_writer(one.schema, rules)) for one in schema.fields]
    names = frozenset(schema.by_name)

    def struct(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _wrong("struct", value)
        if not names.issuperset(value):
            extra = next(one for one in value if one not in names)
            reason = f"the schema has no field {extra!r}"
            raise UnfitError(reason, hint=f"it has: {', '.join(schema.by_name) or 'none'}")
        return _fields(fields, value)

    return struct


def _fields(steps: list[tuple[str, Step]], value: Mapping[str, Any]) -> dict[str, Any]:
    done = {}
    for name, step in steps:
        try:
            done[name] = step(value.get(name))
        except UnfitError as error:
            raise error.inside(name) from None
    return done


# Reading


def _plain_reader(schema: Schema, rules: JsonRules) -> Step:
    match schema.type:
        case Type.INT8 | Type.INT16 | Type.INT32 | Type.INT64:
            return _integer_reader(schema.type)
        case Type.ARRAY if schema.items is not None:
            return _array(json_reader(schema.items, rules))
        case Type.MAP:
            return _map_reader(schema, rules)
        case Type.STRUCT:
            return _struct_reader(schema, rules)
        case kind:
            return _READERS[kind]


def _integer_reader(kind: Type) -> Step:
    check = _integer_writer(kind)

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
    raise _wrong("number", value)


_FINITE_NOT = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _read_bytes(value: Any) -> bytes:
    if not isinstance(value, str):
        raise _wrong("base64 text of bytes", value)
    try:
        return b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        reason = f"it is no base64 text: {error}"
        raise UnfitError(reason) from None


def _decimal_reader(schema: Schema, read: Step) -> Step:
    from_plain = FROM_PLAIN[DECIMAL_NAME]

    def decimal(value: Any) -> Decimal:
        if isinstance(value, Decimal):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return Decimal(value)
        found: Decimal = from_plain(schema, read(value))
        return found

    return decimal


_READERS: Mapping[Type, Step] = {
    Type.FLOAT32: lambda value: single(_read_double(value)),
    Type.FLOAT64: _read_double,
    Type.BOOLEAN: _boolean,
    Type.STRING: _string,
    Type.BYTES: _read_bytes,
}


def _map_reader(schema: Schema, rules: JsonRules) -> Step:
    assert schema.keys is not None
    assert schema.items is not None
    read_key, read = json_reader(schema.keys, rules), json_reader(schema.items, rules)
    as_object = schema.keys.type is Type.STRING

    def mapping(value: Any) -> dict[Any, Any]:
        if isinstance(value, dict) and as_object:
            return dict(_entry(read_key, read, one, item) for one, item in value.items())
        if isinstance(value, list) and not as_object:
            return dict(_pair(read_key, read, one) for one in value)
        raise _wrong("object" if as_object else "array of pairs", value)

    return mapping


def _pair(read_key: Step, read: Step, pair: Any) -> tuple[Any, Any]:
    if not isinstance(pair, list) or len(pair) != 2:
        reason = "an entry of a map is an array of key and value"
        raise UnfitError(reason)
    name, item = _entry(read_key, read, *pair)
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
            raise _wrong("object", value)
        return _fields(fields, value)

    return struct
