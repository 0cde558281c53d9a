"""Numbers, sizes and times as tables for people show them."""

from __future__ import annotations

from datetime import datetime, timedelta

__all__ = ["ago", "length", "moment", "number", "short_driver", "size"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def number(count: int | None) -> str:
    """Write a number; 0 is left out, and what nobody knows is a dash.

    >>> number(1200), number(0), number(None)
    ('1,200', '', '–')
    """
    if count is None:
        return "–"
    return f"{count:,}" if count else ""


def length(span: timedelta | None) -> str:
    """Write a length of time; none at all is left out.

    >>> length(timedelta(seconds=2.25)), length(timedelta(minutes=3)), length(None)
    ('2.2 s', '0:03:00', '')
    """
    if not span:
        return ""
    if span < timedelta(minutes=1):
        return f"{span.total_seconds():.1f} s"
    return str(timedelta(seconds=round(span.total_seconds())))


def ago(at: datetime, now: datetime) -> str:
    """Say how long ago something was, in one figure.

    >>> start = datetime(2026, 11, 21, 12)
    >>> [ago(start, start + timedelta(seconds=s)) for s in (0.4, 61, 7300, 200_000)]
    ['0 s ago', '1 min ago', '2 h ago', '2 d ago']
    """
    seconds = max(0.0, (now - at).total_seconds())
    for unit, span in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= span:
            return f"{seconds // span:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def moment(milliseconds: float) -> str:
    """Write a time, in ms since 1970, by the clock of this machine."""
    return f"{datetime.fromtimestamp(milliseconds / 1000).astimezone():%Y-%m-%d %H:%M:%S}"


def short_driver(name: str) -> str:
    """Shorten the name of a driver to host and process id.

    >>> short_driver("laptop:4711@5f1c/4026531836/88/1a2b"), short_driver("mine")
    ('laptop:4711', 'mine')
    """
    return name.partition("@")[0]


def size(number_of_bytes: float) -> str:
    """Write a number of bytes; 0 is left out.

    >>> size(0), size(20), size(3 << 20)
    ('', '20 B', '3.0 MiB')
    """
    left = number_of_bytes
    if not left:
        return ""
    for unit in _UNITS:
        if left < 1024 or unit == _UNITS[-1]:
            break
        left /= 1024
    return f"{left:.0f} {unit}" if unit == "B" else f"{left:.1f} {unit}"
