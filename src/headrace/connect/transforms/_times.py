"""Points in time as values: Python's, and milliseconds since 1970."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from headrace.connect.transforms._date_format import DAY_MS
from headrace.errors import TransformError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY = date(1970, 1, 1)
_MILLISECOND = timedelta(milliseconds=1)


def datetime_of(milliseconds: int) -> datetime:
    """Return the point in time.

    Raises
    ------
    TransformError
        It is not between the years 1 and 9999.
    """
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        raise TransformError(
            f"The time {milliseconds} ms is not between the years 1 and 9999.",
            hint="If it counts seconds or microseconds, say so with unix.precision.",
        ) from None


def date_of(milliseconds: int) -> date:
    """Return the day that a point in time is in."""
    return datetime_of(milliseconds).date()


def time_of(milliseconds: int) -> time:
    """Return the time of the day of a point in time."""
    return (_EPOCH + timedelta(milliseconds=milliseconds % DAY_MS)).time()


def milliseconds_of(value: Any) -> int | None:
    """Return milliseconds since 1970 of a date, a time or a point in time; None for all else."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return (aware - _EPOCH) // _MILLISECOND
    if isinstance(value, date):
        return (value - _FIRST_DAY).days * DAY_MS
    if isinstance(value, time):
        seconds = 3600 * value.hour + 60 * value.minute + value.second
        return 1000 * seconds + value.microsecond // 1000
    return None
