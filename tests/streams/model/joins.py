"""Joins of plans: by time, by the last values, and with tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from headrace import StreamBuilder, hopping, session
from tests.streams.model.plans import FLUSH_VALUE, Input, Plan, Record, Results, times

__all__ = ["Interval", "Last", "LookedUp", "Met", "Shared", "Tables"]

#: Which sides are given alone, by the kind of join.
_ALONE = {"join": (False, False), "left_join": (True, False), "outer_join": (True, True)}


@dataclass(frozen=True, slots=True)
class Interval(Results):
    """Pairs of records whose times are close, and what meets nothing."""

    left: Plan
    right: Plan
    method: str
    before: int
    after: int
    grace: int = 0

    def stream(self, made: dict[str, Any], builder: StreamBuilder) -> Any:
        left, right = self.left.stream(made, builder), self.right.stream(made, builder)
        join = getattr(left, self.method)(right).within(times(self.before), times(self.after))
        return join.grace(times(self.grace)).apply(paired)

    def expected(self, given: Input) -> list[tuple[int, Record]]:
        left, right = (
            [row for _, row in side.expected(given) if not row.late(self.grace)]
            for side in (self.left, self.right)
        )
        pairs = [
            (one, other)
            for one in left
            for other in right
            if one.key == other.key and -self.before <= other.time - one.time <= self.after
        ]
        return [(0, row) for row in _joined(self.method, left, right, pairs)]


@dataclass(frozen=True, slots=True)
class Last(Results):
    """The last values of both sides."""

    left: Plan
    right: Plan
    method: str

    def stream(self, made: dict[str, Any], builder: StreamBuilder) -> Any:
        left, right = self.left.stream(made, builder), self.right.stream(made, builder)
        return getattr(left, self.method)(right).apply(paired)

    def expected(self, given: Input) -> list[tuple[int, Record]]:
        arrivals = _arrivals(self.left, self.right, given)
        last: tuple[dict[str, Record], dict[str, Record]] = ({}, {})
        found = []
        for at, side, row in arrivals:
            last[side][row.key] = row
            if _ALONE[self.method][side] or row.key in last[1 - side]:
                pair = [records.get(row.key) for records in last]
                values = [None if one is None else one.value for one in pair]
                time = max(one.time for one in pair if one is not None)
                found.append((at, row._replace(value=values, time=time)))
        return found


@dataclass(frozen=True, slots=True)
class Shared(Results):
    """Every pair that shares a window, and what is alone in one."""

    left: Plan
    right: Plan
    method: str
    size: int
    slide: int
    grace: int = 0

    def stream(self, made: dict[str, Any], builder: StreamBuilder) -> Any:
        left, right = self.left.stream(made, builder), self.right.stream(made, builder)
        join = getattr(left, self.method)(right).window(
            hopping(times(self.size), times(self.slide))
        )
        return join.grace(times(self.grace)).apply(paired)

    def expected(self, given: Input) -> list[tuple[int, Record]]:
        windows: dict[tuple[str, int], tuple[list[Record], list[Record]]]
        windows = defaultdict(lambda: ([], []))
        for side, plan in enumerate((self.left, self.right)):
            for _, row in plan.expected(given):
                last = row.time - row.time % self.slide
                for start in range(last, row.time - self.size, -self.slide):
                    if not row.late(self.grace):
                        windows[row.key, start][side].append(row)
        return [(0, row) for sides in windows.values() for row in _together(self.method, sides)]


@dataclass(frozen=True, slots=True)
class Met(Results):
    """Every pair of a session of both sides, and what is alone in one."""

    left: Plan
    right: Plan
    method: str
    gap: int

    def stream(self, made: dict[str, Any], builder: StreamBuilder) -> Any:
        left, right = self.left.stream(made, builder), self.right.stream(made, builder)
        return getattr(left, self.method)(right).window(session(times(self.gap))).apply(paired)

    def expected(self, given: Input) -> list[tuple[int, Record]]:
        rows = [
            (row.key, row.time, side, number, row)
            for side, plan in enumerate((self.left, self.right))
            for number, (_, row) in enumerate(plan.expected(given))
            if not row.late(0)
        ]
        found: list[tuple[int, Record]] = []
        sides: tuple[list[Record], list[Record]] = ([], [])
        before: tuple[str, int] | None = None
        for key, time, side, _, row in sorted(rows, key=lambda one: one[:4]):
            if before is not None and (key != before[0] or time - before[1] > self.gap):
                found += [(0, one) for one in _together(self.method, sides, before[1])]
                sides = ([], [])
            sides[side].append(row)
            before = key, time
        if before is not None:
            found += [(0, one) for one in _together(self.method, sides, before[1])]
        return found


def holed(value: Any) -> Any:
    """Leave out some values: in a table, that deletes a row."""
    return value if value % 5 or value == FLUSH_VALUE else None


@dataclass(frozen=True, slots=True)
class Tables(Results):
    """Rows of two tables."""

    left: Plan
    right: Plan
    method: str

    def stream(self, made: dict[str, Any], builder: StreamBuilder) -> Any:
        left, right = (
            side.stream(made, builder).map_values(holed).to_table()
            for side in (self.left, self.right)
        )
        return getattr(left, self.method)(right, paired).to_stream()

    def expected(self, given: Input) -> list[tuple[int, Record]]:
        rows: tuple[dict[str, Record], dict[str, Record]] = ({}, {})
        found = []
        for at, side, row in _arrivals(self.left, self.right, given):
            value = holed(row.value)
            was = self._row(rows, row.key)
            if value is None:
                if rows[side].pop(row.key, None) is None:
                    continue
            else:
                rows[side][row.key] = row
            now = self._row(rows, row.key)
            if now is not None:
                present = [table[row.key].time for table in rows if row.key in table]
                found.append((at, row._replace(value=now, time=max(row.time, *present))))
            elif was is not None:
                found.append((at, row._replace(value=None)))
        return found

    def _row(self, rows: Sequence[dict[str, Record]], key: str) -> list[Any] | None:
        there = [key in table for table in rows]
        alone = _ALONE[self.method]
        if not (all(there) or (there[0] and alone[0]) or (there[1] and alone[1])):
            return None
        return [table[key].value if key in table else None for table in rows]


@dataclass(frozen=True, slots=True)
class LookedUp(Results):
    """Records with the rows that a table has at their moment."""

    left: Plan
    right: Plan
    method: str

    def stream(self, made: dict[str, Any], builder: StreamBuilder) -> Any:
        left = self.left.stream(made, builder)
        changes = self.right.stream(made, builder).map_values(holed)
        return getattr(left, self.method)(changes.to_table()).apply(paired)

    def expected(self, given: Input) -> list[tuple[int, Record]]:
        rows: dict[str, Any] = {}
        found = []
        for at, side, row in _arrivals(self.left, self.right, given):
            if side:
                rows[row.key] = holed(row.value)
            elif rows.get(row.key) is not None or self.method == "left_join":
                found.append((at, row._replace(value=[row.value, rows.get(row.key)])))
        return found


def _arrivals(left: Plan, right: Plan, given: Input) -> list[tuple[int, int, Record]]:
    """Put records of both sides in the order of arrival; of one cause the left one is first."""
    arrivals = [(at, 0, row) for at, row in left.expected(given)]
    arrivals += [(at, 1, row) for at, row in right.expected(given)]
    return sorted(arrivals, key=lambda arrival: arrival[:2])


def _together(
    method: str, sides: tuple[list[Record], list[Record]], last: int | None = None
) -> Iterator[Record]:
    """Give all pairs, or what is alone, with its own time or that of the last record."""
    if all(sides):
        for one, other in product(*sides):
            yield Record(one.key, [one.value, other.value], max(one.time, other.time))
        return
    for side, rows in enumerate(sides):
        for row in rows if _ALONE[method][side] else ():
            pair = [None, row.value] if side else [row.value, None]
            yield Record(row.key, pair, row.time if last is None else last)


def paired(left: Any, right: Any) -> list[Any]:
    """Join two values."""
    return [left, right]


def _joined(
    method: str,
    left: Sequence[Record],
    right: Sequence[Record],
    pairs: Sequence[tuple[Record, Record]],
) -> Iterable[Record]:
    for one, other in pairs:
        yield Record(one.key, [one.value, other.value], max(one.time, other.time))
    if method in ("left_join", "outer_join"):
        met = {id(one) for one, _ in pairs}
        yield from (Record(r.key, [r.value, None], r.time) for r in left if id(r) not in met)
    if method == "outer_join":
        met = {id(other) for _, other in pairs}
        yield from (Record(r.key, [None, r.value], r.time) for r in right if id(r) not in met)
