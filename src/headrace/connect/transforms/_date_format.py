"""Times as text by patterns such as ``yyyy-MM-dd'T'HH:mm:ss.SSSXXX``, in UTC and in English.

The letters are those of Java's ``SimpleDateFormat``, in which configs of Kafka Connect are written,
and weeks begin on Sunday as there.  The calendar is that of ISO 8601, also before 1582.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, NamedTuple

#: Milliseconds of a day.
DAY_MS: Final = 86_400_000
_HOUR_MS: Final = 3_600_000

# From the first of March of the year 0 to 1970, in days.
_EPOCH: Final = 719_468

_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_WEEKDAYS: Final = (
    *("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"),
)

#: Hours from UTC of the zones that have names here, which are those of RFC 822.
_ZONES: Final[Mapping[str, int]] = MappingProxyType(
    {"UTC": 0, "GMT": 0, "UT": 0, "Z": 0, "EST": -5, "EDT": -4}
    | {"CST": -6, "CDT": -5, "MST": -7, "MDT": -6, "PST": -8, "PDT": -7}
)


class Moment(NamedTuple):
    """A point in time, cut into the fields of a calendar in UTC."""

    #: 0 is the year 1 BC.
    year: int
    month: int
    day: int
    #: Days since 1970.
    days: int
    #: Milliseconds since midnight.
    clock: int


def day_number(year: int, month: int, day: int) -> int:
    """Return days since 1970; months and days beyond their ends run on.

    >>> day_number(2023, 2, 29) == day_number(2023, 3, 1)
    True
    """
    # Years that begin in March have their leap day at the end.
    years, since_march = divmod(12 * year + month - 3, 12)
    begins = 365 * years + years // 4 - years // 100 + years // 400
    return begins + (153 * since_march + 2) // 5 + day - 1 - _EPOCH


def moment_of(milliseconds: int) -> Moment:
    """Cut milliseconds since 1970 into fields.

    >>> moment_of(-1)
    Moment(year=1969, month=12, day=31, days=-1, clock=86399999)
    """
    days, clock = divmod(milliseconds, DAY_MS)
    centuries = (4 * (days + _EPOCH) + 3) // 146_097
    # Days as they would be if each fourth year had a leap day.
    even = days + _EPOCH + centuries - centuries // 4
    years = (4 * even + 3) // 1461
    of_year = even - 1461 * years // 4
    since_march = (5 * of_year + 2) // 153
    day = of_year - (153 * since_march + 2) // 5 + 1
    after, month = divmod(since_march + 2, 12)
    return Moment(years + after, month + 1, day, days, clock)


def _weekday(days: int) -> int:
    """Sunday is 0, and 1970 began on a Thursday."""
    return (days + 4) % 7


def _first_week(year: int) -> int:
    """Return the Sunday on or before the first of January."""
    first = day_number(year, 1, 1)
    return first - _weekday(first)


def _week_year(moment: Moment) -> int:
    return moment.year + (moment.days >= _first_week(moment.year + 1))


class DateFormat:
    """Writes and reads points in time by a pattern.

    Raises
    ------
    ValueError
        The pattern is not valid.

    Examples
    --------
    >>> DateFormat("EEE, d MMM yyyy HH:mm").format(1_700_000_000_123)
    'Tue, 14 Nov 2023 22:13'
    >>> DateFormat("yyyy-MM-dd HH:mm:ss").parse("2023-11-14 22:13:20")
    1700000000000
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._parts = _cut(pattern)
        following = [*self._parts[1:], _PatternPart("", 0, "")]
        self._forms = [_form(*pair) for pair in zip(self._parts, following, strict=True)]

    def format(self, milliseconds: int) -> str:
        """Write milliseconds since 1970."""
        moment = moment_of(milliseconds)
        return "".join(
            _WRITERS[part.letter](moment, part.length) if part.letter else part.text
            for part in self._parts
        )

    def parse(self, text: str) -> int:
        """Read milliseconds since 1970; the 40th of March is in April.

        What stands behind the pattern's end is left alone, and a weekday counts beside a week only.

        Raises
        ------
        ValueError
            The text does not follow the pattern.
        """
        values: dict[str, int] = {}
        at = 0
        for part, (form, what) in zip(self._parts, self._forms, strict=True):
            if part.letter in {"W", "F"}:
                raise ValueError(f"the letter {part.letter!r} cannot be read, only written")
            found = form.match(text, at)
            if found is None:
                raise ValueError(f"{what} is missing at character {at + 1}")
            at = found.end()
            if part.letter:
                name, value = _read(part, found[1])
                values[name] = value
        return _milliseconds(values)


