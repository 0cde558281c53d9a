"""Plans: what a random topology does, once for the product and once by looking at everything.

The second way knows nothing of batches, partitions, state or watermarks of operators.  It has the
whole input, in the order of arrival, and for each record the watermark of its own queue before it.
Every queue ends with a record of the key :data:`FLUSH` far in the future, so all that began before
has come to its end; its own results are looked at by nobody.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from typing import Any, NamedTuple, Protocol

from headrace import StreamBuilder, hopping, serdes, session, sliding

__all__ = [
    "FLUSH",
    "KINDS",
    "Branched",
    "Each",
    "Merged",
    "Plan",
    "Record",
    "Sessions",
    "Slides",
    "Source",
    "Steps",
    "Twice",
    "Windows",
    "folded",
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

    @property
    def updates(self) -> bool:
        """Whether results replace earlier ones, so that only the last value of a key is promised."""


class Results:
    """What gives results that stay as they are."""

    __slots__ = ()
    updates = False


def times(milliseconds: int) -> timedelta:
    """Give a time span."""
    return timedelta(milliseconds=milliseconds)


@dataclass(frozen=True, slots=True)
class Source(Results):
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
class Merged(Results):
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


def small(value: Any) -> bool:
    """Choose small values."""
    return bool(value < 4)


def odd(value: Any) -> bool:
    """Choose odd values."""
    return bool(value % 2)


def rekeyed(value: Any) -> str:
    """Give another key."""
    return FLUSH if value == FLUSH_VALUE else f"r{value % 2}"


@dataclass(frozen=True, slots=True)
class Steps(Results):
    """Operators without state, one after the other."""

    parent: Plan
    steps: tuple[str, ...]

    def stream(self, made: dict[str, Any], builder: StreamBuilder) -> Any:
        stream = self.parent.stream(made, builder)
        for step in self.steps:
            if step == "map":
                stream = stream.map_values(added)
            elif step == "where":
                stream = stream.where(kept)
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
            elif step == "where":
                rows = [(at, row) for at, row in rows if kept(row.value)]
            elif step == "flat_map":
                rows = [
                    (at, row._replace(value=one)) for at, row in rows for one in doubled(row.value)
                ]
            else:
                rows = [(at, row._replace(key=rekeyed(row.value))) for at, row in rows]
        return rows


@dataclass(frozen=True, slots=True)
class Branched(Results):
    """Parts by value that go different ways and meet again."""

    parent: Plan

    def stream(self, made: dict[str, Any], builder: StreamBuilder) -> Any:
        parts = self.parent.stream(made, builder).branch(small=small, odd=odd)
        return parts.small.merge(parts.odd.map_values(added), parts.rest)

    def expected(self, given: Input) -> list[tuple[int, Record]]:
        parts: list[list[tuple[int, Record]]] = [[], [], []]
        for at, row in self.parent.expected(given):
            if small(row.value):
                parts[0].append((at, row))
            elif odd(row.value):
                parts[1].append((at, row._replace(value=added(row.value))))
            else:
                parts[2].append((at, row))
        # Records of one cause come in the order of the streams.
        return sorted(chain(*parts), key=lambda pair: pair[0])


@dataclass(frozen=True, slots=True)
class Each(Results):
    """A running aggregate with a result for every record."""

    parent: Plan
    kind: str

    def stream(self, made: dict[str, Any], builder: StreamBuilder) -> Any:
        keyed = self.parent.stream(made, builder).group_by_key()
        return folded(keyed, self.kind, emit="each").to_stream()

    def expected(self, given: Input) -> list[tuple[int, Record]]:
        so_far: dict[str, list[Any]] = defaultdict(list)
        found = []
        for at, row in self.parent.expected(given):
            so_far[row.key].append(row.value)
            found.append((at, row._replace(value=KINDS[self.kind](so_far[row.key]))))
        return found


@dataclass(frozen=True, slots=True)
class Windows(Results):
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
        return folded(windowed, self.kind).to_stream()

    def expected(self, given: Input) -> list[tuple[int, Record]]:
        rows = [row for _, row in self.parent.expected(given) if not row.late(self.grace)]
        windows: dict[tuple[str, int], list[Record]] = defaultdict(list)
        for row in rows:
            last = row.time - row.time % self.slide
            for start in range(last, row.time - self.size, -self.slide):
                windows[row.key, start].append(row)
        return [(0, _result(self.kind, inside)) for inside in windows.values()]


@dataclass(frozen=True, slots=True)
class Sessions(Results):
    """Runs of records of a key with no gap longer than a bound."""

    parent: Plan
    kind: str
    gap: int

    def stream(self, made: dict[str, Any], builder: StreamBuilder) -> Any:
        keyed = self.parent.stream(made, builder).group_by_key()
        return folded(keyed.window(session(times(self.gap))), self.kind).to_stream()

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
class Slides(Results):
    """Windows that end at each time at which a key has a record."""

    parent: Plan
    kind: str
    size: int
    grace: int = 0

    def stream(self, made: dict[str, Any], builder: StreamBuilder) -> Any:
        keyed = self.parent.stream(made, builder).group_by_key()
        windowed = keyed.window(sliding(times(self.size)), grace=times(self.grace))
        return folded(windowed, self.kind).to_stream()

    def expected(self, given: Input) -> list[tuple[int, Record]]:
        rows = [row for _, row in self.parent.expected(given) if not row.late(self.grace)]
        found = []
        for key, end in {(row.key, row.time) for row in rows}:
            inside = [r for r in rows if r.key == key and end - self.size <= r.time <= end]
            found.append((0, _result(self.kind, inside)))
        return found


@dataclass(frozen=True, slots=True)
class Twice(Results):
    """Two of the same records' windows, side by side: they must not share state."""

    first: Plan
    second: Plan

    def stream(self, made: dict[str, Any], builder: StreamBuilder) -> Any:
        return self.first.stream(made, builder).merge(self.second.stream(made, builder))

    def expected(self, given: Input) -> list[tuple[int, Record]]:
        return self.first.expected(given) + self.second.expected(given)


def folded(keyed: Any, kind: str, **options: Any) -> Any:
    """Aggregate what has keys."""
    return keyed.top(2, **options) if kind == "top" else getattr(keyed, kind)(**options)


def _distinct(values: list[Any]) -> int:
    return len(set(values))


def _mean(values: list[Any]) -> float:
    return float(sum(values) / len(values))


def _top(values: list[Any]) -> list[Any]:
    return sorted(values, reverse=True)[:2]


KINDS: dict[str, Callable[[list[Any]], Any]] = {
    "count": len,
    "sum": sum,
    "max": max,
    "min": min,
    "count_distinct": _distinct,
    "avg": _mean,
    "top": _top,
    "collect": list,
}


def _result(kind: str, inside: Sequence[Record]) -> Record:
    value = KINDS[kind]([row.value for row in inside])
    return Record(inside[0].key, value, max(row.time for row in inside))
