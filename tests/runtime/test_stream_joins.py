"""Joins of two streams without a window: the last value of each side meets."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import StreamBuilder, serdes
from headrace.errors import UserCodeError
from headrace.runtime import TopologyTestDriver
from tests.runtime.meetings import START, Event, both, cut, feed, given, joined, ms, results

TABLE = [
    Event("left", "k1", 1, 1),
    Event("left", "k2", 2, 2),
    Event("right", "k2", 20, 3),
    Event("right", "k3", 30, 4),
    Event("left", "k2", 3, 5),
    Event("right", "k2", 21, 6),
]
INNER = [(["k2", 2, 20], 3), (["k2", 3, 20], 5), (["k2", 3, 21], 6)]
LEFT = [(["k1", 1, None], 1), (["k2", 2, None], 2), *INNER]
OUTER = [*LEFT[:3], (["k3", None, 30], 4), *INNER[1:]]


@pytest.mark.parametrize("size", [1, 2, 6])
@pytest.mark.parametrize(
    ("kind", "expected"), [("join", INNER), ("left_join", LEFT), ("outer_join", OUTER)]
)
def test_last_values_meet(kind: str, expected: list[Any], size: int) -> None:
    topology = joined(lambda left, right: getattr(left, kind)(right, both))
    assert sorted(results(topology, cut(TABLE, [size]), partitions=1), key=repr) == sorted(
        expected, key=repr
    )


def test_results_come_in_the_order_of_arrival() -> None:
    topology = joined(lambda left, right: left.outer_join(right, both))
    assert results(topology, [TABLE], partitions=1) == OUTER


def test_time_of_a_pair_is_that_of_the_later_record() -> None:
    topology = joined(lambda left, right: left.join(right, both))
    events = [Event("left", "k", 1, 900), Event("right", "k", 2, 100)]
    assert results(topology, [events]) == [(["k", 1, 2], 900)]


@pytest.mark.parametrize("longer", ["left", "right"])
def test_defect_8_a_longer_side_loses_nothing(longer: str) -> None:
    def make(left: Any, right: Any) -> Any:
        sides = {"left": left, "right": right}
        for _ in range(3):
            sides[longer] = sides[longer].map(lambda key, value: (key, value))
        return sides["left"].join(sides["right"]).apply(both)

    assert results(joined(make), cut(TABLE, [1])) == INNER


def test_a_stream_meets_itself() -> None:
    builder = StreamBuilder("self")
    people = builder.source("people", serdes.json)
    (
        people.join(people)
        .left_key(lambda person: person["boss"])
        .right_key(lambda person: person["name"])
        .apply(lambda person, boss: [person["name"], boss["name"]])
        .sink("out", serdes.json)
    )
    with TopologyTestDriver(builder.build()) as driver:
        people_in = driver.input("people", serdes.json)
        people_in.send({"name": "Ada", "boss": "Ada"})
        people_in.send({"name": "Bob", "boss": "Ada"})
        people_in.send({"name": "Ada", "boss": "Bob"})
        found = [record.value for record in driver.output("out", serdes.json).read_all()]
    assert found[0] == ["Ada", "Ada"]
    assert found[1] == ["Bob", "Ada"]
    assert sorted(found[2:]) == [["Ada", "Bob"], ["Bob", "Ada"]]


def test_three_streams_meet() -> None:
    builder = StreamBuilder("three")
    sources = [
        builder.source(topic, serdes.with_key(serdes.json)) for topic in ("one", "two", "three")
    ]
    first = sources[0].join(sources[1], lambda a, b: [a, b])
    first.left_join(sources[2], lambda ab, c: [*ab, c]).sink("out", serdes.json)
    topology = builder.build()
    assert len(topology.plan.stages) == 2
    with TopologyTestDriver(topology) as driver:
        for topic in ("one", "two", "three", "one"):
            driver.input(topic, serdes.json).send(topic, key="k")
        found = [record.value for record in driver.output("out", serdes.json).read_all()]
    assert found == [["one", "two", None], ["one", "two", "three"], ["one", "two", "three"]]


def test_defect_13_records_without_a_key_meet_nothing() -> None:
    events = [Event("left", None, 1, 1), Event("right", None, 2, 2)]  # type: ignore[arg-type]
    inner = joined(lambda left, right: left.join(right, both))
    with TopologyTestDriver(inner, start=START) as driver:
        feed(driver, [events])
        assert given(driver) == []
        assert driver.counters["null_keys"] == 2
        assert len(driver.state("join-left-right")) == 0
    outer = joined(lambda left, right: left.outer_join(right, both))
    assert results(outer, [events]) == [([None, 1, None], 1), ([None, None, 2], 2)]


def test_defect_12_a_key_may_hold_anything() -> None:
    events = [Event("left", "a&&b", 1, 1), Event("right", "a", 3, 2), Event("right", "a&&b", 2, 3)]
    topology = joined(lambda left, right: left.join(right, both))
    assert results(topology, [events]) == [(["a&&b", 1, 2], 3)]


def test_none_is_a_value_like_any_other() -> None:
    topology = joined(lambda left, right: left.join(right, both))
    events = [Event("left", "k", None, 1), Event("right", "k", 2, 2)]  # type: ignore[arg-type]
    assert results(topology, cut(events, [1])) == [(["k", None, 2], 2)]


def test_a_failing_joiner_is_named_with_its_record() -> None:
    topology = joined(lambda left, right: left.join(right, lambda a, b: a / b, name="share"))
    with pytest.raises(UserCodeError, match=r"operator 'share-joined' failed on the record at"):
        results(topology, [[Event("left", "k", 1, 1), Event("right", "k", 0, 2)]])


def test_an_inner_and_a_left_join_keep_each_side_once() -> None:
    builder = StreamBuilder("shared")
    left = builder.source("left", serdes.json)
    right = builder.source("right", serdes.json)
    steps = [("join", "inner-out"), ("left_join", "left-out")]
    for kind, topic in steps:
        (
            getattr(left, kind)(right)
            .left_key(lambda value: value["id"])
            .right_key(lambda value: value["of"])
            .within(ms(1000))
            .apply(lambda a, b: [a["id"], b and b["of"]])
            .sink(topic, serdes.json)
        )
    topology = builder.build()
    assert [operator.name for operator in topology.stateful] == ["join-left-right"]
    with TopologyTestDriver(topology, start=START) as driver:
        lefts, rights = driver.input("left", serdes.json), driver.input("right", serdes.json)
        lefts.send({"id": 1}, time=START)
        lefts.send({"id": 2}, time=START)
        rights.send({"of": 1}, time=START + ms(500))
        lefts.send({"id": 3}, time=START + ms(60_000))
        rights.send({"of": 4}, time=START + ms(60_000))
        outputs = [driver.output(topic, serdes.json).read_all() for _, topic in steps]
    assert [[record.value for record in output] for output in outputs] == [
        [[1, 1]],
        [[1, 1], [2, None]],
    ]