class _PatternPart(NamedTuple):
    """A run of one letter, such as ``yyyy``, or text as it stands, which has no letter."""

    letter: str
    length: int
    text: str

    @property
    def is_name(self) -> bool:
        return self.letter in {"G", "E", "a"} or (self.letter in {"M", "L"} and self.length > 2)

    @property
    def is_zone(self) -> bool:
        return self.letter in {"z", "Z", "X"}


_TOKEN = re.compile(r"''|'((?:[^']|'')+)'|([A-Za-z])\2*|[^A-Za-z']+|'")


def _cut(pattern: str) -> list[_PatternPart]:
    parts = []
    for token in _TOKEN.finditer(pattern):
        text, letter = token[0], token[2]
        if text == "'":
            raise ValueError("a quote is not closed")
        if letter and letter not in _WRITERS:
            known = "".join(_WRITERS)
            raise ValueError(
                f"the letter {letter!r} means nothing: write one of {known}, or quote it"
            )
        if letter == "X" and len(text) > 3:
            raise ValueError("at most three X can stand together")
        inner = text if token[1] is None else token[1]
        parts.append(_PatternPart(letter or "", len(text), inner.replace("''", "'")))
    return parts


def _milliseconds(values: Mapping[str, int]) -> int:
    year = values.get("y", 1970)
    if values.get("G") == 0:
        year = 1 - year
    if "Y" in values:
        days = _first_week(values["Y"]) + 7 * (values.get("w", 1) - 1) + values.get("E", 0)
    elif "D" in values:
        days = day_number(year, 1, values["D"])
    else:
        days = day_number(year, values.get("M", 1), values.get("d", 1))
    hour = values.get("H", values.get("K", 0) + 12 * values.get("a", 0))
    seconds = 3600 * hour + 60 * values.get("m", 0) + values.get("s", 0)
    return days * DAY_MS + 1000 * seconds + values.get("S", 0) - values.get("zone", 0)


_ZONE_FORMS: Final = (
    rf"GMT[+-]\d\d?:\d\d|[+-]\d{{4}}|(?:{'|'.join(sorted(_ZONES, reverse=True))})\b",
    r"Z|[+-]\d\d",
    r"Z|[+-]\d{4}",
    r"Z|[+-]\d\d?:\d\d",
)
_NAMES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"G": ("BC", "AD"), "E": _WEEKDAYS, "a": ("AM", "PM"), "M": _MONTHS, "L": _MONTHS}
)


def _form(part: _PatternPart, following: _PatternPart) -> tuple[re.Pattern[str], str]:
    """Return what a part looks like in text, and what it is called where it is missing."""
    if not part.letter:
        return re.compile(re.escape(part.text)), repr(part.text)
    if part.is_name:
        names = _NAMES[part.letter]
        what = f"one of {', '.join(names)}"
        form = "|".join([*names, *(name[:3] for name in names)])
    elif part.is_zone:
        what = "a time zone"
        form = _ZONE_FORMS[part.length if part.letter == "X" else 0]
        if part.letter != "X":
            what += f" such as +0000, GMT+1:00, {', '.join(_ZONES)}"
    else:
        what = "a number"
        # Digits that follow each other without a sign between are told apart by their number.
        abutting = following.letter and not (following.is_name or following.is_zone)
        form = f"[0-9]{{{part.length}}}" if abutting else "-?[0-9]+"
    return re.compile(rf"[ \t]*({form})", re.IGNORECASE | re.ASCII), what


