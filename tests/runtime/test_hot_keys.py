"""A key with very many records: exact results, and a cost that goes by what a batch adds."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from benchmarks.growth.jobs import Event, stored_job
from headrace import StreamBuilder, Topology, serdes, session, sliding, tumbling
from headrace.keys import encode_key
from headrace.runtime import TopologyTestDriver
from headrace.runtime.joins.buckets import BLOCK_RECORDS
from headrace.runtime.joins.sessions import JoinSessionLayout
from headrace.runtime.state.layouts import BucketLayout, StateLayout
from headrace.topology import SidesJoin

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SPAN = 60_000
KINDS = ("join", "left_join", "outer_join")
BOUNDS: dict[str, Callable[[Any], Any]] = {
    "interval": lambda join: join.within(timedelta(milliseconds=SPAN)),
    "window": lambda join: join.window(tumbling(timedelta(milliseconds=SPAN))),
    "session": lambda join: join.window(session(timedelta(milliseconds=SPAN))),
}


def joined(kind: str, bound: str) -> Topology:
    builder = StreamBuilder("hot")
    left, right = (
        builder.source(topic, serdes.with_key(serdes.json)) for topic in ("left", "right")
    )
    join = BOUNDS[bound](getattr(left, kind)(right))
    join.apply(lambda one, other: [one, other]).sink("out", serdes.json)
    return builder.build()


def results(topology: Topology, events: Sequence[Event], batch: int) -> list[Any]:
    with TopologyTestDriver(topology, partitions=1) as driver:
        inputs = {topic: driver.input(topic, serdes.json) for topic in ("left", "right")}
        for first in range(0, len(events), batch):
            with driver.batch():
                for topic, key, value, at in events[first : first + batch]:
                    time = EPOCH + timedelta(milliseconds=at)
                    inputs[topic].send(value, key=key, time=time)
        assert len(driver.state(next(iter(topology.state_topics)))) <= 1 + 2
        return [record.value for record in driver.output("out", serdes.json).read_all()]


def hot_events(count: int) -> list[Event]:
    """Many records on the left, few on the right, and at last records that end everything."""
    chance = random.Random(5)
    events: list[Event] = []
    for number in range(count):
        events.append(("left", "hot", number, number * 100 + chance.randrange(2000)))
        if number % 97 == 50:
            events.append(("right", "hot", -number, number * 100))
    return events + [(topic, "last", 0, 10_000_000) for topic in ("left", "right")]


def meet(bound: str, left: int, right: int) -> bool:
    """Tell whether records at two times meet; all of them make one session."""
    if bound == "interval":
        return abs(left - right) <= SPAN
    return bound == "session" or left // SPAN == right // SPAN


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_hot_key_has_every_pair_and_every_lonely_record_once(kind: str, bound: str) -> None:
    count = BLOCK_RECORDS * 12
    events = hot_events(count)
    lefts = [(value, at) for topic, key, value, at in events if (topic, key) == ("left", "hot")]
    rights = [(value, at) for topic, key, value, at in events if (topic, key) == ("right", "hot")]
    pairs: list[list[int | None]] = [
        [v, w] for v, at in lefts for w, to in rights if meet(bound, at, to)
    ]
    met = {number for pair in pairs for number in pair}
    lonely: list[list[int | None]] = []
    if kind != "join":
        lonely += [[value, None] for value, _ in lefts if value not in met]
    if kind == "outer_join":
        lonely += [[None, value] for value, _ in rights if value not in met]
    found = [pair for pair in results(joined(kind, bound), events, 300) if pair not in LAST]
    assert sorted(map(str, found)) == sorted(map(str, pairs + lonely))


LAST = ([0, 0],)


@pytest.mark.parametrize("bound", BOUNDS)
def test_results_of_a_hot_key_do_not_depend_on_how_batches_are_cut(bound: str) -> None:
    events = hot_events(BLOCK_RECORDS * 3)
    whole = results(joined("outer_join", bound), events, len(events))
    assert results(joined("outer_join", bound), events, 40) == whole


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_batch_writes_what_it_adds_however_much_a_key_has(bound: str, tmp_path: Path) -> None:
    with stored_job(joined("left_join", bound), tmp_path / "job") as job:
        for first in range(0, 20 * BLOCK_RECORDS, 100):
            job.send(("left", "hot", number, 1000) for number in range(first, first + 100))
        written = job.written
    # A block is written again until it is full, whatever lies before it.
    assert max(written[-5:]) < 2 * max(written[:5])


@pytest.mark.parametrize("bound", BOUNDS)
def test_blocks_belong_to_their_key_and_tell_their_records(bound: str) -> None:
    topology = joined("outer_join", bound)
    count = 3 * BLOCK_RECORDS + 7
    with TopologyTestDriver(topology, partitions=1) as driver:
        source = driver.input("left", serdes.json)
        with driver.batch():
            for number in range(count):
                source.send(number, key="hot", time=EPOCH)
        name = next(iter(topology.state_topics))
        [base] = driver._job.state(name)
    join = topology.operator(name)
    assert isinstance(join, SidesJoin)
    read = join.left_serde.deserialize
    layout: StateLayout = JoinSessionLayout() if bound == "session" else BucketLayout()
    entries = list(base.scan())
    assert len(entries) > 3
    assert {layout.key_of(key) for key, _ in entries} == {encode_key("hot")}
    shown = [one for k, v in entries for one in layout.shown(k, v, lambda data, part: read(data))]
    if bound == "session":
        assert layout.gathered(shown) == {"left": list(range(count)), "right": []}
        spans = layout.spans(encode_key("hot"))
        assert spans is not None
        found = [key for start, stop in spans for key, _ in base.range(start, stop)]
        assert sorted(found) == [key for key, _ in entries if not key.startswith(b"t")]
    else:
        assert sorted(one.value for one in shown) == list(range(count))
        assert {(one.part, one.start) for one in shown} == {("left", 0)}


@pytest.mark.parametrize("emit", ["close", "update"])
def test_sliding_windows_of_a_hot_key_hold_what_lies_before_each_record(emit: Any) -> None:
    builder = StreamBuilder("hot")
    source = builder.source("left", serdes.with_key(serdes.json))
    size = 200
    windows = source.group_by_key().window(sliding(timedelta(milliseconds=size)))
    windows.collect(emit=emit).to_stream().sink("out", serdes.json)
    chance = random.Random(3)
    events = [("left", "hot", n, n + chance.randrange(20)) for n in range(1500)]
    topology = builder.build()
    found: dict[int, list[int]] = {}
    with TopologyTestDriver(topology, partitions=1) as driver:
        left = driver.input("left", serdes.json)
        for first in range(0, len(events), 130):
            with driver.batch():
                for _, key, value, at in events[first : first + 130]:
                    left.send(value, key=key, time=EPOCH + timedelta(milliseconds=at))
        left.send(-1, key="last", time=EPOCH + timedelta(hours=1))
        for record in driver.output("out", serdes.json).read_all():
            if record.key == "hot":
                found[int(record.headers["window_end_time"])] = record.value
    expected = {
        end: sorted(value for _, _, value, at in events if end - size <= at <= end)
        for end in {at for _, _, _, at in events}
    }
    assert {end: sorted(values) for end, values in found.items()} == expected
