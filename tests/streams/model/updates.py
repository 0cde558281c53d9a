"""Plans whose results replace earlier ones: of each key, only the last one is looked at."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from headrace import StreamBuilder, count, max_, sum_
from headrace.columns import col
from tests.streams.model.plans import FLUSH, KINDS, Input, Plan, Record, folded

__all__ = ["Columns", "Latest", "Retracted"]


class Updates:
    """What gives results that replace earlier ones."""

    __slots__ = ()
    updates = True


def wanted(key: Any, value: Any) -> bool:
    """Leave out the ends of queues: only event time needs them."""
    del value
    return bool(key != FLUSH)


def third(value: Any) -> str:
    """Give a key that changes with the value."""
    return f"g{value % 3}"


@dataclass(frozen=True, slots=True)
class Latest(Updates):
    """A running aggregate."""

    parent: Plan
    kind: str

    def stream(self, made: dict[str, Any], builder: StreamBuilder) -> Any:
        kept = self.parent.stream(made, builder).where(wanted)
        return folded(kept.group_by_key(), self.kind).to_stream()

    def expected(self, given: Input) -> list[tuple[int, Record]]:
        return [(0, row) for row in _latest(self.parent, self.kind, given)]


@dataclass(frozen=True, slots=True)
class Retracted(Updates):
    """An aggregate of the results of another one, each of which takes back the one before it."""

    parent: Plan
    first: str
    second: str

    def stream(self, made: dict[str, Any], builder: StreamBuilder) -> Any:
        kept = self.parent.stream(made, builder).where(wanted)
        rows = folded(kept.group_by_key(), self.first).to_stream()
        return folded(rows.key_by(third), self.second).to_stream()

    def expected(self, given: Input) -> list[tuple[int, Record]]:
        groups: dict[str, list[Any]] = defaultdict(list)
        for row in _latest(self.parent, self.first, given):
            groups[third(row.value)].append(row.value)
        return [(0, Record(key, KINDS[self.second](values), 0)) for key, values in groups.items()]


@dataclass(slots=True)
class Reading:
    """A value as columns."""

    group: str
    value: int


def reading(key: str, value: int) -> Reading:
    """Give a record as columns."""
    return Reading(key, value)


@dataclass(frozen=True, slots=True)
class Columns(Updates):
    """Groups over columns; their results are told by the column ``n``."""

    parent: Plan

    def stream(self, made: dict[str, Any], builder: StreamBuilder) -> Any:
        kept = self.parent.stream(made, builder).where(wanted).map_values(reading)
        grouped = kept.where(col("value") > 1).group_by("group")
        table = grouped.agg(n=count(), total=sum_("value"), most=max_("value"))
        return table.to_stream().map_values(measures)

    def expected(self, given: Input) -> list[tuple[int, Record]]:
        groups: dict[str, list[int]] = defaultdict(list)
        for _, row in self.parent.expected(given):
            if row.key != FLUSH and row.value > 1:
                groups[row.key].append(row.value)
        return [
            (0, Record(key, [len(values), sum(values), max(values)], 0))
            for key, values in groups.items()
        ]


def measures(row: Any) -> list[int]:
    """Give measures without their names."""
    return [row["n"], row["total"], row["most"]]


def _latest(parent: Plan, kind: str, given: Input) -> list[Record]:
    so_far: dict[str, list[Any]] = defaultdict(list)
    for _, row in parent.expected(given):
        if row.key != FLUSH:
            so_far[row.key].append(row.value)
    return [Record(key, KINDS[kind](values), 0) for key, values in so_far.items()]
