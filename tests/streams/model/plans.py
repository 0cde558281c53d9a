"""Plans: what a random topology does, once for the product and once by looking at everything.

The second way knows nothing of batches, partitions, state or watermarks of operators.  It has the
whole input, in the order of arrival, and for each record the watermark of its own queue before it.
Every queue ends with a record of the key :data:`FLUSH` far in the future, so all that began before
has come to its end; its own results are looked at by nobody.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from headrace import StreamBuilder, hopping, serdes, session

__all__ = [
    "FLUSH",
    "Each",
    "Interval",
    "Last",
    "Merged",
    "Plan",
    "Record",
    "Sessions",
    "Source",
    "Steps",
    "Twice",
    "Windows",
    "times",
]

#: Key, and value, of the records that end the input.
FLUSH, FLUSH_VALUE = "flush", 1_000_000

LATENESS = 20


class Record(NamedTuple):
    """A record as the model sees it."""

    key: str
    value: Any
    time: int
    #: The watermark of its queue before it; None: it cannot be late.
    below: int | None = None

    def late(self, grace: int) -> bool:
        """Tell whether it comes too late for an operator."""
        return self.below is not None and self.time + grace < self.below


Input = dict[str, list[tuple[int, Record]]]
"""Records by topic, each with its place among all records."""


class Plan(Protocol):
    """One node of a plan."""

    def stream(self, made: dict[str, Any], builder: StreamBuilder) -> Any:
        """Add it to a topology; ``made`` keeps the sources, which many may share."""

    def expected(self, given: Input) -> list[tuple[int, Record]]:
        """Compute its records, each with the place of what caused it."""


def times(milliseconds: int) -> timedelta:
    """Give a time span."""
    return timedelta(milliseconds=milliseconds)


@dataclass(frozen=True, slots=True)
class Source:
    """Reads a topic."""

    topic: str

    def stream(self, made: dict[str, Any], builder: StreamBuilder) -> Any:
        if self.topic not in made:
            made[self.topic] = builder.source(
                self.topic,
                serdes.with_key(serdes.json),
                allowed_lateness=times(LATENESS),
                idle_timeout=timedelta(days=1),
            )
        return made[self.topic]

    def expected(self, given: Input) -> list[tuple[int, Record]]:
        return list(given.get(self.topic, []))


@dataclass(frozen=True, slots=True)
class Merged:
    """Two streams in one, in the order of arrival."""

    left: Plan
    right: Plan

    def stream(self, made: dict[str, Any], builder: StreamBuilder) -> Any:
        return self.left.stream(made, builder).merge(self.right.stream(made, builder))

    def expected(self, given: Input) -> list[tuple[int, Record]]:
        both = self.left.expected(given) + self.right.expected(given)
        return sorted(both, key=lambda pair: pair[0])


def doubled(value: Any) -> list[Any]:
    """Give a value and its successor; a flush stays one."""
    return [value] if value == FLUSH_VALUE else [value, value + 1]


def kept(value: Any) -> bool:
    """Keep what is not divisible by three."""
    return bool(value == FLUSH_VALUE or value % 3)


def added(value: Any) -> Any:
    """Add one."""
    return value if value == FLUSH_VALUE else value + 1


def rekeyed(value: Any) -> str:
    """Give another key."""
    return FLUSH if value == FLUSH_VALUE else f"r{value % 2}"


@dataclass(frozen=True, slots=True)
class Steps:
    """Operators without state, one after the other."""

    parent: Plan
    steps: tuple[str, ...]

    def stream(self, made: dict[str, Any], builder: StreamBuilder) -> Any:
        stream = self.parent.stream(made, builder)
        for step in self.steps:
            if step == "map":
                stream = stream.map_values(added)
            elif step == "filter":
                stream = stream.filter(kept)
            elif step == "flat_map":
                stream = stream.flat_map_values(doubled)
            else:
                stream = stream.key_by(rekeyed)
        return stream

    def expected(self, given: Input) -> list[tuple[int, Record]]:
        rows = self.parent.expected(given)
        for step in self.steps:
            if step == "map":
                rows = [(at, row._replace(value=added(row.value))) for at, row in rows]
            elif step == "filter":
                rows = [(at, row) for at, row in rows if kept(row.value)]
            elif step == "flat_map":
                rows = [
                    (at, row._replace(value=one)) for at, row in rows for one in doubled(row.value)
                ]
            else:
                rows = [(at, row._replace(key=rekeyed(row.value))) for at, row in rows]
        return rows


@dataclass(frozen=True, slots=True)
class Each:
    """A running aggregate with a result for every record."""

    parent: Plan
    kind: str

    def stream(self, made: dict[str, Any], builder: StreamBuilder) -> Any:
        keyed = self.parent.stream(made, builder).group_by_key()
        return getattr(keyed, self.kind)(emit="each").to_stream()

    def expected(self, given: Input) -> list[tuple[int, Record]]:
        so_far: dict[str, list[Any]] = defaultdict(list)
        found = []
        for at, row in self.parent.expected(given):
            so_far[row.key].append(row.value)
            found.append((at, row._replace(value=_KINDS[self.kind](so_far[row.key]))))
        return found


@dataclass(frozen=True, slots=True)
class Windows:
    """Tumbling and hopping windows."""

    parent: Plan
    kind: str
    size: int
    slide: int
    grace: int = 0

    def stream(self, made: dict[str, Any], builder: StreamBuilder) -> Any:
        keyed = self.parent.stream(made, builder).group_by_key()
        windows = hopping(times(self.size), times(self.slide))
        windowed = keyed.window(windows, grace=times(self.grace))
        return getattr(windowed, self.kind)().to_stream()

    def expected(self, given: Input) -> list[tuple[int, Record]]:
        rows = [row for _, row in self.parent.expected(given) if not row.late(self.grace)]
        windows: dict[tuple[str, int], list[Record]] = defaultdict(list)
        for row in rows:
            last = row.time - row.time % self.slide
            for start in range(last, row.time - self.size, -self.slide):
                windows[row.key, start].append(row)
        return [(0, _result(self.kind, inside)) for inside in windows.values()]


@dataclass(frozen=True, slots=True)
class Sessions:
    """Runs of records of a key with no gap longer than a bound."""

    parent: Plan
    kind: str
    gap: int

    def stream(self, made: dict[str, Any], builder: StreamBuilder) -> Any:
        keyed = self.parent.stream(made, builder).group_by_key()
        return getattr(keyed.window(session(times(self.gap))), self.kind)().to_stream()

    def expected(self, given: Input) -> list[tuple[int, Record]]:
        rows = [row for _, row in self.parent.expected(given) if not row.late(0)]
        sessions: list[list[Record]] = []
        for row in sorted(rows, key=lambda row: (row.key, row.time)):
            last = sessions[-1][-1] if sessions else None
            if last is None or last.key != row.key or row.time - last.time > self.gap:
                sessions.append([])
            sessions[-1].append(row)
        return [(0, _result(self.kind, inside)) for inside in sessions]


@dataclass(frozen=True, slots=True)
class Twice:
    """Two of the same records' windows, side by side: they must not share state."""

    first: Plan
    second: Plan

    def stream(self, made: dict[str, Any], builder: StreamBuilder) -> Any:
        return self.first.stream(made, builder).merge(self.second.stream(made, builder))

    def expected(self, given: Input) -> list[tuple[int, Record]]:
        return self.first.expected(given) + self.second.expected(given)


