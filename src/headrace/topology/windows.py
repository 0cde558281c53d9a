"""Windows: how event time, or the count of records, is divided."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from math import gcd
from zoneinfo import ZoneInfo

from headrace.durations import as_duration
from headrace.errors import TopologyError

_DAY = 86_400_000
#: Offsets of time zones are multiples of this, ms.
_ZONE_STEP = 900_000
#: How much longer than 24 hours a calendar day may be, ms.
_LONGEST_SHIFT = 3 * 3_600_000


@dataclass(frozen=True, slots=True)
class TimeWindows:
    """Windows [start, start + size), one every ``slide``; all in ms."""

    size: int
    slide: int
    offset: int = 0
    #: Sizes and offset are counted by this zone's clock and calendar.
    zone: str | None = None

    @property
    def longest(self) -> int:
        """The longest that a window can be, ms."""
        return self.size + (0 if self.zone is None else _LONGEST_SHIFT)

    @property
    def step(self) -> int:
        """Grid of the times at which windows begin and end, ms."""
        return gcd(self.size, self.slide, self.offset, 0 if self.zone is None else _ZONE_STEP)

    def __str__(self) -> str:
        kind = f"tumbling {told(self.size)}"
        if self.slide != self.size:
            kind = f"hopping {told(self.size)} every {told(self.slide)}"
        shifted = f" offset {told(self.offset)}" if self.offset else ""
        return kind + shifted + (f" in {self.zone}" if self.zone else "")


@dataclass(frozen=True, slots=True)
class SlidingWindows:
    """Windows [t - size, t], one for each time t of a record; ms."""

    size: int

    def __str__(self) -> str:
        return f"sliding {told(self.size)}"


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Runs of records, each of them at most ``gap`` ms from the next."""

    gap: int

    def __str__(self) -> str:
        return f"session with gap {told(self.gap)}"


@dataclass(frozen=True, slots=True)
class CountWindows:
    """Windows of ``size`` records of a key each."""

    size: int

    def __str__(self) -> str:
        return f"every {self.size} records"


Windows = TimeWindows | SlidingWindows | SessionWindows | CountWindows


def tumbling(
    size: timedelta | str, *, offset: timedelta | str = timedelta(0), time_zone: str | None = None
) -> TimeWindows:
    """Divide time into windows that follow each other.

    Windows start at multiples of the size from 1970 UTC on, and before it.

    Parameters
    ----------
    size
        Length of a window: a ``timedelta``, or text such as ``"5 min"``.
    offset
        Moves the starts.  Weeks that begin on Monday have ``offset=timedelta(days=4)``, because
        1970 began on a Thursday.
    time_zone
        Count days by this zone's calendar, such as ``"Europe/Berlin"``: a window then begins at
        midnight there, and the day on which clocks change has 23 or 25 hours.  Size and slide
        are whole days.

    Raises
    ------
    TopologyError
        The size is not positive, or not whole days with a time zone, or the zone is unknown.

    Examples
    --------
    >>> from datetime import timedelta
    >>> from headrace import tumbling
    >>> print(tumbling(timedelta(days=1), time_zone="Europe/Berlin"))
    tumbling 1 day, 0:00:00 in Europe/Berlin
    """
    return hopping(size, size, offset=offset, time_zone=time_zone)


def hopping(
    size: timedelta | str,
    slide: timedelta | str,
    *,
    offset: timedelta | str = timedelta(0),
    time_zone: str | None = None,
) -> TimeWindows:
    """Divide time into windows that overlap: one of a fixed size begins every ``slide``.

    Parameters
    ----------
    size
        Length of a window.
    slide
        The time from one start to the next; at most the size, so that no record is left out.
    offset
        Moves the starts.
    time_zone
        Count days by this zone's calendar; see :func:`tumbling`.

    Raises
    ------
    TopologyError
        A length is not positive, the slide is longer than the size, or as for :func:`tumbling`.

    Examples
    --------
    >>> from headrace import hopping
    >>> print(hopping("5 min", "1 min"))
    hopping 0:05:00 every 0:01:00
    """
    size_ms, slide_ms = _positive(size, "size"), _positive(slide, "slide")
    starts_at = milliseconds(offset, "offset", timedelta.min)
    if slide_ms > size_ms:
        raise TopologyError(
            f"windows of {size} every {slide} would leave records out",
            hint="choose a slide of at most the size",
        )
    if time_zone is not None:
        _check_zone(time_zone, size_ms, slide_ms)
    return TimeWindows(size_ms, slide_ms, starts_at % slide_ms, time_zone)


