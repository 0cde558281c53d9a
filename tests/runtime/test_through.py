"""Streams that go through a topic of the job's own, in the test driver."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from headrace import (
    KeyedStream,
    Stream,
    StreamBuilder,
    Topology,
    TopologyError,
    TopologyTestDriver,
    serdes,
    session,
    tumbling,
)
from headrace.serdes import Serde
from tests.runtime.windowing import EPOCH, Event, in_batches, ms

LONG = timedelta(days=1)
TOPIC = "job-ROCKETMQ-THROUGH-00002-shuffleTopic"

Way = Callable[[Any], Any]


def straight(stream: Any) -> Any:
    return stream


def through(stream: Any) -> Any:
    return stream.through()


def twice(stream: Any) -> Any:
    return stream.through("first", queues=3).through("second", queues=2)


def read(driver: TopologyTestDriver, topic: str) -> list[tuple[Any, Any, int, dict[str, str]]]:
    return [
        (r.key, r.value, (r.time - EPOCH) // ms(1), dict(r.headers))
        for r in driver.output(topic, serdes.json).read_all()
    ]


def source(builder: StreamBuilder, name: str = "events") -> Stream[Any, Any]:
    reader = serdes.with_key(serdes.json, of=object)
    return builder.source(name, reader, allowed_lateness=ms(5), idle_timeout=timedelta(seconds=10))


def send(driver: TopologyTestDriver, events: list[Event], cuts: list[int]) -> None:
    inputs = [driver.input("events", serdes.json, queue=number) for number in range(2)]
    for batch in in_batches(events, cuts):
        with driver.batch():
            for event in batch:
                inputs[event.queue].send(event.value, key=event.key, time=EPOCH + ms(event.time))


def windows(way: Way) -> Topology:
    builder = StreamBuilder("job")
    keyed = way(source(builder)).group_by_key()
    for name, kind in (("tumbling", tumbling(ms(10))), ("session", session(ms(3)))):
        table = keyed.window(kind).sum(lambda value: value)
        table.to_stream().sink(f"{name}-results", serdes.json)
        table.late().sink(f"{name}-late", serdes.json)
    return builder.build()


def each(way: Way) -> Topology:
    builder = StreamBuilder("job")
    keyed = way(source(builder)).group_by_key()
    keyed.collect(emit="each").to_stream().sink("results", serdes.json)
    return builder.build()


events = st.lists(
    st.builds(
        Event, st.sampled_from("ab"), st.integers(0, 9), st.integers(0, 60), st.integers(0, 1)
    ),
    max_size=40,
)
cuts = st.lists(st.integers(0, 40), max_size=6)


def outcome(topology: Topology, events: list[Event], cuts: list[int]) -> dict[str, list[Any]]:
    # What fires all windows in the end, in each queue.
    ends = [Event("end", 0, 10_000, number) for number in range(2)]
    with TopologyTestDriver(topology, queues={"events": 2}) as driver:
        send(driver, [*events, *ends], cuts)
        own = {sink.topic for sink in topology.throughs}
        topics = [sink.topic for sink in topology.sinks if sink.topic not in own]
        return {topic: sorted(read(driver, topic), key=repr) for topic in topics}


@settings(deadline=None, max_examples=50)
@given(events, cuts, cuts)
def test_windows_fire_with_the_same_results_and_late_records(
    events: list[Event], cuts: list[int], other: list[int]
) -> None:
    wanted = outcome(windows(straight), events, cuts)
    assert outcome(windows(through), events, other) == wanted
    assert outcome(windows(twice), events, cuts) == wanted
    assert not events or any(wanted.values())


@settings(deadline=None, max_examples=50)
@given(events, cuts)
def test_records_of_a_key_stay_in_order(events: list[Event], cuts: list[int]) -> None:
    assert outcome(each(through), events, cuts) == outcome(each(straight), events, [])


def test_late_record_stays_late_though_its_batch_was_the_first() -> None:
    found = outcome(windows(through), [Event("a", 1, 30), Event("a", 2, 24), Event("a", 3, 25)], [])
    assert [row[:3] for row in found["tumbling-late"]] == [("a", 2, 24)]
    assert [row[:3] for row in found["tumbling-results"]] == [("a", 1, 30), ("a", 3, 25)]


def passing(serde: Serde[Any] | None = None) -> Topology:
    builder = StreamBuilder("job")
    stream: Stream[Any, Any] = source(builder).through(serde=serde)
    stream.sink("out", serdes.json)
    return builder.build()


def test_records_keep_key_value_time_and_headers() -> None:
    with TopologyTestDriver(passing()) as driver:
        way_in = driver.input("events", serdes.json)
        way_in.send({"n": 1}, key=("a", 1), time=EPOCH + ms(7), headers={"from": "test"})
        way_in.send([2], time=EPOCH + ms(8))
        way_in.send("", key="", time=EPOCH + ms(9))
        assert read(driver, "out") == [
            (("a", 1), {"n": 1}, 7, {"from": "test"}),
            (None, [2], 8, {}),
            ("", "", 9, {}),
        ]
        assert len(driver.output(TOPIC, serdes.bytes).read_all()) == 3


def test_none_and_empty_values_are_not_the_same_on_the_way() -> None:
    builder = StreamBuilder("job")
    words = builder.source("words", serdes.string)
    nothing: Stream[Any, Any] = words.map_values(lambda word: word or None, serde=serdes.string)
    kept = nothing.merge(words, serde=serdes.string).through()
    kept.map_values(repr).sink("out", serdes.string)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("words", serdes.string).send("")
        assert [r.value for r in driver.output("out", serdes.string).read_all()] == ["None", "''"]


def test_topic_is_named_by_the_place_and_made_with_eight_queues() -> None:
    topology = passing()
    (written,) = topology.throughs
    assert (written.topic, written.queues, written.name) == (TOPIC, 8, "through-events")
    assert f"through-events-read  <- through-events (a batch later), reads {TOPIC}" in (
        topology.describe()
    )
    assert f'"topic {TOPIC}" -> "through-events-read";' in topology.to_dot()
    with TopologyTestDriver(topology) as driver:
        assert driver.queues == {"events": 1, TOPIC: 8}


def test_others_may_write_to_the_topic_too() -> None:
    builder = StreamBuilder("job")
    keyed: KeyedStream[Any, Any] = (
        source(builder).group_by_key().through("shared", serde=serdes.json)
    )
    keyed.count(emit="each").to_stream().sink("out", serdes.json)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("events", serdes.json).send(1, key="a")
        driver.input("shared", serdes.json, queue=5).send(1, key="a")
        assert [row[:2] for row in read(driver, "out")] == [("a", 1), ("a", 2)]


def updates_of_updates(way: Way) -> Topology:
    builder = StreamBuilder("job")
    counts = source(builder).group_by_key().count().to_stream()
    totals = way(counts).key_by(lambda _: "all").sum(lambda count: count)
    totals.to_stream().sink("out", serdes.json)
    return builder.build()


def test_updates_take_their_old_values_back_behind_the_topic() -> None:
    for way in (straight, through):
        with TopologyTestDriver(updates_of_updates(way)) as driver:
            for key in "aabab":
                driver.input("events", serdes.json).send(0, key=key)
            assert read(driver, "out")[-1][:2] == ("all", 5)


def test_quiet_source_holds_nobody_up_behind_the_topic() -> None:
    builder = StreamBuilder("job")
    direct, other = source(builder), source(builder, "others")
    keyed = direct.merge(other.through()).group_by_key()
    keyed.window(tumbling(ms(10))).count().to_stream().sink("out", serdes.json)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("others", serdes.json).send(1, key="a", time=EPOCH)
        driver.input("events", serdes.json).send(1, key="a", time=EPOCH)
        driver.input("events", serdes.json).send(1, key="a", time=EPOCH + LONG)
        assert read(driver, "out") == []
        driver.advance_wall_clock(timedelta(seconds=11))
        driver.input("events", serdes.json).send(1, key="a", time=EPOCH + LONG)
        assert [row[:2] for row in read(driver, "out")] == [("a", 2)]


def test_wall_clock_goes_through_the_topic_while_a_window_waits() -> None:
    builder = StreamBuilder("job")
    events = builder.source(
        "events", serdes.with_key(serdes.json), timestamp="wall", allowed_lateness=timedelta(0)
    )
    table = events.through().group_by_key().window(tumbling(timedelta(seconds=1))).count()
    table.to_stream().sink("out", serdes.json)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("events", serdes.json).send(1, key="a")
        driver.advance_wall_clock(timedelta(seconds=2))
        assert [row[:2] for row in read(driver, "out")] == [("a", 1)]


def test_topic_belongs_to_the_two_that_write_and_read_it() -> None:
    builder = StreamBuilder("job")
    source(builder).through("own").sink("own", serdes.json)
    with pytest.raises(TopologyError, match="feed itself"):
        builder.build()
    builder = StreamBuilder("job")
    source(builder).through("own").sink("out", serdes.json)
    builder.source("own", serdes.json).sink("more", serdes.json)
    with pytest.raises(TopologyError, match=r"'own', which source .* reads"):
        builder.build()


def test_through_without_an_operator_behind_it_is_refused() -> None:
    builder = StreamBuilder("job")
    source(builder).through("own")
    with pytest.raises(TopologyError, match="reads topic 'own' for nothing"):
        builder.build()
    with pytest.raises(TopologyError, match="queues=0"):
        source(builder).through(queues=0)


def test_record_that_cannot_be_written_follows_the_policy() -> None:
    builder = StreamBuilder("job")
    source(builder).through(serde=serdes.int, on_error="skip").sink("out", serdes.json)
    with TopologyTestDriver(builder.build()) as driver:
        for value in (1, "two", 3):
            driver.input("events", serdes.json).send(value)
        assert [row[1] for row in read(driver, "out")] == [1, 3]
        assert driver.counters["skipped"] == 1
