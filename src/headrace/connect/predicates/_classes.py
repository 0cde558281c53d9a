"""Named classes of characters in Java's regular expressions: Alpha, Lu and so on."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from itertools import groupby
from types import MappingProxyType
from typing import Final

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
