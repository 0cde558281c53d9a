"""Reads text by a pattern of Java's ``SimpleDateFormat``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

from headrace.connect.transforms._calendar import (
    DAY_MS,
    day_number,
    first_of_week_year,
    moment_of,
    weekday,
)
from headrace.connect.transforms._date_pattern import MONTHS, WEEKDAYS, LetterRun, Part

_HOUR_MS = 3_600_000
_NUMBER = re.compile(r"-?[0-9]+")
_CLOCK = re.compile(r"([0-9]{1,2})(?::?([0-9]{2}))?")

#: Hours from UTC of the zones that people write as words.
_ZONES: Final[Mapping[str, int]] = MappingProxyType(
    {"UTC": 0, "GMT": 0, "UT": 0, "Z": 0, "WET": 0, "WEST": 1, "BST": 1, "CET": 1, "CEST": 2}
    | {"EET": 2, "EEST": 3, "MSK": 3, "JST": 9, "EST": -5, "EDT": -4, "CST": -6, "CDT": -5}
    | {"MST": -7, "MDT": -6, "PST": -8, "PDT": -7}
)


@dataclass
class _ParsedFields:
    """What has been read so far; a letter that comes later wins over those it contradicts."""

    values: dict[str, int] = field(default_factory=dict)

    def set(self, letter: str, value: int) -> None:
        self.values.pop(letter, None)
        self.values[letter] = value

    def last_of(self, letters: str) -> str | None:
        """The one of these letters that came last."""
        return next((one for one in reversed(self.values) if one in letters), None)

    def milliseconds(self) -> int:
        return self._day() * DAY_MS + self._clock() - self.values.get("zone", 0)

    def _year(self) -> int:
        year = self.values.get("y", 1970)
        return 1 - year if self.values.get("G") == 0 else year

    def _day(self) -> int:
        values = self.values
        if self.last_of("Yy") == "Y" or self.last_of("wMdD") == "w":
            start = first_of_week_year(values.get("Y", self._year()))
            return start + 7 * (values.get("w", 1) - 1) + values.get("E", 0)
        if self.last_of("dMD") == "D":
            return day_number(self._year(), 1, values["D"])
        day = day_number(self._year(), values.get("M", 1), values.get("d", 1))
        if "E" in values and "d" not in values:
            # The first such weekday of the month.
            return day + (values["E"] - weekday(day)) % 7
        return day

    def _clock(self) -> int:
        values = self.values
        hour = values.get("H", 0)
        if self.last_of("HKa") in {"K", "a"}:
            hour = values.get("K", 0) + 12 * values.get("a", 0)
        minutes = 60 * hour + values.get("m", 0)
        return (60 * minutes + values.get("s", 0)) * 1000 + values.get("S", 0)


def parsed(text: str, parts: Sequence[Part]) -> int:
    """Return milliseconds since 1970; text behind the pattern's end is left alone."""
    fields = _ParsedFields()
    at = 0
    for index, part in enumerate(parts):
        if isinstance(part, str):
            if not text.startswith(part, at):
                raise ValueError(f"{part!r} is missing at character {at + 1}")
            at += len(part)
            continue
        while at < len(text) and text[at] in " \t":
            at += 1
        following = parts[index + 1] if index + 1 < len(parts) else ""
        at = _read(text, at, part, fields, abutting=isinstance(following, LetterRun))
    return fields.milliseconds()


