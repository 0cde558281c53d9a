"""The test driver: the same processors as on Spark, one record or one batch at a time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from headrace import serdes
from headrace.errors import (
    DeserializationError,
    SerializationError,
    StateError,
    TopicNotFoundError,
    UserCodeError,
)
from headrace.runtime import TopologyTestDriver
from headrace.streams import StreamBuilder
from headrace.topology import Accumulator, Topology


def word_count() -> Topology:
    builder = StreamBuilder("word-count")
    (
        builder.source("lines", serdes.string)
        .flat_map_values(lambda line: line.lower().split())
        .key_by(lambda word: word)
        .count()
        .to_stream()
        .sink("counts", serdes.json)
    )
    return builder.build()


def test_update_gives_the_latest_value_of_each_changed_key_once_per_batch() -> None:
    with TopologyTestDriver(word_count()) as driver:
        lines, counts = driver.input("lines", serdes.string), driver.output("counts", serdes.json)
        lines.send("to be or not to be")
        assert {r.key: r.value for r in counts.read_all()} == {"to": 2, "be": 2, "or": 1, "not": 1}
        with driver.batch():
            lines.send("to")
            lines.send("be to")
        assert sorted((r.key, r.value) for r in counts.read_all()) == [("be", 3), ("to", 4)]
        assert driver.state("count-lines").get("to") == 4
        assert driver.state("count-lines").get("nobody") is None


def test_result_has_the_time_of_the_record_that_caused_it() -> None:
    with TopologyTestDriver(word_count()) as driver:
        lines, counts = driver.input("lines", serdes.string), driver.output("counts", serdes.json)
        moment = datetime(2025, 5, 5, tzinfo=UTC)
        with driver.batch():
            lines.send("a b", time=moment)
            lines.send("a", time=moment + timedelta(seconds=3))
        times = {r.key: r.time for r in counts.read_all()}
        assert times == {"a": moment + timedelta(seconds=3), "b": moment}


def test_clock_moves_only_when_the_test_moves_it() -> None:
    with TopologyTestDriver(word_count()) as driver:
        before = driver.now
        driver.input("lines", serdes.string).send("a")
        driver.advance_wall_clock(timedelta(minutes=5))
        driver.input("lines", serdes.string).send("a")
        first, second = driver.output("counts", serdes.json).read_all()
        assert (first.time, second.time) == (before, before + timedelta(minutes=5))


@pytest.mark.parametrize(
    "keys",
    [[1, 1.0, True, "1"], ["", 0], [("a", 1), ("a", 1.0)], [{"x": 1, "y": 2}, {"x": 2}]],
)
def test_keys_that_differ_in_type_are_counted_apart(keys: list[Any]) -> None:
    builder = StreamBuilder("keys")
    (
        builder.source("in", serdes.plain)
        .key_by(lambda value: value)
        .count()
        .to_stream()
        .sink("out", serdes.json)
    )
    with TopologyTestDriver(builder.build()) as driver:
        with driver.batch():
            for key in keys * 2:
                driver.input("in", serdes.plain).send(key)
        assert [r.value for r in driver.output("out", serdes.json).read_all()] == [2] * len(keys)


def test_records_without_a_key_are_skipped_and_counted() -> None:
    """Defect 13: a null key lost itself and the rest of its batch."""
    builder = StreamBuilder("keyless")
    keyed = builder.source("in", serdes.string).key_by(lambda word: word or None)
    keyed.count().to_stream().sink("counts", serdes.json)
    keyed.reduce(max, emit="each").to_stream().sink("words", serdes.string)
    with TopologyTestDriver(builder.build()) as driver:
        with driver.batch():
            for word in ("a", "", "a"):
                driver.input("in", serdes.string).send(word)
        (count,) = driver.output("counts", serdes.json).read_all()
        assert (count.key, count.value) == ("a", 2)
        assert len(driver.output("words", serdes.string).read_all()) == 2
        assert driver.counters["null_keys"] == 2


def test_equal_dicts_are_one_key_whatever_their_order() -> None:
    builder = StreamBuilder("dicts")
    source = builder.source("in", serdes.json)
    source.key_by(lambda value: value).count().to_stream().sink("out", serdes.json)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("in", serdes.json).send({"a": 1, "b": 2})
        driver.input("in", serdes.json).send({"b": 2, "a": 1})
        assert [r.value for r in driver.output("out", serdes.json).read_all()] == [1, 2]


def test_two_counts_in_one_job_do_not_share_state() -> None:
    builder = StreamBuilder("two")
    words = builder.source("in", serdes.string).key_by(lambda word: word)
    words.count(name="first").to_stream().sink("a", serdes.json)
    words.where(lambda word: word != "x").count(name="second").to_stream().sink("b", serdes.json)
    with TopologyTestDriver(builder.build()) as driver:
        for word in ("x", "y", "y"):
            driver.input("in", serdes.string).send(word)
        assert [(r.key, r.value) for r in driver.output("a", serdes.json).read_all()] == [
            ("x", 1),
            ("y", 1),
            ("y", 2),
        ]
        assert driver.state("second").all() == {"y": 2}


def test_sums_do_not_overflow() -> None:
    builder = StreamBuilder("sums")
    numbers = builder.source("in", serdes.json)
    numbers.key_by(lambda _: "all").sum().to_stream().sink("out", serdes.plain)
    with TopologyTestDriver(builder.build()) as driver:
        for number in (2**63 - 1, 2**63 - 1, 2**70):
            driver.input("in", serdes.plain).send_bytes(str(number).encode())
        last = driver.output("out", serdes.plain).read_all()[-1]
        assert last.value == 2 * (2**63 - 1) + 2**70


class Joined(Accumulator[str, str]):
    """Joins texts in the order of arrival; cannot merge."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add(self, value: str) -> None:
        self.texts.append(value)

    def result(self) -> str:
        return ",".join(self.texts)


