"""Event-time watermarks: made at the source per queue, brought together at every operator.

A queue's watermark is the highest event time so far less the source's ``allowed_lateness``; it
never falls.  An operator's watermark is the lowest over all queues that feed it, on the topology's
grid of times (design, section 5).  A task tells later stages of the lowest of its own queues only,
each time with a mark, so that a timer fires at the same place among the records however the input
is cut into batches; of all others a batch knows from its start how many stand where.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from headrace.runtime.chunk import NEVER, Int64s

if TYPE_CHECKING:
    import numpy.typing as npt

    from headrace.protocol.transactions import QueueName


#: Mark of what happens before the first record of a batch.
BEFORE_ALL = -1


class Watermark(NamedTuple):
    """Event time has come to ``time``, seen by the record with this mark."""

    mark: int
    #: ms since 1970.
    time: int


class QueueWatermark(NamedTuple):
    """A watermark of one source queue, or of one partition of an operator's clock."""

    mark: int
    #: Source and queue, as :func:`origin_name` joins them.
    origin: str
    time: int


class TaskWatermark(msgspec.Struct, frozen=True, array_like=True):
    """A step of the lowest watermark among those origins of a clock that one task moves."""

    mark: int
    clock: str
    #: Where it stood; ``NEVER`` while one of the origins had shown no time, None while none of them
    #: held event time back.
    before: int | None
    time: int


class ClockTime(msgspec.Struct, frozen=True, array_like=True):
    """How far a clock has come before the first record of a batch, on the grid of times.

    Its origins count together that one task of the batch moves, and those that none does.
    """

    #: How many of these groups have their lowest watermark at each time; ``NEVER``: one of its
    #: origins has shown no time.  Silent origins hold nothing back and are not in.
    lowest: dict[int, int] = {}
    #: The highest watermark, silent ones among them.
    highest: int = NEVER


def origin_name(source: str, queue: QueueName) -> str:
    """Return the name of one queue as one source reads it; two sources may use different clocks.

    >>> origin_name("source-lines", "lines@broker-a@0")
    'source-lines/lines@broker-a@0'
    """
    return f"{source}/{queue}"