def _read(part: _PatternPart, text: str) -> tuple[str, int]:
    """Return what a part of the text says: the letter that stands for it, or the zone, and a value."""
    letter = part.letter
    if part.is_zone:
        return "zone", _zone(text.upper())
    if part.is_name:
        place = [name[:3].lower() for name in _NAMES[letter]].index(text[:3].lower())
        return ("M", place + 1) if letter in {"M", "L"} else (letter, place)
    value = int(text)
    if letter in {"y", "Y"} and part.length <= 2 and len(text) == 2:
        # Two digits are in the hundred years that begin 80 years ago.
        start = datetime.now(UTC).year - 80
        value = start + (value - start) % 100
    elif (letter, value) in {("k", 24), ("h", 12)}:
        value = 0
    elif letter == "u":
        value %= 7
    return {"L": "M", "k": "H", "h": "K", "u": "E"}.get(letter, letter), value


def _zone(text: str) -> int:
    if text in _ZONES:
        return _ZONES[text] * _HOUR_MS
    hours, minutes = re.findall(r"(\d\d?):?(\d\d)?$", text)[0]
    offset = int(hours) * _HOUR_MS + int(minutes or 0) * 60_000
    return -offset if "-" in text else offset


def _padded(value_of: Callable[[Moment], int]) -> Callable[[Moment, int], str]:
    return lambda moment, count: f"{value_of(moment):0{count}d}"


def _year(year: int, count: int) -> str:
    year = year if year > 0 else 1 - year
    return f"{year % 100 if count == 2 else year:0{count}d}"


def _name(names: tuple[str, ...], place: int, count: int) -> str:
    return names[place] if count >= 4 else names[place][:3]


def _month(moment: Moment, count: int) -> str:
    return f"{moment.month:0{count}d}" if count < 3 else _name(_MONTHS, moment.month - 1, count)


def _hour(moment: Moment) -> int:
    return moment.clock // _HOUR_MS


_WRITERS: Final[Mapping[str, Callable[[Moment, int], str]]] = MappingProxyType(
    {
        "G": lambda moment, _: "AD" if moment.year > 0 else "BC",
        "y": lambda moment, count: _year(moment.year, count),
        "Y": lambda moment, count: _year(_week_year(moment), count),
        "M": _month,
        "L": _month,
        "w": _padded(lambda moment: (moment.days - _first_week(_week_year(moment))) // 7 + 1),
        "W": _padded(lambda moment: (moment.day + 5 - _weekday(moment.days)) // 7 + 1),
        "D": _padded(lambda moment: moment.days - day_number(moment.year, 1, 1) + 1),
        "d": _padded(lambda moment: moment.day),
        "F": _padded(lambda moment: (moment.day - 1) // 7 + 1),
        "E": lambda moment, count: _name(_WEEKDAYS, _weekday(moment.days), count),
        "u": _padded(lambda moment: _weekday(moment.days) or 7),
        "a": lambda moment, _: "AM" if _hour(moment) < 12 else "PM",
        "H": _padded(_hour),
        "k": _padded(lambda moment: _hour(moment) or 24),
        "K": _padded(lambda moment: _hour(moment) % 12),
        "h": _padded(lambda moment: _hour(moment) % 12 or 12),
        "m": _padded(lambda moment: moment.clock // 60_000 % 60),
        "s": _padded(lambda moment: moment.clock // 1000 % 60),
        "S": _padded(lambda moment: moment.clock % 1000),
        "z": lambda _, count: "UTC" if count < 4 else "Coordinated Universal Time",
        "Z": lambda _, __: "+0000",
        "X": lambda _, __: "Z",
    }
)
