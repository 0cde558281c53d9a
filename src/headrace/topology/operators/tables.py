"""Operators of tables: the latest value of each key, where None deletes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from headrace.topology.operators.core import Operator

if TYPE_CHECKING:
    from headrace.serdes import Serde
    from headrace.topology.windows import TimeWindows


# Operators that join two streams: their sides are matched by key, and each is kept once.
#
# A join of streams is two operators: one that keeps both sides and emits every match, and a
# :class:`Joined` for each kind and joiner that picks from these.  So an inner and a left join over
# the same two streams share what is kept.

JoinKind = Literal["inner", "left", "outer"]

#: Which sides a kind of join returns without a match: 1 is the left one, 2 the right one.
ALONE: dict[JoinKind, frozenset[int]] = {
    "inner": frozenset(),
    "left": frozenset({1}),
    "outer": frozenset({1, 2}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SidesJoin(Operator):
    """Keeps both sides of a join, by key."""

    label: ClassVar[str] = "join"
    stateful: ClassVar[bool] = True

    key_serde: Serde[Any]
    left_serde: Serde[Any]
    right_serde: Serde[Any]
    #: Sides whose records are also wanted without a match: 1 left, 2 right.
    alone: frozenset[int] = frozenset()

    def input_serde(self, port: int) -> Serde[Any]:
        """Return the serde of one side's records."""
        return self.right_serde if port else self.left_serde

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        return [f"left {self.left_serde!r}", f"right {self.right_serde!r}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestJoin(SidesJoin):
    """Joins the last values of the two sides of each key, whenever one of them comes."""

    update_ports: ClassVar[tuple[int, ...]] = (0, 1)

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        return ["last values", *SidesJoin.facts(self)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedJoin(SidesJoin):
    """Joins by time, so what it keeps is removed when its time is over."""

    timed: ClassVar[bool] = True
    refuses_updates: ClassVar[bool] = True

    #: How much longer late records are waited for, ms.
    grace: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalJoin(TimedJoin):
    """Joins a left record with right ones from ``before`` ms earlier to ``after`` ms later."""

    before: int
    after: int

    @property
    def left_reach(self) -> int:
        """How long a left record waits for right ones, ms."""
        return max(self.after, 0)

    @property
    def right_reach(self) -> int:
        """How long a right record waits for left ones, ms."""
        return max(self.before, 0)

    @property
    def delay(self) -> int:
        """How much older than its watermark its results may be, ms."""
        reaches = {1: self.left_reach, 2: self.right_reach}
        longest = max((reaches[side] for side in self.alone), default=0)
        step = self.time_step
        return -(-(longest + self.grace) // step) * step

    @property
    def time_step(self) -> int:
        """Grid of the times at which it acts, ms."""
        return grid_of(self.before + self.after)

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        return [
            f"within {self.before} ms before to {self.after} ms after",
            *_grace(self.grace),
            *SidesJoin.facts(self),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowJoin(TimedJoin):
    """Joins records that share a window, once for each."""

    windows: TimeWindows

    @property
    def delay(self) -> int:
        """How much older than its watermark its results may be, ms."""
        return self.grace + (self.windows.longest if self.alone else 0)

    @property
    def time_step(self) -> int:
        """Grid of the times at which it acts, ms."""
        return math.gcd(self.windows.step, self.grace)

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        return [str(self.windows), *_grace(self.grace), *SidesJoin.facts(self)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionJoin(TimedJoin):
    """Joins the records of a session, whose neighbours are at most ``gap`` ms apart."""

    gap: int

    @property
    def delay(self) -> int:
        """How much older than its watermark its results may be, ms."""
        step = self.time_step
        waits = self.grace + (self.gap if self.alone else 0)
        return -(-waits // step) * step

    @property
    def time_step(self) -> int:
        """Grid of the times at which it acts, ms."""
        return grid_of(self.gap)

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        return [
            f"sessions with gaps up to {self.gap} ms",
            *_grace(self.grace),
            *SidesJoin.facts(self),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined(Operator):
    """Picks the matches that a kind of join returns, and makes its results of them."""

    label: ClassVar[str] = "joined"

    kind: JoinKind
    function: Callable[..., Any]
    #: Whether the function takes (key, left, right).
    takes_key: bool = False

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        return [self.kind]


def grid_of(length: int) -> int:
    """Choose the grid of times for bounds that follow from records, ms.

    >>> grid_of(100), grid_of(2_500), grid_of(10_000), grid_of(3_600_000)
    (1, 20, 100, 1000)
    """
    if length <= 100:
        return 1
    most = min(length // 100, 1000)
    return max(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if step <= most)


def _grace(grace: int) -> list[str]:
    return [f"grace {grace} ms"] if grace else []


LookupKind = Literal["inner", "left"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepTable(Operator):
    """Keeps the last value of each key, and passes on what changes."""

    label: ClassVar[str] = "table"
    stateful: ClassVar[bool] = True
    update_ports: ClassVar[tuple[int, ...]] = (0,)

    key_serde: Serde[Any]
    #: Writes values on their way, None included.
    value_serde: Serde[Any]

    def input_serde(self, port: int) -> Serde[Any]:
        """Return the serde of the changes."""
        del port
        return self.value_serde

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        return [f"values {self.value_serde!r}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MapTable(Operator):
    """Replaces values by ``function(value)``; deletes stay deletes."""

    label: ClassVar[str] = "map_values"

    function: Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhereTable(Operator):
    """Deletes the keys for whose values ``function(value)`` is not true."""

    label: ClassVar[str] = "where"

    function: Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _TwoSided(Operator):
    label: ClassVar[str] = "join"
    stateful: ClassVar[bool] = True
    update_ports: ClassVar[tuple[int, ...]] = (0, 1)

    key_serde: Serde[Any]
    left_serde: Serde[Any]
    right_serde: Serde[Any]
    function: Callable[..., Any]
    #: Whether the function takes (key, left, right).
    takes_key: bool = False

    def input_serde(self, port: int) -> Serde[Any]:
        """Return the serde of one side's records."""
        return self.right_serde if port else self.left_serde


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup(_TwoSided):
    """Looks up each record of a stream in a table."""

    update_ports: ClassVar[tuple[int, ...]] = (0,)

    kind: LookupKind


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTableJoin(Lookup):
    """Looks up each record of a stream in a table with the same keys."""

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        return [f"{self.kind}, stream with table", f"table {self.right_serde!r}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalTableJoin(Lookup):
    """Looks up each record of a stream, by any key, in a table copied to every partition."""

    selector: Callable[..., Any]
    #: Whether the selector takes (key, value).
    selects_by_key: bool = False

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        return [f"{self.kind}, stream with global table", f"table {self.right_serde!r}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJoin(_TwoSided):
    """Joins two tables with the same keys into one."""

    kind: JoinKind

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        return [f"{self.kind}, tables", f"left {self.left_serde!r}", f"right {self.right_serde!r}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKeyRequests(Operator):
    """Sends each row of a table to the key that it refers to: (own key, row) pairs.

    When a row refers to another key than before, the old key is told too.
    """

    label: ClassVar[str] = "foreign_key"
    stateful: ClassVar[bool] = True
    update_ports: ClassVar[tuple[int, ...]] = (0,)
    changes_key: ClassVar[bool] = True

    key_serde: Serde[Any]
    #: Writes the rows, None included.
    value_serde: Serde[Any]
    selector: Callable[..., Any]

    @property
    def gathers(self) -> bool:
        """Whether all records of a key are in one partition after it; it emits other keys."""
        return False

    def input_serde(self, port: int) -> Serde[Any]:
        """Return the serde of the rows."""
        del port
        return self.value_serde


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKeyJoin(_TwoSided):
    """Joins rows with the row that they refer to; results have the key of the referring row."""

    changes_key: ClassVar[bool] = True

    kind: LookupKind
    #: Writes the referring rows, in requests and in the state.
    row_serde: Serde[Any]

    @property
    def gathers(self) -> bool:
        """Whether all records of a key are in one partition after it; it emits other keys."""
        return False

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        return [f"{self.kind}, by foreign key", f"table {self.right_serde!r}"]
