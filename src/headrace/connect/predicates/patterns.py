"""Java's regular expressions, written as Python's.

Configs that come from Kafka Connect are written for Java.  The two languages agree on most of it;
this translates what else such configs use, and refuses the rest.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Mapping
from functools import cache
from itertools import groupby
from types import MappingProxyType
from typing import Final

#: What stands in brackets for the named classes of ASCII.
_ASCII: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Lower": "a-z",
        "Upper": "A-Z",
        "Alpha": "a-zA-Z",
        "Digit": "0-9",
        "Alnum": "a-zA-Z0-9",
        "Punct": r"!-/:-@\[-`{-~",
        "XDigit": "0-9a-fA-F",
        "Space": r" \t\n\x0b\f\r",
    }
)
#: Other words for categories of Unicode.
_CATEGORIES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"IsAlphabetic": ("L", "Nl"), "javaLowerCase": ("Ll",)}
)
_ESCAPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "h": r"[ \t\xa0\u1680\u180e\u2000-\u200a\u202f\u205f\u3000]",
        "R": r"(?:\r\n|[\n\x0b\f\r\x85\u2028\u2029])",
        "z": r"\Z",
        "Z": r"(?=\n?\Z)",
    }
)
#: What to write where Python would read something else, or nothing.
_INSTEAD: Final[Mapping[str, str]] = MappingProxyType(
    {
        "0": r"\x41 for an octal number",
        "Q": "a backslash before each sign in brackets",
        "e": r"\x1b",
        "h": r"\t and a space in brackets",
        "v": r"[\n\x0b\f\r]",
        "x{": r"\u0041 or \U00010041",
    }
)
_OUTSIDE = re.compile(
    r"\\Q(?P<quoted>.*?)(?:\\E|\Z)|\\k<(?P<back>[A-Za-z][A-Za-z0-9]*)>|\\(?P<escape>[hRzZ])"
    r"|\(\?<(?P<group>[A-Za-z][A-Za-z0-9]*)>|(?P<repetition>\{\d+(?:,\d*)?\})|(?P<brace>\{)",
    re.DOTALL,
)
_CLASS = re.compile(r"\\([pP])(?:\{(\w+)\}|([A-Z]))")


def java_pattern(pattern: str, flags: int = 0) -> re.Pattern[str]:
    r"""Compile a regular expression of Java's.

    >>> java_pattern(r"(?<first>\p{Alpha}+)-\Qa.b\E").fullmatch("xy-a.b")["first"]
    'xy'

    Raises
    ------
    ValueError
        It is not one, or says what cannot be written here.
    """
    try:
        # Java's classes such as \w mean ASCII, and so does its ignoring of case.
        return re.compile(_Translation(pattern).text(), flags | re.ASCII)
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

    def _starts(self, *texts: str) -> bool:
        return self._pattern.startswith(texts, self._at)

    def _next(self) -> str:
        if self._starts("["):
            self._at += 1
            return self._brackets()
        if found := _OUTSIDE.match(self._pattern, self._at):
            at, self._at = self._at, found.end()
            match found.lastgroup:
                case "quoted":
                    return re.escape(found["quoted"])
                case "back":
                    return f"(?P={found['back']})"
                case "escape":
                    return _ESCAPES[found["escape"]]
                case "group":
                    return f"(?P<{found['group']}>"
                case "brace":
                    raise ValueError(f"a repetition is not complete at character {at + 1}")
            return found[0]
        return self._named() or self._sign()

    def _sign(self) -> str:
        """Take one sign, or an escape that means the same in Python."""
        if not self._starts("\\"):
            self._at += 1
            return self._pattern[self._at - 1]
        for sign, instead in _INSTEAD.items():
            if self._starts(f"\\{sign}"):
                raise ValueError(f"\\{sign} is not known here: write {instead}")
        self._at += 2
        return self._pattern[self._at - 2 : self._at]

    def _named(self) -> str:
        """Take a named class, if one stands here."""
        if not self._starts(r"\p", r"\P"):
            return ""
        found = _CLASS.match(self._pattern, self._at)
        if found is None:
            raise ValueError(f"a class of characters is not complete at character {self._at + 1}")
        self._at = found.end()
        negation = "^" if found[1] == "P" else ""
        return f"[{negation}{_ranges(found[2] or found[3])}]"

    def _brackets(self) -> str:
        """Take a class in brackets up to its end; what is behind ``&&`` cuts it down."""
        negated = self._starts("^")
        self._at += negated
        ranges = ""
        others: list[str] = []
        while not self._starts("]") or not (ranges or others):
            if self._at >= len(self._pattern):
                raise ValueError("a class of characters is not closed")
            if self._starts("&&"):
                self._at += 2
                cut = self._brackets()
                others, ranges = [f"(?={_union(ranges, others)}){cut}"], ""
                self._at -= 1
            elif self._starts("["):
                self._at += 1
                others.append(self._brackets())
            elif named := self._named():
                others.append(named)
            else:
                sign = self._sign()
                # Python keeps some signs in brackets for later: Java means the signs.
                ranges += "\\" + sign if sign in "[&~|]" else sign
        self._at += 1
        if negated and not others:
            return f"[^{ranges}]"
        joined = _union(ranges, others)
        return f"(?:(?!{joined})(?s:.))" if negated else joined


def _union(ranges: str, others: list[str]) -> str:
    if not others:
        return f"[{ranges}]"
    return f"(?:{'|'.join([*others, f'[{ranges}]'] if ranges else others)})"


@cache
def _ranges(name: str) -> str:
    """Return what stands in brackets for a class."""
    if name in _ASCII:
        return _ASCII[name]
    if name not in _CATEGORIES and not re.fullmatch(r"(Is)?[LMNPSZC][a-z]?", name):
        known = ", ".join([*_ASCII, *_CATEGORIES])
        raise ValueError(
            f"the class of characters {name} is not known here: write a category of Unicode such "
            f"as L or Lu, or one of {known}"
        )
    categories = _CATEGORIES.get(name, (name.removeprefix("Is"),))
    held = groupby(_runs(), lambda run: run[0].startswith(categories))
    found = [list(runs) for inside, runs in held if inside]
    return "".join(f"\\U{runs[0][1]:08x}-\\U{runs[-1][2]:08x}" for runs in found)


@cache
def _runs() -> list[tuple[str, int, int]]:
    """Return the category of each run of characters that have the same, its first and its last."""
    found, first = [], 0
    for category, run in groupby(map(unicodedata.category, map(chr, range(sys.maxunicode + 1)))):
        behind = first + sum(1 for _ in run)
        found.append((category, first, behind - 1))
        first = behind
    return found


def expanded(replacement: str, found: re.Match[str]) -> str:
    r"""Write a replacement with ``$1``, ``${name}`` and ``\`` before a sign.

    >>> expanded("$2_${a}", re.match("(?P<a>x)(y)", "xy"))
    'y_x'

    Raises
    ------
    ValueError
        It names a group that the expression does not have.
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
