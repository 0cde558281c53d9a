"""What cases say of time, in the product's words: windows, and bounds of joins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import headrace

__all__ = ["Bound", "NotYetError", "milliseconds", "window"]


class NotYetError(AssertionError):
    """A case needs what the product does not have."""


def milliseconds(count: int) -> timedelta:
    """Give a time span of the file's unit."""
    return timedelta(milliseconds=count)


def window(kind: str, params: Mapping[str, Any]) -> Any:
    """Make the window that a case names, ``sliding`` being RocketMQ's word for hopping."""
    kinds = {"sliding": "hopping", "slidingByRecord": "sliding", "": "tumbling", "count": "count"}
    name = kinds.get(kind, kind)
    if name == "count":
        return _windows("count_window")(params["size"])
    if name == "session":
        return _windows(name)(milliseconds(params["gap"]))
    if name == "hopping":
        slide = milliseconds(params["slide"])
        return _windows(name)(milliseconds(params["size"]), slide, **_offset(params))
    assert name in ("tumbling", "sliding"), f"does not know the window {kind!r}"
    return _windows(name)(milliseconds(params["size"]), **_offset(params))


def _offset(params: Mapping[str, Any]) -> dict[str, timedelta]:
    return {"offset": milliseconds(params["offset"])} if "offset" in params else {}


def _windows(name: str) -> Callable[..., Any]:
    if not hasattr(headrace, name):
        raise NotYetError(f"not yet: headrace.{name}")
    return getattr(headrace, name)  # type: ignore[no-any-return]  # looked up by name


@dataclass(frozen=True, slots=True)
class Bound:
    """What bounds a join in time: nothing, a window, or an interval."""

    window: Any = None
    before: int | None = None
    after: int = 0
    grace: int = 0

    def apply(self, join: Any) -> Any:
        """Give the join with its bound."""
        if self.window is not None:
            if not hasattr(join, "window"):
                raise NotYetError(f"not yet: {type(join).__name__}.window")
            join = join.window(self.window)
        if self.before is not None:
            join = join.within(milliseconds(self.before), milliseconds(self.after))
        return join.grace(milliseconds(self.grace)) if self.grace else join
