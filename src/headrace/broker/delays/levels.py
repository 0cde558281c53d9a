"""Delay levels: numbers from 1 on that stand for spans of time."""

from __future__ import annotations

import re

from headrace.errors import SettingsError

__all__ = ["parse_levels"]

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"(\d+)(ms|s|m|h|d)")


def parse_levels(text: str) -> tuple[int, ...]:
    """Read the spans of levels, in ms, from level 1 on.

    Raises
    ------
    SettingsError
        When the text has no level, or a word in it is none.

    Examples
    --------
    >>> parse_levels("1s 5s 1m")
    (1000, 5000, 60000)
    """
    spans: list[int] = []
    for word in text.split():
        match = _LEVEL.fullmatch(word)
        if match is None:
            message = f"delay level {len(spans) + 1} is {word!r}, which is no span of time"
            raise SettingsError(message, hint="Write a number and a unit: ms, s, m, h or d.")
        spans.append(int(match[1]) * _UNITS[match[2]])
    if not spans:
        raise SettingsError("there is no delay level", hint='Give at least one, such as "1s".')
    return tuple(spans)
