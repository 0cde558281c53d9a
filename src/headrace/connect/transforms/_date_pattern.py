"""Patterns of Java's ``SimpleDateFormat``, cut into letters and text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MONTHS: Final = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
WEEKDAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")

#: The letters that mean something; all others must stand in quotes.
LETTERS: Final = frozenset("GyYMLwWDdFEuaHkKhmsSzZX")


@dataclass(frozen=True, slots=True)
class LetterRun:
    """A run of one letter, such as ``yyyy``."""

    letter: str
    count: int


Part = LetterRun | str
"""Letters, or text as it stands."""


def cut(pattern: str) -> list[Part]:
    """Cut a pattern into its parts.

    >>> cut("yyyy 'at' H")
    [LetterRun(letter='y', count=4), ' at ', LetterRun(letter='H', count=1)]

    Raises
    ------
    ValueError
        A letter means nothing, or a quote is not closed.
    """
    parts: list[Part] = []
    at = 0
    while at < len(pattern):
        sign = pattern[at]
        if sign == "'":
            text, at = _quoted(pattern, at)
            _append(parts, text)
        elif sign.isascii() and sign.isalpha():
            end = at
            while end < len(pattern) and pattern[end] == sign:
                end += 1
            parts.append(_letters(sign, end - at))
            at = end
        else:
            _append(parts, sign)
            at += 1
    return parts


def _letters(letter: str, count: int) -> LetterRun:
    if letter not in LETTERS:
        raise ValueError(f"the letter {letter!r} means nothing in a date format; quote it")
    if letter == "X" and count > 3:
        raise ValueError("at most three X can stand together")
    return LetterRun(letter, count)


def _append(parts: list[Part], text: str) -> None:
    if parts and isinstance(parts[-1], str):
        parts[-1] += text
    elif text:
        parts.append(text)


def _quoted(pattern: str, at: int) -> tuple[str, int]:
    """Read text in quotes, which begins here; two quotes are one."""
    if pattern.startswith("''", at):
        return "'", at + 2
    text = ""
    at += 1
    while at < len(pattern):
        if pattern.startswith("''", at):
            text, at = text + "'", at + 2
        elif pattern[at] == "'":
            return text, at + 1
        else:
            text, at = text + pattern[at], at + 1
    raise ValueError("a quote is not closed")
