"""Event-time watermarks: made at the source per queue, brought together at every operator.

A queue's watermark is the highest event time so far less the source's ``allowed_lateness``; it
never falls.  It travels with a mark, so that a timer fires at the same place among the records
however the input is cut into batches.  An operator's watermark is the lowest over all queues that
feed it (design, section 5).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from headrace.protocol.transactions import QueueName
    from headrace.runtime.chunk import Int64s

__all__ = [
    "OperatorWatermark",
    "QueueWatermark",
    "SourceWatermarks",
    "Watermark",
    "origin_name",
    "pack_watermarks",
    "source_of",
    "unpack_watermarks",
]

#: A watermark is passed on when it enters another step of this grid, ms.
STEP = 1_000


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
    'source-lines|lines@broker-a@0'
    """
    return f"{source}|{queue}"


def source_of(origin: str) -> str:
    """Name the source of an origin.

    >>> source_of("source-lines|lines@broker-a@0")
    'source-lines'
    """
    return origin.partition("|")[0]


class SourceWatermarks:
    """The watermarks of the queues that one source reads in one task.

    Parameters
    ----------
    source
        Name of the source.
    lateness
        How far a record may lag behind the highest time of its queue, ms.
    before
        Watermarks as of the last commit, by origin.
    """

    def __init__(self, source: str, lateness: int, before: Mapping[str, int]) -> None:
        self._source = source
        self._lateness = lateness
        #: The newest watermark of each origin that this task has moved.
        self.current: dict[str, int] = {}
        self._before = before

    def observe(
        self,
        queues: Sequence[QueueName],
        numbers: npt.NDArray[np.intp],
        times: Int64s,
        marks: Int64s,
    ) -> list[QueueWatermark]:
        """Move the watermarks by records, ``numbers`` naming the queue of each."""
        found: list[QueueWatermark] = []
        for number in np.unique(numbers).tolist():
            own = numbers == number
            found += self._observe_queue(
                origin_name(self._source, queues[number]), times[own], marks[own]
            )
        return found

    def _observe_queue(self, origin: str, times: Int64s, marks: Int64s) -> list[QueueWatermark]:
        before = self.current.get(origin, self._before.get(origin))
        running = np.maximum.accumulate(times) - self._lateness
        if before is not None:
            running = np.maximum(running, before)
        steps = running // STEP
        # The first record of a queue, every step, and where the task ends.
        first = steps[0] - 1 if before is None else before // STEP
        moved = np.flatnonzero(np.diff(steps, prepend=first)).tolist()
        last = len(running) - 1
        sent = running[moved[-1]] if moved else before
        if running[last] != sent:
            moved.append(last)
        self.current[origin] = int(running[last])
        return [QueueWatermark(int(marks[i]), origin, int(running[i])) for i in moved]


class OperatorWatermark:
    """The lowest watermark over all queues that feed an operator.

    Parameters
    ----------
    origins
        Every source and queue that feeds it; one without a watermark holds it back.
    before
        Watermarks as of the last commit, by origin.
    """

    def __init__(self, origins: Iterable[str], before: Mapping[str, int]) -> None:
        self._by_origin: dict[str, int | None] = {name: before.get(name) for name in origins}
        #: None while some queue has shown no time yet.
        self.time = self._lowest()

    def advance(self, watermarks: Iterable[QueueWatermark]) -> list[Watermark]:
        """Take what queues report, in the order of the marks; give each rise of the lowest."""
        risen: list[Watermark] = []
        for watermark in watermarks:
            if watermark.origin not in self._by_origin:
                continue
            self._by_origin[watermark.origin] = watermark.time
            lowest = self._lowest()
            if lowest is not None and (self.time is None or lowest > self.time):
                self.time = lowest
                risen.append(Watermark(watermark.mark, lowest))
        return risen

    def _lowest(self) -> int | None:
        times = [time for time in self._by_origin.values() if time is not None]
        return min(times) if times and len(times) == len(self._by_origin) else None


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
