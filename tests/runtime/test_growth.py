"""State grows with what is open, not with what has been seen; a step goes by what changed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from benchmarks.closed_windows import closed
from benchmarks.growth.shapes import SHAPES
from headrace import (
    Context,
    Fired,
    Processor,
    Record,
    StreamBuilder,
    event_timer,
    serdes,
    wall_timer,
)
from headrace.keys import encode_key
from headrace.runtime import TopologyTestDriver
from headrace.runtime.state.interface import Timers
from headrace.runtime.state.store import MemoryBase, MemoryStore

WINDOWS = 3000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize("name", SHAPES)
def test_what_has_closed_leaves_nothing_on_disk_or_in_the_topic(name: str, tmp_path: Path) -> None:
    found = closed(SHAPES[name], WINDOWS, tmp_path / "job", batch=1000)
    assert (found.local, found.topic) == (0, 0)
    if name != "count":  # those close in the batch that opens them
        assert found.most > 0


class CountingBase(MemoryBase):
    """Counts the entries that are asked for and given."""

    def __init__(self) -> None:
        super().__init__()
        self.touched = 0

    def get_many(self, keys: list[bytes]) -> Sequence[bytes | None]:
        self.touched += len(keys)
        return super().get_many(keys)

    def range(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        for entry in super().range(start, stop):
            self.touched += 1
            yield entry

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        raise AssertionError("a step looked at everything")


def stepped(name: str, open_windows: int) -> tuple[int, float]:
    """Give what a batch of one record touches beside windows of other keys, and its seconds."""
    shape = SHAPES[name]
    with TopologyTestDriver(shape.topology(), partitions=1) as driver:
        [store] = driver.topology.state_topics
        base = CountingBase()
        driver._job._copies._bases[store, 0] = base
        left = driver.input("left", serdes.json)
        left.send(1, key="key-0000000", time=EPOCH)
        others = [encode_key(f"key-{number:07}") for number in range(1, open_windows)]
        own = encode_key("key-0000000")
        for entry, value in list(base.entries.items()):
            assert entry.endswith(own)
            head = entry.removesuffix(own)
            base.entries.update((head + other, value) for other in others)
        base.touched = 0
        seconds: list[float] = []
        for number in range(9):
            begun = time.perf_counter()
            left.send(1, key="step", time=EPOCH + timedelta(milliseconds=200 * number))
            seconds.append(time.perf_counter() - begun)
        return base.touched, statistics.median(seconds)


@pytest.mark.parametrize("name", ["tumbling", "session", "sliding", "interval_join"])
def test_a_step_costs_the_same_beside_very_many_open_windows(name: str) -> None:
    few, many = stepped(name, 1000), stepped(name, 150_000)
    assert few[0] == many[0]
    assert many[1] < 5 * few[1] + 0.05


def test_timers_do_not_look_where_all_have_fired() -> None:
    base = CountingBase()
    store = MemoryStore(base)
    early = Timers(store, b"t")
    for at in range(100):
        early.set(at, b"")
    base.apply(store.change_set())
    base.touched = 0
    timers = Timers(MemoryStore(base), b"t", settled=89)
    assert [at for at, _ in timers.due(95)] == list(range(90, 96))
    assert (timers.next(), base.touched) == (96, 6 + 1)


def test_timers_of_times_that_have_passed_are_found() -> None:
    store = MemoryStore()
    timers = Timers(store, b"t", settled=50, passed=60, early=b"T")
    for at in (40, 55, 60, 61, 70):
        timers.set(at, b"x")
    timers.clear(55, b"x")
    assert timers.next() == 40
    assert [at for at, _ in timers.due(65)] == [40, 60, 61]
    timers.set(62, b"late")
    assert [at for at, _ in timers.due(65)] == [62]
    assert [at for at, _ in timers.due(100)] == [70]
    assert list(store.scan()) == []


class Past(Processor[str, int, str, str]):
    """Sets a timer so many seconds before or behind the present."""

    def init(self, context: Context) -> None:
        self.context = context
        self.event, self.wall = context.timer("event"), context.timer("wall")

    def process(self, record: Record[str, int]) -> None:
        if record.value:
            assert self.context.event_time is not None
            self.event.set(self.context.event_time + record.value * SECOND)
            self.wall.set(self.context.wall_clock + record.value * SECOND)

    def fire(self, timer: Fired[str]) -> None:
        self.context.forward(Record(timer.key, timer.name, timer.time))


@pytest.mark.parametrize("rest", [1, 5])
def test_timers_set_in_the_past_fire_in_a_later_batch(rest: int) -> None:
    builder = StreamBuilder("past")
    events = builder.source("events", serdes.with_key(serdes.json(int), of=str))
    timers = [event_timer("event"), wall_timer("wall")]
    events.process(Past, timers=timers).sink("out", serdes.json)
    with TopologyTestDriver(builder.build(), partitions=1) as driver:
        source = driver.input("events", serdes.json)
        source.send(0, key="a", time=EPOCH + 100 * SECOND)
        source.send(-50, key="a", time=EPOCH + 100 * SECOND)
        for _ in range(rest):
            source.send(0, key="b", time=EPOCH + 100 * SECOND)
        driver.advance_wall_clock(SECOND)
        source.send(0, key="b", time=EPOCH + 200 * SECOND)
        fired = [record.value for record in driver.output("out", serdes.json).read_all()]
        assert sorted(fired) == ["event", "wall"]
        [store] = driver.topology.state_topics
        assert len(driver.state(store)) == 0
