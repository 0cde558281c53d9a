"""Days as Java counts them: the Julian calendar before 15 October 1582, the Gregorian after.

Weeks begin on Sunday, and the week of the first of January is the year's first, as in the United
States: the place that Java's formats speak of when nobody tells them another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

#: Milliseconds of a day.
DAY_MS = 86_400_000

# 15 October 1582, in days since 1970.
_CUTOVER = -141_427

_BEFORE_MONTH = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time, cut into the fields of a calendar in UTC."""

    #: 0 is the year 1 BC.
    year: int
    month: int
    day: int
    #: Days since 1970.
    days: int
    #: Milliseconds since midnight.
    clock: int

    @property
    def weekday(self) -> int:
        """Sunday is 0."""
        return weekday(self.days)

    @property
    def day_of_year(self) -> int:
        """The first of January is 1."""
        return self.days - day_number(self.year, 1, 1) + 1

    @property
    def week_year(self) -> int:
        """The year that the week belongs to."""
        return self.year + 1 if self.days >= first_of_week_year(self.year + 1) else self.year

    @property
    def week(self) -> int:
        """The week of the week's year, from 1."""
        return (self.days - first_of_week_year(self.week_year)) // 7 + 1

    @property
    def week_of_month(self) -> int:
        """The week of the month, from 1; the first may be short."""
        first = self.days - self.day + 1
        return (self.day - 1 + weekday(first)) // 7 + 1


def weekday(days: int) -> int:
    """Return the day of the week of a day since 1970; Sunday is 0.

    >>> weekday(0)  # a Thursday
    4
    """
    return (days + 4) % 7


def first_of_week_year(year: int) -> int:
    """Return the Sunday on or before the first of January."""
    first = day_number(year, 1, 1)
    return first - weekday(first)


def day_number(year: int, month: int, day: int) -> int:
    """Return days since 1970; months and days beyond their ends run on.

    >>> day_number(2023, 2, 29) == day_number(2023, 3, 1)
    True
    """
    year, month = year + (month - 1) // 12, (month - 1) % 12 + 1
    gregorian = _start(year, month, _gregorian_leaps) + day - 1
    if gregorian >= _CUTOVER:
        return gregorian
    return _start(year, month, _julian_leaps) + day - 1


def moment_of(milliseconds: int) -> Moment:
    """Cut milliseconds since 1970 into fields.

    >>> moment_of(-1)
    Moment(year=1969, month=12, day=31, days=-1, clock=86399999)
    """
    days, clock = divmod(milliseconds, DAY_MS)
    leaps = _gregorian_leaps if days >= _CUTOVER else _julian_leaps
    year = 1970 + days * 400 // 146_097
    while _start(year + 1, 1, leaps) <= days:
        year += 1
    while _start(year, 1, leaps) > days:
        year -= 1
    month = next(one for one in range(12, 0, -1) if _start(year, one, leaps) <= days)
    return Moment(year, month, days - _start(year, month, leaps) + 1, days, clock)


def _gregorian_leaps(year: int) -> int:
    """Count the leap days before a year, from 1970 on."""
    before = year - 1
    return before // 4 - before // 100 + before // 400 - 477


def _julian_leaps(year: int) -> int:
    return (year - 1) // 4 - 479


def _start(year: int, month: int, leaps: Callable[[int], int]) -> int:
    leap_day = 1 if month > 2 and leaps(year + 1) > leaps(year) else 0
    return 365 * (year - 1970) + leaps(year) + _BEFORE_MONTH[month - 1] + leap_day
