"""What cases say of time, in the product's words: windows, and bounds of joins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import headrace

__all__ = ["NotYetError", "Span", "milliseconds", "window"]

_KINDS = {
    "sliding": "hopping",
    "slidingByRecord": "sliding",
    "sliding_by_record": "sliding",
    "": "tumbling",
}
_ALSO = {"slide": ("slide", "advance", "hop"), "gap": ("gap", "inactivity_gap", "inactivityGap")}
_WINDOW = re.compile(r"^\s*(\w*)(?:Window)?[\s,:(]*(.*)$", re.DOTALL)
_NUMBERS = re.compile(r"\d+")


class NotYetError(AssertionError):
    """A case needs what the product does not have."""


def milliseconds(count: int) -> timedelta:
    """Give a time span of the file's unit."""
    return timedelta(milliseconds=count)


@dataclass(frozen=True, slots=True)
class Span:
    """A window that a case names."""

    windows: Any
    #: Gap of a session, ms.
    gap: int | None = None


def window(text: str, params: Mapping[str, Any], number: int = 1) -> Span:
    """Make the window that a case names, ``sliding`` being RocketMQ's word for hopping.

    Lengths stand behind the name or among the parameters; those of a second window there are
    ``size2`` and the like, or the second of a list.

    >>> from headrace.topology.windows import TimeWindows
    >>> window("tumbling", {"size": 5}).windows == TimeWindows(5, 5)
    True
    >>> window("hopping(10, 5)", {}).windows == TimeWindows(10, 5)
    True
    >>> window("session", {"gap": 5, "gap2": 7}, 2).gap
    7
    """
    found = _WINDOW.match(text)
    assert found, f"does not know the window {text!r}"
    name = _KINDS.get(found[1], found[1])
    lengths = [int(one) for one in _NUMBERS.findall(found[2])]
    given = dict(zip(("gap",) if name == "session" else ("size", "slide"), lengths, strict=False))

    def length(what: str) -> int:
        return given[what] if what in given else _numbered(params, what, number)

    if name == "count":
        return Span(headrace.count_window(length("size")))
    if name == "session":
        return Span(headrace.session(milliseconds(length("gap"))), length("gap"))
    if name == "hopping":
        slide = milliseconds(length("slide"))
        return Span(headrace.hopping(milliseconds(length("size")), slide, **_shift(params)))
    if name == "tumbling":
        return Span(headrace.tumbling(milliseconds(length("size")), **_shift(params)))
    assert name == "sliding", f"does not know the window {text!r}"
    return Span(headrace.sliding(milliseconds(length("size"))))


def _numbered(params: Mapping[str, Any], what: str, number: int) -> int:
    """Find a length; ``slide`` is also called ``advance``, ``gap`` the inactivity."""
    for name in _ALSO.get(what, (what,)):
        for key in (f"{name}{number}", f"{name}_{number}", name, f"{name}s"):
            if key in params:
                found = params[key]
                return int(found[number - 1] if isinstance(found, list) else found)
    raise AssertionError(f"no {what} of window {number} is given")


def _shift(params: Mapping[str, Any]) -> dict[str, Any]:
    zone = next(
        (params[name] for name in ("zone", "time_zone", "timezone") if name in params), None
    )
    shift = {"offset": milliseconds(params["offset"])} if "offset" in params else {}
    return shift | ({} if zone is None else {"time_zone": zone})
