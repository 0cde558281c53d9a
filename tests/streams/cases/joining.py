"""Joins of cases: what is said of them, and how they are made."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace import GlobalTable, Table
from tests.streams.cases.expressions import Expression, expression
from tests.streams.cases.functions import function
from tests.streams.cases.times import Span, milliseconds, window

__all__ = ["Joining"]

_AROUND = re.compile(r"within\s*(?:\+-|\+/-|±)?\s*(\d+)")
_BETWEEN = re.compile(r"within\s*[\[(]?\s*-?(\d+)\s*(?:,|\.\.|to)\s*\+?(\d+)\s*[\])]?")
_NAMES = re.compile(r"^\s*\(([^()]*)\)\s*->")
_ON = re.compile(r"on \w+(\.\w+(?:\.\w+)*) ?={1,3} ?\w+(\.\w+(?:\.\w+)*)")
_REFERS = re.compile(r"(?:by |on )?foreign[ -]key (.+)")
_KINDS = re.compile(r"(stream|table)-(global ?table|table|stream)(?: join)?", re.IGNORECASE)
_NOTHING = ("", "on key", "no window", "unwindowed", "without window", "in one job", "one job")


@dataclass(slots=True)
class Joining:
    """A join that is not yet complete."""

    method: str = ""
    right: Any = None
    windows: Span | None = None
    #: How much earlier and later the right record may be, ms.
    between: tuple[int, int] | None = None
    #: ``left_key`` and ``right_key``, or ``foreign_key``.
    keys: dict[str, Callable[..., Any]] = field(default_factory=dict)
    #: What the sides are, where that is said: ``table-table``.
    kind: str = ""
    bounded: bool = True

    def hear(self, text: str) -> None:
        """Take what is said of it, in parts between commas."""
        if found := _BETWEEN.search(text):
            self.between = int(found[1]), int(found[2])
            text = text.replace(found[0], "")
        for part in (part.strip() for part in text.split(",")):
            self._hear(part)

    def with_right(self, method: str, right: Any) -> Joining:
        """Begin a join of which this was said."""
        return replace(self, method=method, right=right, keys=dict(self.keys))

    @property
    def left_is_table(self) -> bool:
        """Whether the left side is said to be a table."""
        return self.kind.startswith("table")

    @property
    def tables(self) -> bool:
        """Whether the right side is a table."""
        return "table" in self.kind or isinstance(self.right, Table | GlobalTable)

    def made(self, left: Any, params: Mapping[str, Any], joiner: str | None) -> Any:
        """Make the join."""
        apply = _joiner(joiner or params.get("joiner", "[l, r]"))
        if self.tables:
            return self._with_table(left, apply)
        return self._bound(getattr(left, self.method)(self.right, **self.keys), params).apply(apply)

    def _hear(self, part: str) -> None:
        if found := _AROUND.fullmatch(part):
            self.between = int(found[1]), int(found[1])
        elif found := _KINDS.fullmatch(part):
            self.kind = found[0].lower().replace(" ", "")
        elif found := _REFERS.fullmatch(part):
            self.keys["foreign_key"], self.kind = function(found[1]), "table-table"
        elif found := _ON.fullmatch(part):
            self.keys |= {
                "left_key": function(f"v{found[1]}"),
                "right_key": function(f"v{found[2]}"),
            }
        elif part.startswith("window "):
            self.windows = window(part.removeprefix("window "), {})
        else:
            assert part in _NOTHING, f"does not know {part!r}"
            self.bounded = self.bounded and part not in ("no window", "unwindowed")

    def _bound(self, join: Any, params: Mapping[str, Any]) -> Any:
        between = self.between
        if self.bounded and self.windows is None and {"before", "after"} & set(params):
            between = between or (0, 0)
            between = params.get("before", between[0]), params.get("after", between[1])
        if self.windows is not None:
            join = join.window(self.windows.windows)
        elif between is not None:
            join = join.within(*map(milliseconds, between))
        grace = params.get("grace", 0)
        return join.grace(milliseconds(grace)) if grace else join

    def _with_table(self, left: Any, joiner: Any) -> Any:
        right, to_table = self.right, isinstance(left, Table) or self.left_is_table
        if to_table and not isinstance(left, Table):
            left = left.to_table()
        if not isinstance(right, Table | GlobalTable):
            right = right.to_table()
        return getattr(left, self.method)(right, joiner, **self.keys)


def _joiner(given: str) -> Callable[..., Any]:
    found = _NAMES.match(given)
    names = [name.strip() for name in found[1].split(",")] if found else ["l", "r"]
    made = expression(given, names)
    return JoinedWithKey(made) if len(names) == 3 else Joined(made)


@dataclass(frozen=True, slots=True)
class Joined:
    """A joiner of two values."""

    function: Expression

    def __call__(self, left: Any, right: Any) -> Any:
        """Give the value of a pair."""
        return self.function(left, right)


@dataclass(frozen=True, slots=True)
class JoinedWithKey:
    """A joiner of a key and two values."""

    function: Expression

    def __call__(self, key: Any, left: Any, right: Any) -> Any:
        """Give the value of a pair."""
        return self.function(key, left, right)
