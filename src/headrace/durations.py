"""How people write durations and sizes: one grammar for jobs, Connect, broker and command line.

A duration is a number and a unit, ``500 ms``, ``90s``, ``5 min``; or several, the longest unit
first, ``1h30m``; or what ISO 8601 has for it, ``PT5M``.  Units are ms, s, m (or min), h and d, or
their names in full.  Programs give such a text or a ``timedelta``.

A size is a number of bytes, or a number and a unit, ``64 KiB``, ``10 MB``, ``1.5 GiB``.
"""

from __future__ import annotations

import re
from datetime import timedelta

from headrace.errors import SettingsError

EXAMPLES = ("500 ms", "2 s", "5 min", "1h30m", "1 d", "PT5M")
"""Durations as people write them."""

GRAMMAR = f"a number and a unit: {', '.join(EXAMPLES[:-1])} or {EXAMPLES[-1]}"
"""What a duration is, for messages."""

_SPANS = {
    name: timedelta(milliseconds=span)
    for span, names in {
        1: ("ms", "millisecond", "milliseconds"),
        1_000: ("s", "second", "seconds"),
        60_000: ("m", "min", "minute", "minutes"),
        3_600_000: ("h", "hour", "hours"),
        86_400_000: ("d", "day", "days"),
    }.items()
    for name in names
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_POWERS = "kmgt"
_PIECE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*")
_ISO = re.compile(r"p([0-9.]+d)?(?:t([0-9.]+h)?([0-9.]+m)?([0-9.]+s)?)?")


def parse_duration(text: str) -> timedelta:
    """Read a duration.

    Raises
    ------
    ValueError
        When the text is not a duration; the message says what one looks like.

    Examples
    --------
    >>> parse_duration("500 ms")
    datetime.timedelta(microseconds=500000)
    >>> parse_duration("1h30m") == parse_duration("1.5 hours") == parse_duration("PT1H30M")
    True
    """
    plain = text.strip().lower()
    if iso := _ISO.fullmatch(plain):
        plain = "".join(filter(None, iso.groups()))
    pieces = _PIECE.findall(plain)
    spans = [_SPANS.get(unit, timedelta(0)) for _, unit in pieces]
    falling = spans == sorted(set(spans), reverse=True)
    if not pieces or _PIECE.sub("", plain) or not all(spans) or not falling:
        raise ValueError(f"a duration is {GRAMMAR}")
    try:
        parts = (float(number) * span for (number, _), span in zip(pieces, spans, strict=True))
        return sum(parts, timedelta(0))
    except OverflowError:
        raise ValueError("it is longer than a duration can be") from None


def as_duration(given: object) -> timedelta:
    """Return a duration that a program gave: a ``timedelta``, or text.

    Raises
    ------
    ValueError
        It is neither, or no duration.
    """
    if isinstance(given, timedelta):
        return given
    if isinstance(given, str):
        # Nothing needs no unit.
        return timedelta(0) if given.strip() == "0" else parse_duration(given)
    raise ValueError("give a timedelta, or text such as '500 ms'")


def read_duration(what: str, text: str) -> timedelta:
    """Read a duration that somebody gave.

    Parameters
    ----------
    what
        What was given, for the error, such as ``"--timeout"``.
    text
        As it was given.

    Raises
    ------
    SettingsError
        When the text is not a duration.

    Examples
    --------
    >>> read_duration("--timeout", "90s").total_seconds()
    90.0
    """
    try:
        return parse_duration(text)
    except ValueError as error:
        raise SettingsError(f"{what} is {text!r}", hint=str(error)) from None


def format_duration(duration: timedelta) -> str:
    """Write a duration in the longest unit of which it is a whole number.

    >>> [format_duration(timedelta(seconds=seconds)) for seconds in (0, 0.5, 90, 120, 86_400)]
    ['0 s', '500 ms', '90 s', '2 min', '1 d']
    """
    for unit in ("d", "h", "min", "s"):
        if duration % _SPANS[unit] == timedelta(0) and (duration or unit == "s"):
            return f"{duration // _SPANS[unit]} {unit}"
    return f"{duration / _SPANS['ms']:.15g} ms"


def parse_size(text: str) -> int:
    """Read a number of bytes.

    Raises
    ------
    ValueError
        When the text is not a size; the message says what one looks like.

    Examples
    --------
    >>> parse_size("1.5 KiB"), parse_size("2MB"), parse_size("7")
    (1536, 2000000, 7)
    """
    match = _SIZE.fullmatch(text)
    if match is None or (match[3] and not match[2]):
        raise ValueError("a size is bytes, or a number with a unit: 512 KB, 64 KiB, 10 MB, 1 GiB")
    step = 1024 if match[3] else 1000
    return int(float(match[1]) * step ** (_POWERS.find(match[2].lower()) + 1 if match[2] else 0))


def format_size(size: int) -> str:
    """Write a number of bytes in the largest unit of which it is a whole number.

    >>> [format_size(size) for size in (0, 1000, 1 << 10, 5 << 30)]
    ['0', '1,000', '1 KiB', '5 GiB']
    """
    power = next((power for power in (4, 3, 2, 1) if size and size % 1024**power == 0), 0)
    return f"{size // 1024**power:,}{f' {_POWERS[power - 1].upper()}iB' if power else ''}"