def clock_of(origin: str) -> str:
    """Return the source, or the operator with a clock of its own, that an origin belongs to.

    >>> clock_of("source-lines/lines@broker-a@0")
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

        Records with a time beyond their ``newest`` move none.
        Return what is to be passed on, and for each record the watermark of its queue before it.
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
        """Move the watermarks by what was told of them, and return those that have risen."""
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


def clock_times(
    origins: Iterable[str],
    watermarks: Mapping[str, int],
    idle: Collection[str],
    step: int,
    mover: Callable[[str], object],
) -> dict[str, ClockTime]:
    """Return how far each clock has come, by what a batch knows of its origins.

    Parameters
    ----------
    origins
        All of them.
    watermarks
        Watermarks as of the last commit, by origin, ms since 1970.
    idle
        Origins that have been silent for too long.
    step
        Grid of times, ms.
    mover
        Names the task of the batch that moves an origin, or None if none does.

    Examples
    --------
    >>> known = {"s/a": 2_500, "s/b": 7_200, "s/c": 9_000}
    >>> clock_times(known, known, ["s/c"], 1_000, lambda origin: origin)
    {'s': ClockTime(lowest={2000: 1, 7000: 1}, highest=9000)}
    """
    silent = set(idle)
    highest: dict[str, int] = {}
    lowest: dict[str, dict[object, int]] = defaultdict(dict)
    for origin in origins:
        clock = clock_of(origin)
        time = _on_grid(watermarks.get(origin, NEVER), step)
        highest[clock] = max(time, highest.get(clock, NEVER))
        if origin not in silent:
            groups, group = lowest[clock], mover(origin)
            groups[group] = min(time, groups.get(group, time))
    return {
        clock: ClockTime(dict(Counter(lowest[clock].values())), high)
        for clock, high in highest.items()
    }


def task_watermarks(
    told: Iterable[QueueWatermark],
    origins: Collection[str],
    watermarks: Mapping[str, int],
    idle: Collection[str],
    step: int,
) -> list[TaskWatermark]:
    """Return the steps of the lowest watermark of each clock among the origins of one task.

    Parameters are those of :func:`clock_times`, for the origins that the task moves.

    Examples
    --------
    >>> told = [QueueWatermark(5, "s/a", 3_000), QueueWatermark(6, "s/b", 4_000)]
    >>> task_watermarks(told, ["s/a", "s/b"], {"s/a": 1_000, "s/b": 1_000}, [], 1_000)
    [TaskWatermark(mark=6, clock='s', before=1000, time=3000)]
    """
    silent = set(idle)
    times: dict[str, int] = {}
    counts: dict[str, _Standing] = defaultdict(_Standing)
    for origin in origins:
        times[origin] = _on_grid(watermarks.get(origin, NEVER), step)
        if origin not in silent:
            counts[clock_of(origin)].move(None, times[origin])
    found = []
    for mark, origin, moved in sorted(told):
        if origin not in times:
            continue
        time, clock = _on_grid(moved, step), clock_of(origin)
        standing = counts[clock]
        before = standing.lowest
        standing.move(None if origin in silent else times[origin], time)
        silent.discard(origin)
        times[origin] = time
        if standing.lowest is not None and standing.lowest != before:
            found.append(TaskWatermark(mark, clock, before, standing.lowest))
    return found


class _Standing:
    """How many stand at each time, and the lowest of these times."""

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self._counts = dict(counts or {})

    @property
    def lowest(self) -> int | None:
        """The lowest time; None while there is none."""
        return min(self._counts, default=None)

    def move(self, before: int | None, time: int) -> None:
        """Move one on from where it stood, or add it if ``before`` is None."""
        if before is not None:
            left = self._counts[before] - 1
            if left:
                self._counts[before] = left
            else:
                del self._counts[before]
        self._counts[time] = self._counts.get(time, 0) + 1


class OperatorWatermark:
    """The lowest watermark over all queues that feed an operator.

    Parameters
    ----------
    delays
        Every clock that it goes by, and how much older than its watermark the records may be that
        come from there, ms.  A queue without a watermark holds all back.
    clocks
        How far each clock has come before the batch.  Where all that feeds it has been silent for
        too long, the highest of their watermarks counts.
    floor
        Where the operator stood; it never falls below that.
    step
        Grid of the times on which it rises, ms.
    """

    def __init__(
        self,
        delays: Mapping[str, int],
        clocks: Mapping[str, ClockTime],
        *,
        floor: int = NEVER,
        step: int = 1,
    ) -> None:
        self._step = step
        self._delays = {clock: delay for clock, delay in delays.items() if clock in clocks}
        self._standing = {clock: _Standing(clocks[clock].lowest) for clock in self._delays}
        self._highest = {clock: clocks[clock].highest for clock in self._delays}
        #: ms since 1970; ``NEVER`` while some queue has shown no time yet.
        self.time = floor

    def begin(self) -> list[Watermark]:
        """Return the rise, if any, that comes before the first record of a batch."""
        return list(self._risen(BEFORE_ALL))

    def advance(self, watermarks: Iterable[TaskWatermark]) -> list[Watermark]:
        """Take what tasks report, in the order of the marks, and return each rise of the lowest."""
        risen: list[Watermark] = []
        for mark, reports in groupby(watermarks, lambda watermark: watermark.mark):
            for report in reports:
                if report.clock in self._standing:
                    self._standing[report.clock].move(report.before, report.time)
            risen += self._risen(mark)
        return risen

    def _risen(self, mark: int) -> Iterator[Watermark]:
        reached = self._reached()
        if reached > self.time:
            self.time = reached
            yield Watermark(mark, reached)

    def _reached(self) -> int:
        """Return how far event time has come; ``NEVER`` while one that is waited for shows none.

        Where all are silent, it is as if the one that came furthest had been silent last.
        """
        lowest = {clock: standing.lowest for clock, standing in self._standing.items()}
        waited_for = {clock: time for clock, time in lowest.items() if time is not None}
        times = self._less_delays(waited_for or self._highest)
        return min(times, default=NEVER) if waited_for else max(times, default=NEVER)

    def _less_delays(self, times: Mapping[str, int]) -> list[int]:
        return [
            time if time == NEVER else _on_grid(time - self._delays[clock], self._step)
            for clock, time in times.items()
        ]


def _on_grid(time: int, step: int) -> int:
    return time if time == NEVER else time // step * step


def pack_watermarks(watermarks: list[TaskWatermark]) -> bytes:
    """Encode watermarks for the way to later stages."""
    return msgspec.json.encode(watermarks)


def unpack_watermarks(payloads: Iterable[bytes]) -> list[TaskWatermark]:
    """Decode watermarks of several tasks and bring them into the order of their marks."""
    found = [
        watermark
        for payload in payloads
        for watermark in msgspec.json.decode(payload, type=list[TaskWatermark])
    ]
    return sorted(found, key=lambda watermark: (watermark.mark, watermark.clock))