def test_accumulator_without_merge_sees_the_records_in_order() -> None:
    builder = StreamBuilder("joined")
    texts = builder.source("in", serdes.string)
    texts.key_by(lambda text: text[0]).aggregate(Joined()).to_stream().sink("out", serdes.string)
    with TopologyTestDriver(builder.build()) as driver:
        with driver.batch():
            for text in ("a1", "b1", "a2", "a3"):
                driver.input("in", serdes.string).send(text)
        driver.input("in", serdes.string).send("b2")
        results = [(r.key, r.value) for r in driver.output("out", serdes.string).read_all()]
        assert results == [("b", "b1"), ("a", "a1,a2,a3"), ("b", "b1,b2")]


def test_none_from_flat_map_gives_nothing() -> None:
    builder = StreamBuilder("none")
    maybe: Callable[[str], list[str] | None] = lambda text: [text, text] if text == "x" else None  # noqa: E731
    builder.source("in", serdes.string).flat_map_values(maybe).sink("out", serdes.string)  # type: ignore[arg-type]
    with TopologyTestDriver(builder.build()) as driver:
        for text in ("x", "y"):
            driver.input("in", serdes.string).send(text)
        assert [r.value for r in driver.output("out", serdes.string).read_all()] == ["x", "x"]


def test_nothing_is_kept_of_a_batch_that_fails() -> None:
    builder = StreamBuilder("fails")
    numbers = builder.source("in", serdes.string).map_values(lambda text: 10 // int(text))
    numbers.key_by(lambda _: "all").sum().to_stream().sink("out", serdes.json)
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.input("in", serdes.string)
        source.send("5")
        with pytest.raises(UserCodeError) as caught, driver.batch():  # noqa: PT012 - one batch
            source.send("2")
            source.send("0")
        message = str(caught.value)
        assert "operator 'map_values-in'" in message
        assert "ZeroDivisionError" in message
        assert "test_driver.py" in message
        source.send("10")
        assert [r.value for r in driver.output("out", serdes.json).read_all()] == [2, 3]


def test_message_that_cannot_be_read_fails_or_is_skipped_or_goes_to_a_topic() -> None:
    def driver_with(policy: str) -> TopologyTestDriver:
        builder = StreamBuilder("policies")
        builder.source("in", serdes.json, on_error=policy).sink("out", serdes.json)
        return TopologyTestDriver(builder.build())

    with driver_with("fail") as driver, pytest.raises(DeserializationError, match=r"b'\{'"):
        driver.input("in", serdes.json).send_bytes(b"{")
    with driver_with("skip") as driver:
        driver.input("in", serdes.json).send_bytes(b"{")
        assert driver.counters["skipped"] == 1
    with driver_with("topic:dead") as driver:
        driver.input("in", serdes.json).send_bytes(b"{", key="k")
        record = driver.output("dead", serdes.bytes).read()
        assert (record.key, record.value) == ("k", b"{")
        assert record.headers["HEADRACE_DEAD_TOPIC"] == "in"
        assert "DecodeError" in record.headers["HEADRACE_DEAD_REASON"]


def test_value_that_the_serializer_cannot_write_names_the_sink() -> None:
    builder = StreamBuilder("write")
    builder.source("in", serdes.string).map_values(lambda text: {1, text}).sink("out", serdes.int)  # type: ignore[arg-type]
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(SerializationError, match="operator 'sink-out' cannot write a value"),
    ):
        driver.input("in", serdes.string).send("a")


