"""TimestampConverter: times as numbers, texts, and the logical types of schemas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from headrace.connect.config import Config, declare, key, one_of
from headrace.connect.schema import (
    DATE,
    DATE_NAME,
    INT64,
    STRING,
    TIME,
    TIME_NAME,
    TIMESTAMP,
    TIMESTAMP_NAME,
    Field,
    Schema,
    Type,
)
from headrace.connect.transforms._date_format import DateFormat
from headrace.connect.transforms._structure import (
    REPLACE_NULLS,
    SchemaCache,
    rebuilt,
    with_changed,
)
from headrace.connect.transforms._times import date_of, datetime_of, milliseconds_of, time_of
from headrace.connect.transforms.base import SidedTransform, both_sides
from headrace.errors import TransformError

if TYPE_CHECKING:
    from headrace.connect.records import SinkRecord, SourceRecord


_TARGETS: Final[Mapping[str, Schema]] = MappingProxyType(
    {"string": STRING, "unix": INT64, "Date": DATE, "Time": TIME, "Timestamp": TIMESTAMP}
)
#: Units of a millisecond, and milliseconds of a unit.
_PRECISIONS: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        "nanoseconds": (1_000_000, 1),
        "microseconds": (1000, 1),
        "milliseconds": (1, 1),
        "seconds": (1, 1000),
    }
)


class TimestampConverter(SidedTransform):
    """Turns a time, in a field or the whole, from one form into another.

    Forms are a text (``string``, by ``format``), a number since 1970 (``unix``), and the logical
    types ``Date``, ``Time`` and ``Timestamp``.  What it is now is seen from the schema or the
    value.  All is in UTC, with English names.

    Examples
    --------
    >>> from headrace.connect.records import SourceRecord
    >>> transform = TimestampConverterValue()
    >>> texts = {"field": "at", "target.type": "string", "format": "yyyy-MM-dd"}
    >>> transform.configure(TimestampConverter.config.parse(texts))
    >>> value = {"at": 1_700_000_000_123}
    >>> record = SourceRecord(partition={}, offset={}, topic="t", value=value)
    >>> transform.apply(record).value
    {'at': '2023-11-14'}
    """

    config = declare(
        key(
            "field",
            str,
            "The field with the time; nothing where the whole key or value is one.",
            default="",
            importance="high",
        ),
        key("target.type", str, "The form to make.", required=True, valid=one_of(*_TARGETS)),
        key(
            "format",
            str,
            "The pattern of texts, in letters of Java's SimpleDateFormat: yyyy-MM-dd HH:mm:ss.",
            default="",
        ),
        key(
            "unix.precision",
            str,
            "What a number counts. What is below a millisecond is lost.",
            default="milliseconds",
            valid=one_of(*_PRECISIONS),
            importance="low",
        ),
        REPLACE_NULLS,
    )

    def configure(self, config: Config) -> None:
        """Take the config."""
        self._field: str = config["field"]
        self._target: str = config["target.type"]
        self._format = _format(config["format"])
        if self._target == "string" and self._format is None:
            raise ValueError("target.type=string needs a format, such as yyyy-MM-dd HH:mm:ss.")
        self._units, self._unit_ms = _PRECISIONS[config["unix.precision"]]
        self._replace_nulls = config["replace.null.with.default"]
        self._schemas = SchemaCache(self._changed)

    def change(
        self, record: SourceRecord | SinkRecord, schema: Schema | None, value: Any
    ) -> tuple[Schema | None, Any]:
        """Convert the field, or the whole."""
        del record
        if not self._field:
            return schema and self._schemas[schema], self._convert(value, schema)
        if value is None:
            return schema, value
        values = with_changed(
            schema,
            value,
            [self._field],
            lambda _, one, of: self._convert(one, of),
            purpose="TimestampConverter",
            replace_nulls=self._replace_nulls,
        )
        return schema and self._schemas[schema], values

    def _changed(self, schema: Schema) -> Schema:
        target = _TARGETS[self._target]
        if not self._field:
            return target.changed(optional=schema.optional)
        fields = (
            Field(one.name, target.changed(optional=one.schema.optional))
            if one.name == self._field
            else one
            for one in schema.fields
        )
        return rebuilt(schema, tuple(fields))

    def _convert(self, value: Any, schema: Schema | None) -> Any:
        if value is None:
            return None
        milliseconds = self._milliseconds(value, schema)
        if self._target == "unix":
            return _divided(milliseconds * self._units, self._unit_ms)
        if self._format is not None and self._target == "string":
            return self._format.format(milliseconds)
        return _MAKERS[self._target](milliseconds)

    def _milliseconds(self, value: Any, schema: Schema | None) -> int:
        if schema is not None and not _is_time(schema):
            raise TransformError(
                f"{self._where()} is {schema}, which is no time.",
                hint="It can be a string, an int64, a Date, a Time or a Timestamp.",
            )
        if isinstance(value, str):
            return self._parse(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return _divided(value * self._unit_ms, self._units)
        found = milliseconds_of(value)
        if found is None:
            raise TransformError(
                f"{self._where()} is a {type(value).__name__}, which is no time.",
                hint="It can be a text, a whole number, a date, a time or a point in time.",
            )
        return found

    def _parse(self, text: str) -> int:
        if self._format is None:
            raise TransformError(
                f"{self._where()} is the text {text!r:.50}, and there is no format to read it by.",
                hint="Set format, such as yyyy-MM-dd HH:mm:ss.",
            )
        try:
            return self._format.parse(text)
        except ValueError as error:
            raise TransformError(
                f"{self._where()} is {text!r:.50}, which is not of the format "
                f"{self._format.pattern}: {error}.",
                hint="Correct format, or set errors.tolerance=all.",
            ) from None

    def _where(self) -> str:
        return f"The field {self._field}" if self._field else f"The {self.side}"


TimestampConverterKey, TimestampConverterValue = both_sides(TimestampConverter)


_MAKERS: Final[Mapping[str, Callable[[int], date | time | datetime]]] = MappingProxyType(
    {"Date": date_of, "Time": time_of, "Timestamp": datetime_of}
)


def _format(pattern: str) -> DateFormat | None:
    if not pattern.strip():
        return None
    try:
        return DateFormat(pattern)
    except ValueError as error:
        raise ValueError(f"format is {pattern!r}: {error}.") from None


def _divided(value: int, by: int) -> int:
    """Divide towards zero."""
    return -(-value // by) if value < 0 else value // by


def _is_time(schema: Schema) -> bool:
    if schema.name in {DATE_NAME, TIME_NAME, TIMESTAMP_NAME}:
        return True
    return schema.type in {Type.STRING, Type.INT64}
