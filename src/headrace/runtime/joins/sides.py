"""The two inputs of a join, in one order; and what a join gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.keys import encode_keys
from headrace.runtime.chunk import Chunk, Int64s
from headrace.runtime.user_code.writing import writing

if TYPE_CHECKING:
    from headrace.runtime.event_time.watermarks import Watermark
    from headrace.topology.operators.core import Operator

__all__ = ["LEFT", "NO_KEY", "PAIR", "RIGHT", "Arrivals", "Meetings", "merged_sides"]

#: What a meeting holds: both sides, or one that nothing met.
PAIR, LEFT, RIGHT = 0, 1, 2

#: Canonical bytes of "no key": such a record meets nothing.
(NO_KEY,) = encode_keys([None])


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Records of both sides in the order of their marks, the left one first where these agree."""

    chunk: Chunk
    #: 0 for a record of the left side, 1 for one of the right.
    ports: list[int]
    #: Canonical bytes of the keys.
    keys: list[bytes]
    #: The keys themselves.
    names: list[Any]
    times: list[int]
    marks: list[int]
    #: The values' bytes, None where they did not come over a shuffle.
    raws: Sequence[bytes | None]

    @property
    def values(self) -> list[Any]:
        """The values."""
        return self.chunk.values

    def __len__(self) -> int:
        return len(self.ports)

    def runs(self, watermarks: Sequence[Watermark]) -> Iterator[tuple[int, int, Watermark | None]]:
        """Give runs of records, each up to a watermark's mark, with the watermark."""
        ends = np.searchsorted(self.chunk.marks, [w.mark for w in watermarks], side="right")
        at = 0
        for watermark, end in zip(watermarks, ends.tolist(), strict=True):
            yield at, max(at, end), watermark
            at = max(at, end)
        yield at, len(self), None


def merged_sides(inputs: Mapping[int, Chunk], operator: Operator) -> Arrivals:
    """Bring what came from the parents into one order."""
    parts = [(port, inputs[port]) for port in sorted(inputs) if len(inputs[port])]
    chunk = Chunk.merge([part for _, part in parts])
    ports = np.concatenate([np.full(len(c), p) for p, c in parts] or [np.empty(0, np.int64)])
    marks = np.concatenate([c.marks for _, c in parts] or [np.empty(0, np.int64)])
    # Chunk.merge sorts in the same way, and leaves alone what is in order.
    ports = ports[np.argsort(marks, kind="stable")]
    names = chunk.key_list()
    with writing(operator, "a key"):
        keys = encode_keys(names)
    times, marks = chunk.times.tolist(), chunk.marks.tolist()
    raws = [None] * len(chunk) if chunk.raws is None else chunk.raws.to_pylist()
    return Arrivals(chunk, ports.tolist(), keys, names, times, marks, raws)


_Meeting = tuple[Any, tuple[int, Any, Any], int, int, dict[str, str] | None]


@dataclass(slots=True)
class Meetings:
    """What a join gives, record by record: (what it holds, left value, right value)."""

    rows: list[_Meeting] = field(default_factory=list)

    def add(
        self,
        key: Any,
        value: tuple[int, Any, Any],
        time: int,
        mark: int,
        window: dict[str, str] | None = None,
    ) -> None:
        """Add one, with what says its window where the join has windows."""
        self.rows.append((key, value, time, mark, window))

    def chunk(self, late_below: Int64s | None = None) -> Chunk:
        """Give them all."""
        windows = [row[4] for row in self.rows]
        return Chunk(
            [row[0] for row in self.rows],
            [row[1] for row in self.rows],
            np.array([row[2] for row in self.rows], np.int64),
            np.array([row[3] for row in self.rows], np.int64),
            windows if any(windows) else None,
            late_below=late_below,
        )
