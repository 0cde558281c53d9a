"""A windowed operator that the product does not have: what it takes to add one.

The operator, its processor and one line in the table; nothing of the engine changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from headrace import serdes
from headrace.keys import decode_key, encode_key
from headrace.runtime.chunk import Chunk
from headrace.runtime.event_time.watermarks import Watermark
from headrace.runtime.processors import TimedProcessor
from headrace.runtime.stage import PROCESSORS
from headrace.serdes import Serde
from headrace.topology.operators.core import Operator


@dataclass(frozen=True, slots=True, kw_only=True)
class TumblingCount(Operator):
    """Counts records per key and window, and gives the count when event time has passed it."""

    label: ClassVar[str] = "tumbling_count"
    stateful: ClassVar[bool] = True
    timed: ClassVar[bool] = True

    #: Length of a window, ms.
    size: int

    def input_serde(self, port: int) -> Serde[Any]:
        return serdes.plain

    @property
    def time_step(self) -> int:
        return self.size


class TumblingCountProcessor(TimedProcessor[TumblingCount]):
    """State: (window end, key) to count."""

    def process(self, chunk: Chunk) -> Chunk:
        late, chunk = chunk.split(chunk.late())
        self.context.counters["late"] += len(late)
        self.give("late", late)
        store = self.context.store(self.operator)
        size = self.operator.size
        for key, time in zip(chunk.key_list(), chunk.times.tolist(), strict=True):
            place = encode_key((time // size * size + size, key))
            held = store.get(place)
            store.put(
                place, serdes.int.serialize((serdes.int.deserialize(held) if held else 0) + 1)
            )
        return Chunk.empty()

    def advance(self, watermark: Watermark) -> Chunk:
        store = self.context.store(self.operator)
        due = [(decode_key(place), place, count) for place, count in store.scan()]
        due = sorted(entry for entry in due if entry[0][0] <= watermark.time)
        for _, place, _ in due:
            store.delete(place)
        return Chunk(
            [key for (_, key), _, _ in due],
            [serdes.int.deserialize(count) for _, _, count in due],
            np.array([end for (end, _), _, _ in due], np.int64),
            np.full(len(due), watermark.mark, np.int64),
        )


PROCESSORS[TumblingCount] = TumblingCountProcessor