def test_headers_pass_through_a_stateless_job() -> None:
    builder = StreamBuilder("headers")
    builder.source("in", serdes.string).map_values(str.upper).sink("out", serdes.string)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("in", serdes.string).send("a", headers={"trace": "7"})
        assert driver.output("out", serdes.string).read().headers == {"trace": "7"}


def test_wrong_names_are_refused_with_the_right_ones() -> None:
    with TopologyTestDriver(word_count()) as driver:
        with pytest.raises(TopicNotFoundError, match="it reads lines"):
            driver.input("line", serdes.string)
        with pytest.raises(StateError, match="it has count-lines"):
            driver.state("count")


def test_sums_of_decimals_are_exact_and_of_floats_are_floats() -> None:
    builder = StreamBuilder("exact")
    numbers = builder.source("in", serdes.plain)
    numbers.key_by(lambda number: type(number).__name__).sum().to_stream().sink("out", serdes.plain)
    with TopologyTestDriver(builder.build()) as driver:
        with driver.batch():
            for number in (Decimal("1e30"), 0.5, Decimal("1e-30"), 2.5, 1, 2):
                driver.input("in", serdes.plain).send(number)
        sums = {r.key: r.value for r in driver.output("out", serdes.plain).read_all()}
    exact = Decimal("1000000000000000000000000000000.000000000000000000000000000001")
    assert sums == {"Decimal": exact, "float": 3.0, "int": 3}


class Picky(Accumulator[int, int]):
    """Refuses to merge what it does not like."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, value: int) -> None:
        self.total += value

    def merge(self, other: Picky) -> None:
        if other.total == 13:
            message = "unlucky"
            raise ValueError(message)
        self.total += other.total

    def result(self) -> int:
        return self.total


def test_accumulator_that_raises_is_named() -> None:
    builder = StreamBuilder("picky")
    numbers = builder.source("in", serdes.plain)
    numbers.key_by(lambda _: "all").aggregate(Picky()).to_stream().sink("out", serdes.plain)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("in", serdes.plain).send(1)
        with pytest.raises(UserCodeError, match=r"ValueError: unlucky\n  at .*test_driver.py"):
            driver.input("in", serdes.plain).send(13)


def test_value_that_does_not_fit_the_shuffle_names_the_operator() -> None:
    def number(text: str) -> int:
        return text  # type: ignore[return-value]

    builder = StreamBuilder("shuffle")
    keyed = builder.source("in", serdes.string).map_values(number).key_by(lambda _: "all")
    keyed.reduce(lambda a, b: a + b).to_stream().sink("out", serdes.json)
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(SerializationError, match="operator 'reduce-in' cannot write what it shuff"),
    ):
        driver.input("in", serdes.string).send("a")


def test_key_that_is_not_plain_data_names_the_operator() -> None:
    builder = StreamBuilder("key")
    keyed = builder.source("in", serdes.string).key_by(lambda text: object())
    keyed.count().to_stream().sink("out", serdes.json)
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(SerializationError, match="operator 'count-in' cannot write a key"),
    ):
        driver.input("in", serdes.string).send("a")


def test_error_without_a_line_of_the_user_names_none() -> None:
    builder = StreamBuilder("texts")
    keyed = builder.source("in", serdes.string).key_by(lambda _: "all")
    keyed.sum().to_stream().sink("out", serdes.json)  # type: ignore[call-arg]
    with TopologyTestDriver(builder.build()) as driver, pytest.raises(UserCodeError) as caught:
        driver.input("in", serdes.string).send("a")
    assert "operator 'sum-in' failed" in str(caught.value)
    assert "algebras.py" not in str(caught.value)
