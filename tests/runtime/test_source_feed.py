"""Messages into records: times against the store time."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace import serdes
from headrace.client import MessageQueue
from headrace.errors import DeserializationError, ProtocolError
from headrace.protocol.codes import SysFlag
from headrace.protocol.columns import MessageColumns, decode_columns
from headrace.protocol.properties import LOCALHOST
from headrace.protocol.records import encode_records
from headrace.protocol.stamps import stamp_records
from headrace.runtime.chunk import Chunk, Marks
from headrace.runtime.control import Block
from headrace.runtime.event_time.watermarks import QueueWatermark, SourceWatermarks
from headrace.runtime.planning import OffsetRange, Split
from headrace.runtime.sources.task import Run, SourceFeed, run_source
from headrace.runtime.user_code import Finder, Original
from headrace.topology import ErrorPolicy
from headrace.topology.operators.core import MessageSource, Operator, Source

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


def messages(bodies: list[bytes], born: list[int], stored: list[int]) -> MessageColumns:
    """Messages of a queue from its first on, a hundred bytes each."""
    count = len(bodies)
    return MessageColumns(
        np.arange(count, dtype=np.int64),
        np.arange(count, dtype=np.int64) * 100,
        np.array(born, np.int64),
        np.array(stored, np.int64),
        np.zeros(count, np.int32),
        np.zeros(count, np.int32),
        pa.array(bodies, pa.binary()),
        pa.array([b""] * count, pa.binary()),
    )


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
    columns = messages([str(number).encode() for number in range(count)], born, stored)
    feed = SourceFeed(task, [source], ["events@b@0"], forwards_headers=lambda _: False)
    feed.take([Run("events", columns, np.zeros(count, np.intp))])
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


@pytest.mark.parametrize("on_error", ["fail", "skip", "topic:dead"])
def test_a_body_that_cannot_be_unpacked_follows_the_sources_policy(on_error: ErrorPolicy) -> None:
    records = encode_records("events", 2, [b"a", zlib.compress(b"b"), b"no zlib", b"d"])
    for start in records.starts[1:3].tolist():
        records.data[start + 39] = SysFlag.COMPRESSED
    stamp_records(records, 7, 0, 0, LOCALHOST)
    source = Source(
        name="in",
        parents=(),
        topic="events",
        deserializer=serdes.as_deserializer(serdes.string),
        allowed_lateness=timedelta(0),
        on_error=on_error,
    )
    diverted: list[tuple[Original, Exception]] = []
    task: Any = _Task()
    task.divert_message = lambda _, original, error: diverted.append((original, error))
    feed = SourceFeed(task, [source], ["events@b@2"], forwards_headers=lambda _: False)
    run = Run("events", decode_columns(records.data), np.zeros(4, np.intp))
    if on_error == "fail":
        with pytest.raises(
            DeserializationError, match=r"topic 'events', queue 2, offset 9 .* cannot be unpacked"
        ):
            feed.take([run])
        return
    feed.take([run])
    assert task.chunks["in"].values == ["a", "b", "d"]
    ((original, error),) = diverted
    # The dead letter has what is stored.
    assert (original.offset, original.body) == (9, b"no zlib")
    assert isinstance(error, ProtocolError)


def test_a_record_of_the_future_makes_the_next_ones_not_late() -> None:
    task = fed([5 * DAY, 9 * DAY, 5 * DAY + 1], [5 * DAY] * 3)
    assert not task.chunks["in"].late().any()


class _Interleaved:
    """Queues of one broker whose messages stand by turns in its log, in blocks of some size."""

    def __init__(self, queues: list[str], block: int) -> None:
        self._queues = queues
        self._block = block

    def blocks(self, queue: MessageQueue, begin: int, end: int, **_: Any) -> Iterator[Any]:
        place = self._queues.index(queue.name)
        for start in range(begin, end, self._block):
            offsets = np.arange(start, min(end, start + self._block), dtype=np.int64)
            count = len(offsets)
            zeros = np.zeros(count, np.int64)
            columns = MessageColumns(
                offsets,
                offsets * len(self._queues) + place,
                zeros,
                zeros,
                zeros.astype(np.int32),
                zeros.astype(np.int32),
                pa.array([b"1"] * count, pa.binary()),
                pa.array([b""] * count, pa.binary()),
            )
            yield SimpleNamespace(pieces=lambda columns=columns: iter([columns]))


def read_in_steps(
    sources: Sequence[Source], sizes: Mapping[str, int], *, timed: bool = True
) -> list[Mapping[str, Chunk]]:
    """Read queues that were written in turns; give what goes through the stage together."""
    log = _Interleaved(list(sizes), 7_000)
    job: Any = SimpleNamespace(
        plan=SimpleNamespace(
            topology=SimpleNamespace(sources=sources), forwards_headers=lambda _: False
        ),
        reader=lambda _: log,
        is_gapless=lambda _: True,
    )
    task: Any = _Task()
    steps: list[Mapping[str, Chunk]] = []
    task.feed, task.finish, task.close = steps.append, lambda *_: [], lambda: None
    if not timed:
        task.event_clock = lambda *_: None
    ranges = tuple(OffsetRange(queue, 0, size) for queue, size in sizes.items())
    run_source(job, Split(0, 1, ranges), Marks(["b"]), lambda _: task)
    return steps


def test_records_of_all_topics_come_in_the_order_of_the_log() -> None:
    queues, size = ["one@b@0", "one@b@1", "other@b@0"], 30_000
    sources = [
        Source(
            name=topic,
            parents=(),
            topic=topic,
            deserializer=serdes.as_deserializer(serdes.string),
        )
        for topic in ("one", "other")
    ]
    steps = read_in_steps(sources, dict.fromkeys(queues, size))
    marks = [Chunk.merge(list(step.values())).marks for step in steps]
    assert len(steps) == 2, "one before all is read"
    assert all(len(step) == 2 for step in steps)
    whole = np.concatenate(marks)
    assert len(whole) == 3 * size
    assert (whole[:-1] < whole[1:]).all()


def test_messages_on_their_way_out_come_queue_by_queue() -> None:
    source, size = MessageSource(name="out", parents=(), topic="one"), 30_000
    read: dict[int, list[int]] = defaultdict(list)
    for step in read_in_steps([source], {"one@b@0": size, "one@b@1": size}, timed=False):
        chunk: Any = step["out"]
        assert (chunk.queues[:-1] <= chunk.queues[1:]).all()
        for queue, offset in zip(
            chunk.queues.tolist(), chunk.values.batch["offset"].to_pylist(), strict=True
        ):
            read[queue].append(offset)
    assert read == {0: list(range(size)), 1: list(range(size))}


class _Log:
    """Queues of two brokers, each of which counts its own positions."""

    def __init__(self, bodies: Mapping[str, list[bytes]]) -> None:
        self.bodies = bodies

    def blocks(
        self, queue: MessageQueue, begin: int, end: int, *, max_bytes: int, gapless: bool
    ) -> Iterator[Any]:
        assert gapless, max_bytes
        times = list(range(begin, end))
        columns = messages(self.bodies[queue.name], times, times)
        yield SimpleNamespace(pieces=lambda: iter([columns]))


def test_messages_at_one_position_of_two_brokers_are_told_apart() -> None:
    queues = ["events@a@0", "events@b@0", "events@c@1"]
    log = _Log({queue: [f"{queue} {n}".encode() for n in range(3)] for queue in queues})
    source = Source(
        name="in",
        parents=(),
        topic="events",
        deserializer=serdes.as_deserializer(serdes.string),
        allowed_lateness=timedelta(0),
    )
    job: Any = SimpleNamespace(
        plan=SimpleNamespace(
            topology=SimpleNamespace(sources=[source]), forwards_headers=lambda _: False
        ),
        reader=lambda _: log,
        is_gapless=lambda _: True,
    )
    split = Split(0, 1, tuple(OffsetRange(queue, 0, 3) for queue in queues))
    marks = Marks(["a", "b", "c"])
    task: Any = _Task()
    finders: list[Finder] = []

    def make_task(finder: Finder) -> Any:
        finders.append(finder)
        return task

    def finish(*_: object) -> list[Block]:
        # While the run is there: as for a record that fails.
        found = [finders[0].find(mark) for mark in task.chunks["in"].marks.tolist()]
        assert [message.body.decode() for message in found if message] == task.chunks["in"].values
        return []

    task.finish, task.close = finish, lambda: None
    run_source(job, split, marks, make_task)
    chunk = task.chunks["in"]
    assert [queues[number] for number in chunk.queues] == [v.split()[0] for v in chunk.values]
    places = [marks.place(mark) for mark in chunk.marks.tolist()]
    assert [place.broker for place in places if place] == [v[7] for v in chunk.values]
    assert task.moved == {f"in/{queue}": 2 for queue in queues}
