"""Java's regular expressions, said in Python's.

Configs that come from Kafka Connect are written for Java.  The two languages agree on most of it;
this translates the rest: named groups, quotes, classes of characters and their intersections.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from itertools import groupby
from types import MappingProxyType
from typing import Final

_ESCAPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "h": r"[ \t\xa0\u1680\u180e\u2000-\u200a\u202f\u205f\u3000]",
        "R": r"(?:\r\n|[\n\x0b\f\r\x85\u2028\u2029])",
        "z": r"\Z",
        "Z": r"(?=\n?\Z)",
        "e": r"\x1b",
    }
)
_FLAGS: Final[Mapping[str, int]] = MappingProxyType(
    {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE, "d": 0, "u": 0}
)
_REPETITION = re.compile(r"\{\d+(,\d*)?\}")
_LEADING_FLAGS = re.compile(r"\(\?([imsxdu]+)\)")
_ASCII: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Lower": "a-z",
        "Upper": "A-Z",
        "Alpha": "a-zA-Z",
        "Digit": "0-9",
        "Alnum": "a-zA-Z0-9",
        "ASCII": r"\x00-\x7f",
        "Punct": r"!-/:-@\[-`{-~",
        "Graph": "!-~",
        "Print": " -~",
        "Blank": r" \t",
        "Cntrl": r"\x00-\x1f\x7f",
        "XDigit": "0-9a-fA-F",
        "Space": r" \t\n\x0b\f\r",
    }
)

#: Other words for categories of Unicode.
_CATEGORIES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "IsAlphabetic": ("L", "Nl"),
        "IsLetter": ("L",),
        "IsDigit": ("Nd",),
        "IsUppercase": ("Lu",),
        "IsLowercase": ("Ll",),
        "IsPunctuation": ("P",),
        "IsWhite_Space": ("Z",),
        "javaLowerCase": ("Ll",),
        "javaUpperCase": ("Lu",),
        "javaLetter": ("L",),
        "javaDigit": ("Nd",),
        "javaLetterOrDigit": ("L", "Nd"),
        "javaWhitespace": ("Z",),
    }
)


def java_pattern(pattern: str, flags: int = 0) -> re.Pattern[str]:
    r"""Compile a regular expression of Java's.

    >>> java_pattern(r"(?<first>\p{Alpha}+)-\Qa.b\E").fullmatch("xy-a.b")["first"]
    'xy'

    Raises
    ------
    ValueError
        It is none, or says what cannot be said here.
    """
    try:
        if leading := _LEADING_FLAGS.match(pattern):
            for letter in leading[1]:
                flags |= _FLAGS[letter]
            body = pattern[leading.end() :]
        else:
            body = pattern
        # Java's classes such as \w mean ASCII, and so does its ignoring of case.
        return re.compile(_Translation(body).text(), flags | re.ASCII)
    except (re.error, ValueError) as error:
        raise ValueError(f"{pattern!r} is no regular expression of Java's: {error}") from None


class _Translation:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def text(self) -> str:
        parts = []
        while self._at < len(self._pattern):
            parts.append(self._next())
        return "".join(parts)

    def _rest(self) -> str:
        return self._pattern[self._at :]

    def _take(self, length: int) -> str:
        taken = self._pattern[self._at : self._at + length]
        self._at += length
        return taken

    def _next(self) -> str:
        sign = self._pattern[self._at]
        if sign == "\\":
            return self._escape()
        if sign == "[":
            return self._brackets()
        if named := re.match(r"\(\?<([A-Za-z][A-Za-z0-9]*)>", self._rest()):
            self._at += named.end()
            return f"(?P<{named[1]}>"
        if sign == "{" and not (self._at and _REPETITION.match(self._rest())):
            raise ValueError(f"a repetition is not complete at character {self._at + 1}")
        return self._take(1)

    def _escape(self) -> str:
        if self._rest().startswith("\\Q"):
            return re.escape(self._quoted())
        letter = self._pattern[self._at + 1 : self._at + 2]
        if letter in {"p", "P"}:
            return f"[{self._named()}]"
        if back := re.match(r"\\k<([A-Za-z][A-Za-z0-9]*)>", self._rest()):
            self._at += back.end()
            return f"(?P={back[1]})"
        if letter in _ESCAPES:
            self._at += 2
            return _ESCAPES[letter]
        return self._character()

    def _character(self) -> str:
        """Read one escaped character, in brackets or without."""
        if wide := re.match(r"\\x\{([0-9a-fA-F]{1,6})\}", self._rest()):
            self._at += wide.end()
            return f"\\U{int(wide[1], 16):08x}"
        if octal := re.match(r"\\0([0-3]?[0-7]{1,2})", self._rest()):
            self._at += octal.end()
            return f"\\x{int(octal[1], 8):02x}"
        return self._take(2)

    def _quoted(self) -> str:
        self._at += 2
        end = self._pattern.find("\\E", self._at)
        text = self._take((len(self._pattern) if end < 0 else end) - self._at)
        self._at += 2
        return text

    def _named(self) -> str:
        found = re.match(r"\\([pP])(?:\{(\w+)\}|([A-Z]))", self._rest())
        if found is None:
            raise ValueError(f"a class of characters is not complete at character {self._at + 1}")
        self._at += found.end()
        return named_class(found[2] or found[3], negated=found[1] == "P")

    def _brackets(self) -> str:
        """Read a class in brackets; inner ones join it, or cut it down after ``&&``."""
        self._at += 1
        negated = self._rest().startswith("^")
        self._at += negated
        ranges = ""
        others: list[str] = []
        while not self._rest().startswith("]") or not (ranges or others):
            rest = self._rest()
            if not rest:
                raise ValueError("a class of characters is not closed")
            if rest.startswith("&&"):
                self._at += 2
                inner = self._brackets() if self._rest().startswith("[") else self._bare()
                ranges, others = "", [f"(?={inner}){_union(ranges, others)}"]
            elif rest.startswith("["):
                others.append(self._brackets())
            else:
                ranges += self._item()
        self._at += 1
        if negated and not others:
            return f"[^{ranges}]"
        joined = _union(ranges, others)
        return f"(?:(?!{joined})(?s:.))" if negated else joined

    def _bare(self) -> str:
        """Read what stands behind ``&&`` without brackets of its own."""
        ranges = ""
        while self._rest() and not self._rest().startswith(("]", "&&", "[")):
            ranges += self._item()
        return f"[{ranges}]"

    def _item(self) -> str:
        rest = self._rest()
        if rest.startswith("\\Q"):
            return re.escape(self._quoted())
        if rest[:2] in {"\\p", "\\P"}:
            return self._named()
        if rest.startswith("\\h"):
            self._at += 2
            return _ESCAPES["h"][1:-1]
        if rest.startswith("\\"):
            return self._character()
        sign = self._take(1)
        # Python keeps some signs in brackets for later: Java means the signs.
        return "\\" + sign if sign in "[&~|]" else sign


def _union(ranges: str, others: list[str]) -> str:
    if not others:
        return f"[{ranges}]"
    return f"(?:{'|'.join([*others, f'[{ranges}]'] if ranges else others)})"


def expanded(replacement: str, found: re.Match[str]) -> str:
    r"""Write a replacement of Java's, with ``$1``, ``${name}`` and ``\`` before a sign.

    >>> expanded("$2_${a}", re.match("(?P<a>x)(y)", "xy"))
    'y_x'

    Raises
    ------
    ValueError
        It names a group that the expression has not.
    """
    text, at = "", 0
    while at < len(replacement):
        sign = replacement[at]
        if sign not in "\\$":
            text, at = text + sign, at + 1
        elif sign == "\\":
            if at + 1 == len(replacement):
                raise ValueError(f"the replacement {replacement!r} ends with a backslash")
            text, at = text + replacement[at + 1], at + 2
        else:
            group, at = _group(replacement, at + 1, found)
            text += found[group] or ""
    return text


def _group(replacement: str, at: int, found: re.Match[str]) -> tuple[int | str, int]:
    if named := re.compile(r"\{([A-Za-z][A-Za-z0-9]*)\}").match(replacement, at):
        if named[1] not in found.re.groupindex:
            raise ValueError(f"the replacement names the group {named[1]}, which there is not")
        return named[1], named.end()
    if at >= len(replacement) or not replacement[at].isdigit():
        raise ValueError(f"the replacement {replacement!r} has a $ without a group: write \\$")
    group, at = int(replacement[at]), at + 1
    # More digits belong to the number as long as there is such a group.
    while at < len(replacement) and replacement[at].isdigit():
        longer = group * 10 + int(replacement[at])
        if longer > found.re.groups:
            break
        group, at = longer, at + 1
    if group > found.re.groups:
        raise ValueError(f"the replacement names the group {group}, which there is not")
    return group, at


def named_class(name: str, *, negated: bool) -> str:
    r"""Return what stands in brackets for a class.

    >>> named_class("XDigit", negated=False)
    '0-9a-fA-F'

    Raises
    ------
    ValueError
        There is no such class.
    """
    if name in _ASCII:
        return _all_but(_ASCII[name]) if negated else _ASCII[name]
    categories = _CATEGORIES.get(name, (name.removeprefix("Is"),))
    if name not in _CATEGORIES and not re.fullmatch(r"(Is)?[LMNPSZC][a-z]?", name):
        raise ValueError(f"the class of characters {name} is not known here")
    return "".join(
        _range(first, last)
        for first, last, category in _runs()
        if category.startswith(categories) is not negated
    )


def _all_but(ranges: str) -> str:
    """Return what the other characters of ASCII are, and all beyond."""
    known = re.compile(f"[{ranges}]")
    others = (code for code in range(128) if not known.match(chr(code)))
    return "".join(_range(code, code) for code in others) + _range(128, sys.maxunicode)


def _range(first: int, last: int) -> str:
    return f"\\U{first:08x}-\\U{last:08x}"


@lru_cache(maxsize=1)
def _runs() -> list[tuple[int, int, str]]:
    """Return all characters as runs of one category of Unicode."""
    runs = []
    first = 0
    codes = groupby(map(unicodedata.category, map(chr, range(sys.maxunicode + 1))))
    for category, same in codes:
        end = first + sum(1 for _ in same)
        runs.append((first, end - 1, category))
        first = end
    return runs
