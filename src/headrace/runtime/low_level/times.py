"""Times of the engine, in ms since 1970, and of the users' programs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

__all__ = ["datetime_of", "milliseconds", "rounded_up"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def datetime_of(time: int) -> datetime:
    """Give ms since 1970 as a time in UTC.

    >>> datetime_of(-1).isoformat()
    '1969-12-31T23:59:59.999000+00:00'
    """
    return _EPOCH + timedelta(milliseconds=time)


def milliseconds(time: datetime) -> int:
    """Give a time in ms since 1970; one without a zone is in UTC.

    >>> milliseconds(datetime(1970, 1, 2)), milliseconds(datetime_of(-1))
    (86400000, -1)
    """
    return ((time if time.tzinfo is not None else time.replace(tzinfo=UTC)) - _EPOCH) // _MS


def rounded_up(time: int, step: int) -> int:
    """Give the first multiple of a step that is not before a time.

    >>> rounded_up(1, 10), rounded_up(-1, 10), rounded_up(20, 10)
    (10, 0, 20)
    """
    return -(-time // step) * step
