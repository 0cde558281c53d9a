"""Records that fail: the policies of operators and sinks, and what a dead letter says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import serdes
from headrace.errors import TopologyError, UserCodeError
from headrace.runtime import TopologyTestDriver
from headrace.streams import Stream, StreamBuilder
from headrace.topology import Accumulator, ErrorPolicy, Topology

Build = Callable[[Stream[Any, Any], ErrorPolicy], Stream[Any, Any]]

VALUES = [4, 0, 2, "x", 8]


def inverse(value: float) -> float:
    return 8 / value


def keyed_inverse(key: object, value: float) -> tuple[object, float]:
    return key, 8 / value


def inverses(value: float) -> Iterator[float]:
    yield 8 / value


def keyed_inverses(key: object, value: float) -> Iterator[tuple[object, float]]:
    yield key, 8 / value


STATELESS: dict[str, Build] = {
    "map": lambda s, policy: s.map(keyed_inverse, name="op", on_error=policy),
    "map_values": lambda s, policy: s.map_values(inverse, name="op", on_error=policy),
    "flat_map": lambda s, policy: s.flat_map(keyed_inverses, name="op", on_error=policy),
    "flat_map_values": lambda s, policy: s.flat_map_values(inverses, name="op", on_error=policy),
    "where": lambda s, policy: s.where(inverse, name="op", on_error=policy).map_values(inverse),
    "peek": lambda s, policy: s.peek(inverse, name="op", on_error=policy).map_values(inverse),
    "key_by": lambda s, policy: s.key_by(inverse, name="op", on_error=policy).map_values(inverse),
}


def topology(build: Build, policy: ErrorPolicy) -> Topology:
    builder = StreamBuilder("job")
    build(builder.source("in", serdes.json), policy).sink("out", serdes.json)
    return builder.build()


def run(driver: TopologyTestDriver, values: list[Any]) -> list[Any]:
    with driver.batch():
        for value in values:
            driver.input("in", serdes.json).send(value)
    return [record.value for record in driver.output("out", serdes.json).read_all()]


@pytest.mark.parametrize("kind", STATELESS)
def test_one_bad_record_drops_no_other_of_its_batch_defect_18(kind: str) -> None:
    with TopologyTestDriver(topology(STATELESS[kind], "skip")) as driver:
        assert sorted(run(driver, VALUES)) == [1, 2, 4]
        assert (driver.counters["skipped"], driver.counters["skipped:op"]) == (2, 2)


@pytest.mark.parametrize("kind", STATELESS)
def test_dead_letter_is_the_original_message_with_place_operator_and_line(kind: str) -> None:
    with TopologyTestDriver(topology(STATELESS[kind], "topic:dead")) as driver:
        assert sorted(run(driver, VALUES)) == [1, 2, 4]
        zero, text = driver.output("dead", serdes.json).read_all()
        assert (zero.value, text.value) == (0, "x")
        headers = zero.headers
        assert headers["HEADRACE_DEAD_JOB"] == "job"
        assert headers["HEADRACE_DEAD_OPERATOR"] == "op"
        place = [headers[f"HEADRACE_DEAD_{name}"] for name in ("TOPIC", "QUEUE", "OFFSET")]
        assert place == ["in", "0", "1"]
        assert headers["HEADRACE_DEAD_EXCEPTION"] == "ZeroDivisionError"
        assert headers["HEADRACE_DEAD_REASON"] == "ZeroDivisionError: division by zero"
        assert "test_record_errors.py" in headers["HEADRACE_DEAD_LINE"]
        assert "8 / value" in headers["HEADRACE_DEAD_LINE"]
        assert text.headers["HEADRACE_DEAD_EXCEPTION"] == "TypeError"
        assert driver.counters["dead_lettered:op"] == 2


@pytest.mark.parametrize("kind", STATELESS)
def test_failing_is_the_default_and_names_the_line(kind: str) -> None:
    with (
        TopologyTestDriver(topology(STATELESS[kind], "fail")) as driver,
        pytest.raises(UserCodeError, match=r"queue 0, offset 1.*division by zero\n  at .*8 / val"),
    ):
        run(driver, VALUES)


def test_stop_iteration_is_a_failure_and_no_silent_end() -> None:
    def first(values: list[int]) -> int:
        return next(iter(values))

    def build(policy: ErrorPolicy) -> Topology:
        return topology(lambda s, p: s.map_values(first, on_error=p), policy)

    with TopologyTestDriver(build("skip")) as driver:
        assert run(driver, [[1], [], [3], []]) == [1, 3]
    with (
        TopologyTestDriver(build("fail")) as driver,
        pytest.raises(UserCodeError, match="offset 1"),
    ):
        run(driver, [[1], [], [3]])


def test_result_that_is_no_pair_follows_the_policy() -> None:
    def odd(key: object, value: int) -> Any:
        return (key, value) if value else value

    with TopologyTestDriver(topology(lambda s, p: s.map(odd, on_error=p), "skip")) as driver:
        assert run(driver, [1, 0, 2]) == [1, 2]


def test_message_goes_to_the_dead_letters_of_an_operator_once() -> None:
    def build(stream: Stream[Any, Any], policy: ErrorPolicy) -> Stream[Any, Any]:
        return stream.flat_map_values(list).map_values(inverse, name="op", on_error=policy)

    with TopologyTestDriver(topology(build, "topic:dead")) as driver:
        assert run(driver, [[1, 0, 2, 0], [0], [4]]) == [8, 4, 2]
        dead = driver.output("dead", serdes.json).read_all()
        assert [record.value for record in dead] == [[1, 0, 2, 0], [0]]
        assert driver.counters["dead_lettered:op"] == 3


class Total(Accumulator[Any, float]):
    def __init__(self) -> None:
        self.total = 0.0

    def add(self, value: Any) -> None:
        self.total += 8 / value["n"]

    def result(self) -> float:
        return self.total


class MergedTotal(Total):
    def merge(self, other: Any) -> None:
        self.total += other.total


def number(value: dict[str, int]) -> float:
    return 8 / value["n"]


def lesser(left: Any, right: Any) -> Any:
    return min(left, right, key=lambda value: 8 / value["n"])


@pytest.mark.parametrize("emit", ["update", "each"])
@pytest.mark.parametrize("kind", ["sum", "aggregate", "merged", "reduce"])
def test_aggregate_goes_on_behind_a_bad_record_in_a_later_stage(kind: str, emit: Any) -> None:
    builder = StreamBuilder("job")
    grouped = builder.source("in", serdes.json).key_by(lambda value: value["k"])
    given: dict[str, Any] = {"name": "op", "emit": emit, "on_error": "topic:dead"}
    tables: dict[str, Callable[[], Any]] = {
        "sum": lambda: grouped.sum(number, **given),
        "aggregate": lambda: grouped.aggregate(Total, **given),
        "merged": lambda: grouped.aggregate(MergedTotal, **given),
        "reduce": lambda: grouped.reduce(lesser, serde=serdes.json, **given),
    }
    tables[kind]().to_stream().sink("out", serdes.json)
    sent = [{"k": "a", "n": 4}, {"k": "b", "n": 1}, {"k": "a", "n": 0}, {"k": "a", "n": 8}]
    with TopologyTestDriver(builder.build()) as driver:
        with driver.batch():
            for value in sent:
                driver.input("in", serdes.json).send(value, key="mine", headers={"h": "1"})
        last = {r.key: r.value for r in driver.output("out", serdes.json).read_all()}
        assert last == (
            {"a": {"k": "a", "n": 8}, "b": sent[1]} if kind == "reduce" else {"a": 3.0, "b": 8.0}
        )
        (dead,) = driver.output("dead", serdes.json).read_all()
        assert (dead.key, dead.value, dead.headers["h"]) == ("mine", sent[2], "1")
        assert dead.headers["HEADRACE_DEAD_OFFSET"] == "2"
        assert "8 / value" in dead.headers["HEADRACE_DEAD_LINE"]


def test_key_without_any_good_record_keeps_no_state() -> None:
    builder = StreamBuilder("job")
    grouped = builder.source("in", serdes.json).key_by(lambda value: value["k"])
    grouped.aggregate(Total, name="op", on_error="skip").to_stream().sink("out", serdes.json)
    with TopologyTestDriver(builder.build()) as driver:
        assert run(driver, [{"k": "a", "n": 0}, {"k": "b", "n": 0}, {"k": "b", "n": 2}]) == [4.0]
        assert driver.state("op").get("a") is None


def test_sink_that_cannot_write_a_value_goes_on_with_the_rest() -> None:
    builder = StreamBuilder("job")
    values = builder.source("in", serdes.json).map_values(lambda v: object() if v == "odd" else v)
    values.sink("out", serdes.json, name="op", on_error="topic:dead")
    with TopologyTestDriver(builder.build()) as driver:
        assert run(driver, [1, "odd", 2]) == [1, 2]
        (dead,) = driver.output("dead", serdes.json).read_all()
        assert dead.value == "odd"
        assert dead.headers["HEADRACE_DEAD_OPERATOR"] == "op"


def test_key_that_cannot_be_routed_follows_the_policy_of_the_operator_that_needs_it() -> None:
    builder = StreamBuilder("job")
    keys = builder.source("in", serdes.json).key_by(lambda v: object() if v == "odd" else v)
    total = keys.reduce(lambda a, b: f"{a}{b}", name="op", serde=serdes.string, on_error="skip")
    total.to_stream().sink("out", serdes.json)
    with TopologyTestDriver(builder.build()) as driver:
        assert run(driver, ["a", "odd", "b", "a"]) == ["b", "aa"]
        assert driver.counters["skipped:op"] == 1


def test_source_counts_by_its_own_name_and_its_dead_letters_can_fail_again() -> None:
    builder = StreamBuilder("job")
    builder.source("in", serdes.json, on_error="topic:dead").sink("out", serdes.json)
    again = StreamBuilder("again")
    again.source("dead", serdes.json, on_error="topic:buried").sink("out", serdes.json)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("in", serdes.json).send_bytes(b"{", headers={"h": "1"})
        (dead,) = driver.output("dead", serdes.bytes).read_all()
        assert driver.counters["dead_lettered:source-in"] == 1
    with TopologyTestDriver(again.build()) as driver:
        driver.input("dead", serdes.json).send_bytes(dead.value, headers=dead.headers)
        (buried,) = driver.output("buried", serdes.bytes).read_all()
        assert (buried.value, buried.headers["h"]) == (b"{", "1")
        assert buried.headers["HEADRACE_DEAD_JOB"] == "again"
        assert buried.headers["HEADRACE_DEAD_TOPIC"] == "dead"


def test_policies_are_checked_and_shown() -> None:
    shown = topology(STATELESS["map_values"], "topic:dead").describe()
    assert "on_error topic:dead" in shown
    assert "dead letters of op" in shown
    with pytest.raises(TopologyError, match=r"on_error='ignore'"):
        topology(STATELESS["map_values"], "ignore")
    with pytest.raises(TopologyError, match="feed itself"):
        topology(STATELESS["map_values"], "topic:in")


@pytest.mark.parametrize("policy", ["fail", "skip", "topic:dead"])
def test_a_lack_of_memory_is_no_record_s_fault(policy: ErrorPolicy) -> None:
    def greedy(value: float) -> float:
        raise MemoryError

    def build(stream: Stream[Any, Any], policy: ErrorPolicy) -> Stream[Any, Any]:
        return stream.map_values(greedy, name="op", on_error=policy)

    with (
        TopologyTestDriver(topology(build, policy)) as driver,
        pytest.raises(MemoryError),
    ):
        run(driver, [1])
