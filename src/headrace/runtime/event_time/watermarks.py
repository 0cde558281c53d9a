"""Event-time watermarks: made at the source per queue, brought together at every operator.

A queue's watermark is the highest event time so far less the source's ``allowed_lateness``; it
never falls.  It travels with a mark, so that a timer fires at the same place among the records
however the input is cut into batches.  An operator's watermark is the lowest over all queues that
feed it, on the topology's grid of times (design, section 5).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from headrace.runtime.chunk import NEVER

if TYPE_CHECKING:
    import numpy.typing as npt

    from headrace.protocol.transactions import QueueName
    from headrace.runtime.chunk import Int64s

__all__ = [
    "BEFORE_ALL",
    "OperatorWatermark",
    "QueueWatermark",
    "SourceWatermarks",
    "Watermark",
    "origin_name",
    "pack_watermarks",
    "source_of",
    "unpack_watermarks",
]

#: Mark of what happens before the first record of a batch.
BEFORE_ALL = -1


class Watermark(NamedTuple):
    """Event time has come to ``time``, seen by the record with this mark."""

    mark: int
    #: ms since 1970.
    time: int


class QueueWatermark(msgspec.Struct, frozen=True, array_like=True):
    """A watermark on its way from one source queue to the operators."""

    mark: int
    #: Source and queue, as :func:`origin_name` joins them.
    origin: str
    time: int


def origin_name(source: str, queue: QueueName) -> str:
    """Name one queue as one source reads it; two sources may read a queue by different clocks.

    >>> origin_name("source-lines", "lines@broker-a@0")
    'source-lines/lines@broker-a@0'
    """
    return f"{source}/{queue}"


def source_of(origin: str) -> str:
    """Name the source of an origin.

    >>> source_of("source-lines/lines@broker-a@0")
    'source-lines'
    """
    return origin.partition("/")[0]


@dataclass(slots=True)
class SourceWatermarks:
    """The watermarks of the queues that one source reads in one task.

    An operator that gives records other times makes a clock of its own by the same rules.
    """

    #: Name of the source.
    source: str
    #: How far a record may lag behind the highest time of its queue, ms.
    lateness: int
    #: Watermarks as of the last commit, by origin.
    before: Mapping[str, int]
    #: A watermark is passed on when it enters another step of this grid, ms.
    step: int = 1
    #: Origins that had been silent for too long when the batch began.
    idle: Collection[str] = ()
    #: The newest watermark of each origin that this task has moved.
    current: dict[str, int] = field(default_factory=dict)

    def observe(
        self,
        queues: Sequence[QueueName],
        numbers: npt.NDArray[np.intp],
        times: Int64s,
        marks: Int64s,
        newest: Int64s | None = None,
    ) -> tuple[list[QueueWatermark], Int64s]:
        """Move the watermarks by records, ``numbers`` naming the queue of each.

        Records with a time beyond their ``newest`` move none.  Gives what is to be passed on, and for each record the watermark of its queue before it.
        """
        found: list[QueueWatermark] = []
        before = np.empty(len(times), np.int64)
        if newest is not None:
            times = np.where(times > newest, NEVER, times)
        for number in np.unique(numbers).tolist():
            own = np.flatnonzero(numbers == number)
            origin = origin_name(self.source, queues[number])
            passed_on, before[own] = self._observe_queue(origin, times[own], marks[own])
            found += passed_on
        return found, before

    def take(self, told: Iterable[QueueWatermark]) -> list[QueueWatermark]:
        """Move the watermarks by what was told of them; give those that have risen."""
        risen: list[QueueWatermark] = []
        for watermark in told:
            origin = watermark.origin
            known = self.current.get(origin, self.before.get(origin))
            if known is None or watermark.time > known:
                self.current[origin] = watermark.time
                risen.append(watermark)
        return risen

    def _observe_queue(
        self, origin: str, times: Int64s, marks: Int64s
    ) -> tuple[list[QueueWatermark], Int64s]:
        known = self.current.get(origin, self.before.get(origin))
        start = NEVER if known is None else known
        running = np.maximum(np.maximum.accumulate(times) - self.lateness, start)
        before = np.concatenate(([start], running[:-1]))
        moved = running // self.step != before // self.step
        if known is not None and origin in self.idle and origin not in self.current:
            # The queue counts from here on, also where its time has not moved on.
            moved[0] = True
        if running[-1] == NEVER:
            return [], before
        self.current[origin] = int(running[-1])
        places = np.flatnonzero(moved).tolist()
        return [QueueWatermark(int(marks[i]), origin, int(running[i])) for i in places], before


class OperatorWatermark:
    """The lowest watermark over all queues that feed an operator.

    Parameters
    ----------
    delays
        Every source and queue that feeds it, and how much older than its watermark the records
        may be that come from there, ms.  A queue without a watermark holds all back.
    before
        Watermarks as of the last commit, by origin.
    idle
        Origins that have been silent for too long: they hold nothing back until they move.  Where
        all are, the highest of their watermarks counts.
    floor
        Where the operator stood; it never falls below that.
    step
        Grid of the times on which it rises, ms.
    """

    def __init__(
        self,
        delays: Mapping[str, int],
        before: Mapping[str, int],
        *,
        idle: Collection[str] = (),
        floor: int = NEVER,
        step: int = 1,
    ) -> None:
        self._delays = delays
        self._step = step
        self._idle = set(idle)
        self._by_origin: dict[str, int | None] = {
            name: None if name not in before else self._on_grid(name, before[name])
            for name in delays
        }
        #: ms since 1970; ``NEVER`` while some queue has shown no time yet.
        self.time = floor

    def begin(self) -> list[Watermark]:
        """Give the rise, if any, that comes before the first record of a batch."""
        return self._risen(BEFORE_ALL)

    def advance(self, watermarks: Iterable[QueueWatermark]) -> list[Watermark]:
        """Take what queues report, in the order of the marks; give each rise of the lowest."""
        risen: list[Watermark] = []
        for watermark in watermarks:
            if watermark.origin not in self._by_origin:
                continue
            self._by_origin[watermark.origin] = self._on_grid(watermark.origin, watermark.time)
            self._idle.discard(watermark.origin)
            risen += self._risen(watermark.mark)
        return risen

    def _on_grid(self, origin: str, time: int) -> int:
        return (time - self._delays[origin]) // self._step * self._step

    def _risen(self, mark: int) -> list[Watermark]:
        reached = self._reached()
        if reached is None or reached <= self.time:
            return []
        self.time = reached
        return [Watermark(mark, reached)]

    def _reached(self) -> int | None:
        """Tell how far event time has come; None while a queue that is waited for shows none.

        Where all are silent, it is as if the one that came furthest had been silent last.
        """
        times = [time for name, time in self._by_origin.items() if name not in self._idle]
        if not times:
            return max(
                (time for time in self._by_origin.values() if time is not None), default=None
            )
        known = [time for time in times if time is not None]
        return min(known) if len(known) == len(times) else None


def pack_watermarks(watermarks: list[QueueWatermark]) -> bytes:
    """Encode watermarks for the way to later stages."""
    return msgspec.json.encode(watermarks)


def unpack_watermarks(payloads: Iterable[bytes]) -> list[QueueWatermark]:
    """Decode watermarks of several tasks and bring them into the order of their marks."""
    found = [
        watermark
        for payload in payloads
        for watermark in msgspec.json.decode(payload, type=list[QueueWatermark])
    ]
    return sorted(found, key=lambda watermark: (watermark.mark, watermark.origin))
