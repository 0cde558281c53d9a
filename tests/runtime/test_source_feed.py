"""Messages into records: times against the store time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace import serdes
from headrace.protocol.columns import MessageColumns
from headrace.runtime.chunk import Chunk
from headrace.runtime.event_time.watermarks import QueueWatermark, SourceWatermarks
from headrace.runtime.sources.task import Run, SourceFeed
from headrace.topology.operators.core import Operator, Source

DAY = 86_400_000


class _Task:
    """What a feed sees of a task: its context, and where records go."""

    wall_clock = 100 * DAY
    max_future = DAY

    def __init__(self) -> None:
        self.context = self
        self.source_queues: list[str] = []
        self.counters: dict[str, int] = defaultdict(int)
        self.moved: dict[str, int] = {}
        self.chunks: dict[str, Chunk] = {}

    def event_clock(self, operator: Operator, lateness: timedelta) -> SourceWatermarks:
        return SourceWatermarks(operator.name, int(lateness.total_seconds() * 1000), {})

    def tell_time(self, found: list[QueueWatermark], current: Mapping[str, int]) -> None:
        self.moved.update(current)

    def feed(self, chunks: Mapping[str, Chunk]) -> None:
        self.chunks.update(chunks)


def fed(born: list[int], stored: list[int], **options: Any) -> _Task:
    source = Source(
        name="in",
        parents=(),
        topic="events",
        deserializer=serdes.as_deserializer(serdes.string),
        allowed_lateness=timedelta(0),
        **options,
    )
    task: Any = _Task()
    count = len(born)
    columns = MessageColumns(
        np.arange(count, dtype=np.int64),
        np.arange(count, dtype=np.int64) * 100,
        np.array(born, np.int64),
        np.array(stored, np.int64),
        np.zeros(count, np.int32),
        np.zeros(count, np.int32),
        pa.array([str(number).encode() for number in range(count)], pa.binary()),
        pa.array([b""] * count, pa.binary()),
    )
    feed = SourceFeed(task, [source], ["events@b@0"], forwards_headers=lambda _: False)
    feed.take(Run("events", columns, np.zeros(count, np.intp)))
    assert isinstance(task, _Task)
    return task


@pytest.mark.parametrize(
    ("options", "future", "moved"),
    [
        # The setting of the job: a day.
        ({}, 1, 6 * DAY),
        ({"max_future": timedelta(days=10)}, 0, 9 * DAY),
        ({"max_future": timedelta(0)}, 2, 5 * DAY),
        # The wall clock is far ahead of what was stored long ago, and right.
        ({"timestamp": "wall"}, 0, 100 * DAY),
    ],
)
def test_the_future_is_measured_against_the_store_time(
    options: dict[str, Any], future: int, moved: int
) -> None:
    task = fed([5 * DAY, 6 * DAY, 9 * DAY], [5 * DAY] * 3, **options)
    assert task.counters["future"] == future
    assert task.moved == {"in/events@b@0": moved}
    assert task.counters["records_in"] == len(task.chunks["in"]) == 3


def test_a_record_of_the_future_makes_the_next_ones_not_late() -> None:
    task = fed([5 * DAY, 9 * DAY, 5 * DAY + 1], [5 * DAY] * 3)
    assert not task.chunks["in"].late().any()
