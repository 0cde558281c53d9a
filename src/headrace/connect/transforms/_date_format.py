"""Java's ``SimpleDateFormat``: ``yyyy-MM-dd'T'HH:mm:ss.SSSXXX`` and the like, in UTC and English.

Kafka's configs speak this language.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from headrace.connect.transforms._calendar import Moment, moment_of
from headrace.connect.transforms._date_parsing import parsed
from headrace.connect.transforms._date_pattern import MONTHS, WEEKDAYS, cut


class DateFormat:
    """Writes and reads points in time by a pattern.

    Raises
    ------
    ValueError
        The pattern is none.

    Examples
    --------
    >>> DateFormat("EEE, d MMM yyyy HH:mm").format(1_700_000_000_123)
    'Tue, 14 Nov 2023 22:13'
    >>> DateFormat("yyyy-MM-dd HH:mm:ss").parse("2023-11-14 22:13:20")
    1700000000000
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._parts = cut(pattern)

    def format(self, milliseconds: int) -> str:
        """Write milliseconds since 1970."""
        moment = moment_of(milliseconds)
        return "".join(
            part if isinstance(part, str) else _WRITERS[part.letter](moment, part.count)
            for part in self._parts
        )

    def parse(self, text: str) -> int:
        """Read milliseconds since 1970, as leniently as Java: the 40th of March is in April.

        Raises
        ------
        ValueError
            The text does not follow the pattern.
        """
        return parsed(text, self._parts)


def _number(value: int, digits: int) -> str:
    return f"{value:0{digits}d}"


def _year(value: int, count: int) -> str:
    year = value if value > 0 else 1 - value
    return _number(year % 100, 2) if count == 2 else _number(year, count)


def _name(names: tuple[str, ...], index: int, count: int) -> str:
    return names[index] if count >= 4 else names[index][:3]


def _month(moment: Moment, count: int) -> str:
    if count < 3:
        return _number(moment.month, count)
    return _name(MONTHS, moment.month - 1, count)


def _padded(value: Callable[[Moment], int]) -> Callable[[Moment, int], str]:
    return lambda moment, count: _number(value(moment), count)


def _hour(moment: Moment) -> int:
    return moment.clock // 3_600_000


_WRITERS: Final[Mapping[str, Callable[[Moment, int], str]]] = MappingProxyType(
    {
        "G": lambda moment, _: "AD" if moment.year > 0 else "BC",
        "y": lambda moment, count: _year(moment.year, count),
        "Y": lambda moment, count: _year(moment.week_year, count),
        "M": _month,
        "L": _month,
        "w": _padded(lambda moment: moment.week),
        "W": _padded(lambda moment: moment.week_of_month),
        "D": _padded(lambda moment: moment.day_of_year),
        "d": _padded(lambda moment: moment.day),
        "F": _padded(lambda moment: (moment.day - 1) // 7 + 1),
        "E": lambda moment, count: _name(WEEKDAYS, moment.weekday, count),
        "u": _padded(lambda moment: moment.weekday or 7),
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
