"""Sources in the test driver: topics and patterns, times, silent queues, the far future."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from headrace import StreamBuilder, serdes
from headrace.errors import DeserializationError, TopicNotFoundError, TopologyError, UserCodeError
from headrace.runtime import TopologyTestDriver
from headrace.streams import KeyedStream
from headrace.topology import Topology
from tests.runtime.tumbling import TumblingCount

START = datetime(2024, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def counted(stream: KeyedStream[Any, Any], name: str = "window") -> None:
    """Add windows of ten seconds, which write key and count."""
    builder, parent = stream._flow.builder, stream.name
    builder.add(TumblingCount(name=name, parents=(parent,), size=10_000))
    type(stream)(stream._flow.__class__(builder, name, name)).sink(f"{name}-out", serdes.json)


def windows(**source: Any) -> Topology:
    builder = StreamBuilder("windows")
    counted(builder.source("events", serdes.json, **source).key_by(lambda event: event["key"]))
    return builder.build()


def at(seconds: float) -> datetime:
    return START + seconds * SECOND


def event(key: str, seconds: float) -> dict[str, Any]:
    return {"key": key, "at": int(at(seconds).timestamp() * 1000)}


def results(driver: TopologyTestDriver, topic: str = "window-out") -> list[tuple[Any, Any]]:
    return [(r.key, r.value) for r in driver.output(topic, serdes.json).read_all()]


def send(driver: TopologyTestDriver, events: Iterable[tuple[str, float]], queue: int = 0) -> None:
    source = driver.input("events", serdes.json, queue=queue)
    for key, seconds in events:
        source.send(event(key, seconds), time=at(seconds))


@pytest.mark.parametrize("kind", ["ms", "datetime"])
def test_event_time_comes_from_the_value(kind: str) -> None:
    def stamp(event: dict[str, Any]) -> Any:
        return event["at"] if kind == "ms" else datetime.fromtimestamp(event["at"] / 1000, UTC)

    with TopologyTestDriver(windows(timestamp=stamp), start=START) as driver:
        source = driver.input("events", serdes.json)
        for key, seconds in (("a", 1), ("a", 9), ("b", 12)):
            source.send(event(key, seconds))
        assert results(driver) == [("a", 2)]


def test_a_time_of_none_leaves_the_message_time() -> None:
    with TopologyTestDriver(windows(timestamp=lambda _: None), start=START) as driver:
        send(driver, [("a", 1), ("b", 12)])
        assert results(driver) == [("a", 1)]


def test_a_value_without_a_time_follows_the_policy_of_the_source() -> None:
    def driver_with(policy: str) -> TopologyTestDriver:
        stamp = lambda event: event["at"]  # noqa: E731
        return TopologyTestDriver(windows(timestamp=stamp, on_error=policy), start=START)

    with driver_with("fail") as driver, pytest.raises(DeserializationError, match="KeyError: 'at'"):
        driver.input("events", serdes.json).send({"key": "a"})
    with driver_with("fail") as driver, pytest.raises(DeserializationError, match="ms since 1970"):
        driver.input("events", serdes.json).send({"key": "a", "at": "noon"})
    with driver_with("skip") as driver:
        with driver.batch():
            driver.input("events", serdes.json).send({"key": "a"})
            send(driver, [("a", 1)])
        send(driver, [("b", 12)])
        assert driver.counters["skipped"] == 1
        assert results(driver) == [("a", 1)]


def test_windows_by_the_wall_clock_fire_when_it_moves() -> None:
    with TopologyTestDriver(windows(timestamp="wall"), start=START) as driver:
        send(driver, [("a", 500), ("a", 900)])
        driver.advance_wall_clock(11 * SECOND)
        assert results(driver) == []
        driver.advance_wall_clock(SECOND)
        assert results(driver) == [("a", 2)]
        assert len(driver.state("window")) == 0


def test_a_quiet_queue_holds_nobody_up_after_its_timeout() -> None:
    # Defect 11: there an idle queue moved the time of all others for good.
    with TopologyTestDriver(windows(), start=START, queues={"events": 2}) as driver:
        send(driver, [("a", 1)], queue=1)
        driver.advance_wall_clock(5 * SECOND)
        send(driver, [("a", 2), ("b", 30)])
        driver.advance_wall_clock(4 * SECOND)
        assert results(driver) == []
        driver.advance_wall_clock(SECOND)
        assert results(driver) == [("a", 2)]
        # It comes back with its next record, and holds the others back again.
        send(driver, [("c", 31)], queue=1)
        send(driver, [("d", 60)])
        assert results(driver) == []
        send(driver, [("e", 60)], queue=1)
        assert sorted(results(driver)) == [("b", 1), ("c", 1)]


def test_a_queue_does_not_fire_the_windows_of_another() -> None:
    # Defect 9: there each queue's watermark fired the windows of all.
    with TopologyTestDriver(windows(), start=START, queues={"events": 2}) as driver:
        send(driver, [("a", 1)], queue=1)
        send(driver, [("b", 2), ("b", 60)])
        assert results(driver) == []
        send(driver, [("a", 3)], queue=1)
        send(driver, [("c", 61)], queue=1)
        assert sorted(results(driver)) == [("a", 2), ("b", 1)]


def test_operators_with_any_name_have_times() -> None:
    with TopologyTestDriver(windows(name="in|of%it"), start=START) as driver:
        send(driver, [("a", 1), ("b", 12)])
        assert results(driver) == [("a", 1)]


def test_a_queue_never_seen_is_silent_from_the_start_of_the_job() -> None:
    with TopologyTestDriver(windows(), start=START, queues={"events": 2}) as driver:
        driver.advance_wall_clock(8 * SECOND)
        send(driver, [("a", 1), ("b", 30)])
        assert results(driver) == []
        driver.advance_wall_clock(2 * SECOND)
        assert results(driver) == [("a", 1)]


def test_when_all_are_silent_time_stands_still() -> None:
    with TopologyTestDriver(windows(), start=START) as driver:
        send(driver, [("a", 1), ("a", 11)])
        driver.advance_wall_clock(timedelta(days=1))
        assert results(driver) == []
        send(driver, [("a", 9)])
        send(driver, [("a", 12)])
        assert results(driver) == [("a", 2)]


def test_the_far_future_in_one_queue_makes_nothing_else_late() -> None:
    topology = windows(max_future=timedelta(hours=1))
    with TopologyTestDriver(topology, start=START) as driver:
        send(driver, [("a", 1), ("x", 999_999), ("a", 9), ("b", 12)])
        assert results(driver) == [("a", 2)]
        assert driver.counters["future"] == 1
        assert len(driver.state("window")) == 2


def test_a_source_reads_several_topics_and_several_sources_read_one() -> None:
    builder = StreamBuilder("several")
    builder.source(["a", "b"], serdes.string).map_values(str.upper).sink("loud", serdes.string)
    builder.source("b", serdes.string).sink("plain", serdes.string)
    with TopologyTestDriver(builder.build()) as driver:
        for topic in ("a", "b"):
            driver.input(topic, serdes.string).send(topic)
        assert [r.value for r in driver.output("loud", serdes.string).read_all()] == ["A", "B"]
        assert [r.value for r in driver.output("plain", serdes.string).read_all()] == ["b"]


def test_two_sources_of_one_topic_have_their_own_times() -> None:
    builder = StreamBuilder("times")
    by_message = builder.source("events", serdes.json)
    by_value = builder.source("events", serdes.json, timestamp=lambda event: event["at"])
    counted(by_message.key_by(lambda event: event["key"]), "message")
    counted(by_value.key_by(lambda event: event["key"]), "value")
    with TopologyTestDriver(builder.build(), start=START) as driver:
        source = driver.input("events", serdes.json)
        source.send(event("a", 1), time=at(100))
        source.send(event("a", 50), time=at(101))
        assert results(driver, "value-out") == [("a", 1)]
        assert results(driver, "message-out") == []


def test_a_pattern_reads_every_topic_that_it_matches() -> None:
    builder = StreamBuilder("pattern")
    builder.source(re.compile("orders-.*"), serdes.string).sink("all", serdes.string)
    topology = builder.build()
    assert "source-orders" in topology.describe()
    assert "/orders-.*/" in topology.describe()
    with TopologyTestDriver(topology) as driver:
        for topic in ("orders-eu", "orders-us"):
            driver.input(topic, serdes.string).send(topic)
        with pytest.raises(TopicNotFoundError, match="does not read topic 'order'"):
            driver.input("order", serdes.string)
        found = [r.value for r in driver.output("all", serdes.string).read_all()]
        assert found == ["orders-eu", "orders-us"]


def selected(**options: Any) -> Topology:
    builder = StreamBuilder("selected")
    events = builder.source("events", serdes.json)
    timed = events.select_timestamp(lambda event: event["at"], **options)
    counted(timed.key_by(lambda event: event["key"]))
    return builder.build()


@pytest.mark.parametrize("size", [1, 2, 5])
def test_selected_times_have_watermarks_of_their_own(size: int) -> None:
    with TopologyTestDriver(selected(), start=START) as driver:
        sent = [event(*each) for each in [("a", 1), ("a", 9), ("b", 12), ("c", 11), ("d", 30)]]
        source = driver.input("events", serdes.json)
        for first in range(0, len(sent), size):
            with driver.batch():
                for number, value in enumerate(sent[first : first + size], first):
                    # By the times of the messages all of this is one window.
                    source.send(value, time=at(1_000 - number))
        assert sorted(results(driver)) == [("a", 2), ("b", 1), ("c", 1)]


def test_selected_times_go_by_the_slowest_queue_and_not_by_silent_ones() -> None:
    with TopologyTestDriver(selected(), start=START, queues={"events": 2}) as driver:
        send(driver, [("a", 1)], queue=1)
        send(driver, [("b", 30)])
        assert results(driver) == []
        driver.advance_wall_clock(9 * SECOND)
        send(driver, [("b", 31)])
        driver.advance_wall_clock(SECOND)
        assert results(driver) == [("a", 1)]


def test_selected_times_behind_a_shuffle_go_by_partition() -> None:
    builder = StreamBuilder("behind")
    counts = builder.source("events", serdes.json).key_by(lambda event: event["key"])
    latest = counts.reduce(lambda _, last: last, emit="each").to_stream()
    counted(latest.select_timestamp(lambda event: event["at"]).group_by_key())
    with TopologyTestDriver(builder.build(), start=START) as driver:
        source = driver.input("events", serdes.json)
        for key, seconds in (("a", 1), ("b", 2), ("c", 3), ("d", 4), ("a", 9)):
            source.send(event(key, seconds))
        for key in "abcd":
            source.send(event(key, 30))
        assert sorted(results(driver)) == [("a", 2), ("b", 1), ("c", 1), ("d", 1)]


def test_selected_times_of_the_far_future_move_nothing() -> None:
    with TopologyTestDriver(selected(max_future=timedelta(hours=1)), start=START) as driver:
        send(driver, [("a", 1), ("x", 999_999), ("a", 9), ("b", 12)])
        assert results(driver) == [("a", 2)]
        assert driver.counters["future"] == 1


def test_a_selector_that_gives_no_time_is_named_with_the_users_line() -> None:
    builder = StreamBuilder("wrong")
    events = builder.source("events", serdes.json)
    events.select_timestamp(lambda event: event["at"]).sink("out", serdes.json)
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.input("events", serdes.json)
        with pytest.raises(UserCodeError, match=r"'select_timestamp-events'[^~]*test_sources\.py"):
            source.send({"key": "a"})


def test_records_without_a_selected_time_are_skipped_where_the_operator_says_so() -> None:
    with TopologyTestDriver(selected(on_error="skip"), start=START) as driver:
        source = driver.input("events", serdes.json)
        with driver.batch():
            for value in (event("a", 1), {"key": "a"}, {"key": "a", "at": "noon"}, event("a", 2)):
                source.send(value)
        source.send(event("b", 12))
        assert results(driver) == [("a", 2)]
        assert driver.counters["skipped"] == 2


def test_a_selected_time_has_a_zone() -> None:
    builder = StreamBuilder("naive")
    events = builder.source("events", serdes.json)
    events.select_timestamp(lambda _: datetime(2024, 1, 1)).sink("out", serdes.json)  # noqa: DTZ001
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(UserCodeError, match="no time zone"),
    ):
        driver.input("events", serdes.json).send({})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"allowed_lateness": timedelta(-1)}, "allowed_lateness .* is -1 day"),
        ({"allowed_lateness": None}, "allowed_lateness .* is None"),
        ({"idle_timeout": 5}, "idle_timeout .* is 5"),
        ({"start": "newest"}, "start='newest'"),
        ({"start": datetime(2024, 1, 1)}, "time zone"),  # noqa: DTZ001
        ({"start": {0: -1}}, "start="),
        ({"timestamp": "born"}, "timestamp"),
        ({"timestamp": lambda key, value: 0}, "timestamp"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        StreamBuilder("job").source("events", serdes.json, **options)


@pytest.mark.parametrize("topics", [[], ["a", "a"]])
def test_topics_are_named_once(topics: list[str]) -> None:
    with pytest.raises(TopologyError, match="name at least one topic, and each once"):
        StreamBuilder("job").source(topics, serdes.json)


EVENTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.integers(0, 1)), max_size=30
)


def outcome(topology: Topology, events: list[tuple[str, int, int]], cuts: set[int]) -> object:
    """Send events to their queues, with a batch ending at each cut; give what came of them."""
    with TopologyTestDriver(topology, start=START, queues={"events": 2}) as driver:
        for first, last in pairwise(sorted({0, len(events), *cuts})):
            with driver.batch():
                for key, seconds, queue in events[first:last]:
                    send(driver, [(key, seconds)], queue=queue)
        return sorted(results(driver)), driver.state("window").all()


@settings(max_examples=60, deadline=None)
@given(events=EVENTS, cuts=st.sets(st.integers(0, 30)), select=st.booleans())
def test_times_do_not_depend_on_how_batches_are_cut(
    events: list[tuple[str, int, int]], cuts: set[int], select: bool
) -> None:
    topology = selected() if select else windows(allowed_lateness=5 * SECOND)
    cuts = {cut for cut in cuts if cut <= len(events)}
    assert outcome(topology, events, cuts) == outcome(topology, events, set())