@dataclass(frozen=True, slots=True)
class Interval:
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
class Last:
    """The last values of both sides."""

    left: Plan
    right: Plan
    method: str

    def stream(self, made: dict[str, Any], builder: StreamBuilder) -> Any:
        left, right = self.left.stream(made, builder), self.right.stream(made, builder)
        return getattr(left, self.method)(right).apply(paired)

    def expected(self, given: Input) -> list[tuple[int, Record]]:
        arrivals = [(at, 0, row) for at, row in self.left.expected(given)]
        arrivals += [(at, 1, row) for at, row in self.right.expected(given)]
        arrivals.sort(key=lambda arrival: arrival[:2])
        alone = {"join": (False, False), "left_join": (True, False), "outer_join": (True, True)}
        last: tuple[dict[str, Record], dict[str, Record]] = ({}, {})
        found = []
        for at, side, row in arrivals:
            last[side][row.key] = row
            if alone[self.method][side] or row.key in last[1 - side]:
                pair = [records.get(row.key) for records in last]
                values = [None if one is None else one.value for one in pair]
                time = max(one.time for one in pair if one is not None)
                found.append((at, row._replace(value=values, time=time)))
        return found


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


_KINDS: dict[str, Callable[[list[Any]], Any]] = {"count": len, "sum": sum, "max": max, "min": min}


def _result(kind: str, inside: Sequence[Record]) -> Record:
    value = _KINDS[kind]([row.value for row in inside])
    return Record(inside[0].key, value, max(row.time for row in inside))