def sliding(size: timedelta | str) -> SlidingWindows:
    """Look back from every record: a window ends at each time at which a key has a record.

    It holds the key's records from ``size`` before that time up to it, both included.

    Examples
    --------
    >>> from datetime import timedelta
    >>> from headrace import sliding
    >>> print(sliding(timedelta(minutes=5)))
    sliding 0:05:00
    """
    return SlidingWindows(_positive(size, "size"))


def session(gap: timedelta | str) -> SessionWindows:
    """Gather records of a key that follow each other closely.

    A record belongs to a session when it is at most ``gap`` before or after one of its records,
    ``gap`` included; a record between two sessions joins them.  A session's window reaches from
    its first record to ``gap`` after its last.

    Examples
    --------
    >>> from datetime import timedelta
    >>> from headrace import session
    >>> print(session(timedelta(minutes=30)))
    session with gap 0:30:00
    """
    return SessionWindows(_positive(gap, "gap"))


def count_window(size: int) -> CountWindows:
    """Gather every ``size`` records of a key, in the order of their arrival at the broker.

    Examples
    --------
    >>> from headrace import count_window
    >>> print(count_window(100))
    every 100 records
    """
    given: object = size
    if not isinstance(given, int) or given < 1:
        raise TopologyError(f"a window cannot have {size!r} records", hint="count at least 1")
    return CountWindows(size)


def milliseconds(given: timedelta | str, what: str, least: timedelta = timedelta(0)) -> int:
    """Return a length in ms.

    Raises
    ------
    TopologyError
        The length is less than ``least``, or not a whole number of milliseconds.
    """
    length = length_of(given, what, least)
    whole, rest = divmod(length, timedelta(milliseconds=1))
    if rest:
        raise TopologyError(
            f"{length} is not a whole number of milliseconds", hint="times are in milliseconds"
        )
    return whole


def _positive(given: timedelta | str, what: str) -> int:
    if (length := length_of(given, what, timedelta.min)) <= timedelta(0):
        raise TopologyError(f"a window's {what} is {length}", hint=f"choose a {what} above 0")
    return milliseconds(length, what)


def length_of(given: object, what: str, least: timedelta = timedelta(0)) -> timedelta:
    """Return a duration that a program gave: a ``timedelta``, or text such as ``"5 min"``.

    Raises
    ------
    TopologyError
        It is neither, or less than ``least``.
    """
    try:
        length = as_duration(given)
    except ValueError as error:
        hint = "for example timedelta(minutes=1) or '1 min'"
        raise TopologyError(f"{what} is {given!r:.100}: {error}", hint=hint) from None
    if length < least:
        raise TopologyError(f"{what} is {length}", hint="choose one of 0 or more")
    return length


def _check_zone(name: str, size: int, slide: int) -> None:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise TopologyError(
            f"time zone {name!r} is not known on this machine: {error}",
            hint="use a name such as 'Europe/Berlin'; the package tzdata has all of them",
        ) from error
    if size % _DAY or slide % _DAY:
        raise TopologyError(
            f"windows of {told(size)} every {told(slide)} in time zone {name!r} are not whole days",
            hint="leave time_zone= out for windows shorter than a day",
        )


def told(length: int) -> str:
    """Return a length in ms as text for people."""
    return str(timedelta(milliseconds=length))
