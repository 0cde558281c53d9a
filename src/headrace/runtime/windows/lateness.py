"""Records that come too late for a window operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.runtime.chunk import NEVER
from headrace.runtime.windows.assigning import first_ends

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.runtime.chunk import Chunk, Int64s
    from headrace.runtime.event_time.watermarks import Watermark
    from headrace.runtime.processors import Processor
    from headrace.topology.operators.windows import TimeWindow

__all__ = ["LATE", "count_late", "event_times", "give_late", "split_doubtful"]

#: The output that takes late records, and the counter of them.
LATE = "late"


def give_late(processor: Processor[Any], chunk: Chunk) -> None:
    """Count late records and send them to whoever takes them."""
    if len(chunk):
        count_late(processor, len(chunk))
        processor.give(LATE, chunk)


def count_late(processor: Processor[Any], count: int) -> None:
    """Count records that came too late."""
    counters = processor.context.counters
    for name in (LATE, f"{LATE}.{processor.operator.name}"):
        counters[name] = counters.get(name, 0) + count


def split_doubtful(operator: TimeWindow, chunk: Chunk, fired: int) -> tuple[Chunk, Chunk]:
    """Part records that may be too late, to be judged where the windows are, from those in time.

    A window that ended at ``fired`` or before has fired already.
    """
    doubtful = chunk.late(operator.grace)
    doubtful |= first_ends(operator.windows, chunk.times) <= fired
    return chunk.split(doubtful)


def event_times(before: int, watermarks: Sequence[Watermark], marks: Int64s) -> Int64s:
    """Tell how far an operator's event time had come before the records with some marks."""
    times = np.array([before, *(watermark.time for watermark in watermarks)], np.int64)
    seen = np.array([watermark.mark for watermark in watermarks], np.int64)
    return np.maximum(times[np.searchsorted(seen, marks, side="left")], NEVER)
