"""Logical types: decimals, dates, times and timestamps, and the plain values that carry them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

from headrace.connect.converters._fitting import UnfitError, kind_of
from headrace.connect.schema import (
    DATE_NAME,
    DECIMAL_NAME,
    TIME_NAME,
    TIMESTAMP_NAME,
    Schema,
)

__all__ = [
    "FROM_PLAIN",
    "TO_PLAIN",
    "days",
    "milliseconds",
    "milliseconds_of_day",
    "moment",
    "unscaled",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1)
_MILLISECOND = timedelta(milliseconds=1)
_DAY = 86_400_000
# Decimals may have any number of digits; rounding one would change it.
_EXACT = Context(prec=100_000, Emax=999_999_999, Emin=-999_999_999, traps=[Inexact])


def unscaled(schema: Schema, value: Any) -> int:
    """Give a decimal without its point.

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
    """Give a date as days since 1970."""
    if not isinstance(value, date) or isinstance(value, datetime):
        reason = f"a date is needed, not {kind_of(value)}"
        raise UnfitError(reason, hint="give a datetime.date")
    return (value - _EPOCH_DAY).days


def milliseconds_of_day(schema: Schema, value: Any) -> int:  # noqa: ARG001
    """Give a time of day as milliseconds; what is finer is cut off."""
    if not isinstance(value, time):
        reason = f"a time of day is needed, not {kind_of(value)}"
        raise UnfitError(reason, hint="give a datetime.time")
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return seconds * 1000 + value.microsecond // 1000


def milliseconds(schema: Schema, value: Any) -> int:  # noqa: ARG001
    """Give a timestamp as milliseconds since 1970; what is finer is cut off."""
    if not isinstance(value, datetime):
        reason = f"a timestamp is needed, not {kind_of(value)}"
        raise UnfitError(reason, hint="give a datetime.datetime with a zone")
    if value.tzinfo is None:
        reason = "a timestamp needs a zone"
        raise UnfitError(reason, hint="give it one: value.replace(tzinfo=UTC)")
    return (value - _EPOCH) // _MILLISECOND


def _decimal(schema: Schema, value: Any) -> Decimal:
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
    """Give the timestamp of milliseconds since 1970."""
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
    DECIMAL_NAME: _decimal,
    DATE_NAME: _date,
    TIME_NAME: _time,
    TIMESTAMP_NAME: _timestamp,
}