def _read(text: str, at: int, part: LetterRun, fields: _ParsedFields, *, abutting: bool) -> int:
    letter, count = part.letter, part.count
    if letter in _NAMES and (letter not in "ML" or count > 2):
        return _read_name(text, at, letter, fields)
    if letter in "zZ":
        return _read_zone(text, at, fields)
    if letter == "X":
        return _read_iso_zone(text, at, count, fields)
    # Digits that follow each other without a sign between are told apart by their number.
    found = _NUMBER.match(text, at, at + count if abutting else len(text))
    if found is None or (abutting and found.end() < at + count and at + count > len(text)):
        raise ValueError(f"a number is missing at character {at + 1}")
    if letter not in _NUMBERS:
        raise ValueError(f"the letter {letter!r} cannot be read, only written")
    name, value_of = _NUMBERS[letter]
    value = int(found[0])
    if letter in "yY" and count <= 2 and len(found[0]) == 2 and found[0].isdigit():
        value = _century(value)
    fields.set(name, value_of(value))
    return found.end()


def _century(year: int) -> int:
    """Put two digits into the hundred years that begin 80 years ago."""
    start = moment_of(int(datetime.now(UTC).timestamp() * 1000)).year - 80
    return start + (year - start) % 100


def _as_it_is(value: int) -> int:
    return value


_NUMBERS: Final[Mapping[str, tuple[str, Callable[[int], int]]]] = MappingProxyType(
    {
        **{letter: (letter, _as_it_is) for letter in "yYMwDdHKmsS"},
        "L": ("M", _as_it_is),
        "k": ("H", lambda hour: 0 if hour == 24 else hour),
        "h": ("K", lambda hour: 0 if hour == 12 else hour),
        "u": ("E", lambda day: day % 7),
    }
)

_NAMES: Final[Mapping[str, tuple[str, tuple[str, ...], int]]] = MappingProxyType(
    {
        "G": ("G", ("BC", "AD"), 0),
        "M": ("M", MONTHS, 1),
        "L": ("M", MONTHS, 1),
        "E": ("E", WEEKDAYS, 0),
        "a": ("a", ("AM", "PM"), 0),
    }
)


def _read_name(text: str, at: int, letter: str, fields: _ParsedFields) -> int:
    name, words, first = _NAMES[letter]
    rest = text[at:].lower()
    for form in (str, lambda word: word[:3]):
        for index, word in enumerate(words):
            if rest.startswith(form(word).lower()):
                fields.set(name, index + first)
                return at + len(form(word))
    raise ValueError(f"one of {', '.join(words)} is missing at character {at + 1}")


def _read_zone(text: str, at: int, fields: _ParsedFields) -> int:
    rest = text[at:].upper()
    if rest.startswith(("GMT+", "GMT-")):
        return _read_offset(text, at + 3, fields, colon=True)
    if rest[:1] in {"+", "-"}:
        return _read_offset(text, at, fields, colon=False)
    word = re.match(r"[A-Z]+", rest)
    if word is None or word[0] not in _ZONES:
        known = ", ".join(_ZONES)
        raise ValueError(f"a time zone is missing at character {at + 1}: +0000, GMT+1:00, {known}")
    fields.set("zone", _ZONES[word[0]] * _HOUR_MS)
    return at + word.end()


def _read_iso_zone(text: str, at: int, count: int, fields: _ParsedFields) -> int:
    if text.startswith("Z", at):
        fields.set("zone", 0)
        return at + 1
    if count == 1:
        return _read_offset(text, at, fields, colon=False, minutes=False)
    return _read_offset(text, at, fields, colon=count == 3)


def _read_offset(
    text: str, at: int, fields: _ParsedFields, *, colon: bool, minutes: bool = True
) -> int:
    form = "[+-][0-9]{2}" if not minutes else "[+-][0-9]{1,2}:[0-9]{2}"
    form = form if colon or not minutes else "[+-][0-9]{4}"
    found = re.compile(form).match(text, at)
    if found is None:
        raise ValueError(f"a time zone is missing at character {at + 1}")
    digits = found[0][1:].replace(":", "")
    hours, rest = (int(digits), 0) if not minutes else (int(digits[:-2]), int(digits[-2:]))
    offset = hours * _HOUR_MS + rest * 60_000
    fields.set("zone", -offset if found[0][0] == "-" else offset)
    return found.end()
