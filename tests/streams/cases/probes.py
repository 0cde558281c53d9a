"""Operators that the product does not have, for what cases ask of its inside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from headrace import serdes
from headrace.runtime.chunk import Chunk
from headrace.runtime.event_time.watermarks import Watermark
from headrace.runtime.processors import TimedProcessor
from headrace.runtime.stage import PROCESSORS
from headrace.topology import Operator
from headrace.topology.operators.core import Sink

__all__ = ["Watermarks", "watermarks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermarks(Operator):
    """Tells for each record what it makes of the watermark, and whether it is late."""

    label: ClassVar[str] = "watermarks"
    timed: ClassVar[bool] = True

    #: Lateness that its source allows, ms.
    width: int


class WatermarksProcessor(TimedProcessor[Watermarks]):
    """The watermark behind a record is the one before it, or the record's own where higher."""

    def process(self, chunk: Chunk) -> Chunk:
        """Give a report for each record."""
        assert chunk.late_below is not None
        behind = np.maximum(chunk.late_below, chunk.times - self.operator.width).tolist()
        reports = [
            {"watermark": time, "late": late}
            for time, late in zip(behind, chunk.late().tolist(), strict=True)
        ]
        return chunk.with_values(reports).with_keys([None] * len(chunk))

    def advance(self, watermark: Watermark) -> Chunk:
        """Check that the operator's own watermark never falls."""
        assert watermark.time > self.event_time
        return Chunk.empty()


PROCESSORS[Watermarks] = WatermarksProcessor


def watermarks(source: str, topic: str, width: int) -> tuple[Watermarks, Sink]:
    """Make the probe behind a source, and its sink."""
    probe = Watermarks(name=f"watermarks-{topic}", parents=(source,), width=width)
    sink = Sink(
        name=f"sink-{topic}",
        parents=(probe.name,),
        topic=topic,
        serializer=serdes.as_serializer(serdes.json),
    )
    return probe, sink
