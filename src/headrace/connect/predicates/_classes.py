"""Named classes of characters in Java's regular expressions: Alpha, Lu and so on."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

__all__ = ["named_class"]

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
    r"""Give what stands in brackets for a class.

    >>> named_class("XDigit", negated=False)
    '0-9a-fA-F'

    Raises
    ------
    ValueError
        There is no such class.
    """
    if name in _ASCII and not negated:
        return _ASCII[name]
    if name in _ASCII:
        return _ranges(re.compile(f"[{_ASCII[name]}]"), (), negated)
    categories = _CATEGORIES.get(name, (name.removeprefix("Is"),))
    if name not in _CATEGORIES and not re.fullmatch(r"(Is)?[LMNPSZC][a-z]?", name):
        raise ValueError(f"the class of characters {name} is not known here")
    return _ranges(None, categories, negated)


@lru_cache(maxsize=32)
def _ranges(
    pattern: re.Pattern[str] | None,
    categories: tuple[str, ...],
    negated: bool,  # noqa: FBT001
) -> str:
    """Write all characters of some categories, or that a pattern matches, as ranges."""
    text = []
    start: int | None = None
    for code in range(sys.maxunicode + 2):
        holds = code <= sys.maxunicode and _holds(code, pattern, categories) is not negated
        if holds and start is None:
            start = code
        elif not holds and start is not None:
            text.append(f"\\U{start:08x}-\\U{code - 1:08x}")
            start = None
    return "".join(text)


def _holds(code: int, pattern: re.Pattern[str] | None, categories: tuple[str, ...]) -> bool:
    if pattern is not None:
        return pattern.match(chr(code)) is not None
    return unicodedata.category(chr(code)).startswith(categories)
