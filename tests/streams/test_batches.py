"""``for_each_batch`` and ``sink_dataframe`` in the front door and in the test driver."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from headrace import (
    BatchRecords,
    BatchToken,
    Record,
    StreamBuilder,
    TopologyError,
    TopologyTestDriver,
    serdes,
    tumbling,
)
from headrace.columns import col
from headrace.errors import StateError

Calls = list[tuple[BatchToken, list[Record[Any, Any]]]]


@dataclass
class Order:
    item: str
    price: int


def test_function_gets_each_batch_with_its_token() -> None:
    calls: Calls = []
    builder = StreamBuilder("orders")
    words = builder.source("words", serdes.string)
    words.key_by(str.lower).count().to_stream().for_each_batch(
        lambda records, token: calls.append((token, list(records))), name="counts"
    )
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.input("words", serdes.string)
        with driver.batch():
            source.pipe(["a", "b", "A"])
        source.send("b", headers={"from": "test"})
    assert [token for token, _ in calls] == [BatchToken("orders", 1), BatchToken("orders", 2)]
    found = [sorted((record.key, record.value) for record in records) for _, records in calls]
    assert found == [[("a", 2), ("b", 1)], [("b", 2)]]


def test_batch_without_records_makes_no_call() -> None:
    calls: Calls = []
    builder = StreamBuilder("job")
    words = builder.source("words", serdes.string)
    words.where(lambda word: word > "b").for_each_batch(
        lambda records, token: calls.append((token, list(records)))
    )
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("words", serdes.string).pipe(["a", "c", "b"])
    assert [(token.batch, records[0].value) for token, records in calls] == [(2, "c")]


def test_values_come_back_as_they_were() -> None:
    builder = StreamBuilder("job")
    odd: list[Any] = [None, "", b"", {"a": (1, Decimal("0.10"))}, 2**70]
    numbers = builder.source("numbers", serdes.int, name="numbers")
    numbers.map(lambda _, n: ((n, "key"), odd[n])).for_each_batch(lambda *_: None, name="each")
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("numbers", serdes.int).pipe(range(5))
        records = [record for _, batch in driver.batches("each") for record in batch]
    assert [record.value for record in records] == odd
    assert [record.key for record in records] == [(n, "key") for n in range(5)]


def test_empty_text_is_no_missing_value() -> None:
    builder = StreamBuilder("job")
    words = builder.source("words", serdes.string)
    words.map_values(or_none, serde=serdes.string).for_each_batch(lambda *_: None, name="each")
    with TopologyTestDriver(builder.build()) as driver:
        with driver.batch():
            driver.input("words", serdes.string).pipe(["", "-", "a"])
        ((_, records),) = driver.batches("each")
    assert [record.value for record in records] == ["", None, "a"]
    assert records.to_arrow().column("value").to_pylist() == ["", None, "a"]


def test_headers_come_with_the_records_that_have_them() -> None:
    builder = StreamBuilder("job")
    words = builder.source("words", serdes.string)
    words.key_by(lambda word: (word, 1)).for_each_batch(lambda *_: None, name="each")
    counts = words.key_by(str.lower).window(tumbling(timedelta(seconds=10))).count()
    counts.to_stream().for_each_batch(lambda *_: None, name="windows")
    start = datetime(2025, 1, 1, tzinfo=UTC)
    with TopologyTestDriver(builder.build(), start=start) as driver:
        source = driver.input("words", serdes.string)
        with driver.batch():
            source.send("a", time=start)
            source.send("b", key="k", headers={"from": "web", "x": "1"}, time=start)
            source.send("c", time=start + timedelta(seconds=30))
        records = driver.batches("each")[0][1]
        windows = driver.batches("windows")[0][1]
    expected: list[dict[str, str]] = [{}, {"from": "web", "x": "1"}, {}]
    assert sorted((record.value, dict(record.headers)) for record in records) == list(
        zip("abc", expected, strict=True)
    )
    table = records.to_arrow().sort_by("time").to_pylist()
    assert sorted(row["headers"] for row in table) == [[], [], [("from", "web"), ("x", "1")]]
    assert all(record.headers["window_start_time"] for record in windows)


def or_none(word: str) -> Any:
    return None if word == "-" else word


def test_columns_are_typed_by_schema_and_key() -> None:
    builder = StreamBuilder("job")
    orders = builder.source("orders", serdes.json(Order))
    orders.key_by(price_of).sink_dataframe(lambda *_: None, name="typed")
    orders.select(col("item"), double=col("price") * 2).sink_dataframe(lambda *_: None, name="some")
    orders.map_values(lambda order: [order.item]).sink_dataframe(lambda *_: None, name="open")
    orders.for_each_batch(lambda *_: None, serde=serdes.pickle, name="bytes")
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("orders", serdes.json(Order)).send(Order("tea", 3), headers={"from": "web"})
        tables = {
            name: driver.batches(name)[0][1].to_arrow()
            for name in ("typed", "some", "open", "bytes")
        }
    typed = tables["typed"].to_pylist()[0]
    assert (typed["key"], typed["value"]) == (3, {"item": "tea", "price": 3})
    assert dict(typed["headers"]) == {"from": "web"}
    assert tables["some"].column("value").to_pylist() == [{"item": "tea", "double": 6}]
    assert tables["open"].column("value").to_pylist() == ['["tea"]']
    assert str(tables["bytes"].schema.field("value").type) == "binary"


def price_of(order: Order) -> int:
    return order.price


def test_writers_are_not_called_without_spark() -> None:
    builder = StreamBuilder("job")
    builder.source("words", serdes.string).sink_dataframe(lambda frame, token: 1 / 0, name="files")
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("words", serdes.string).send("a")
        assert [token.batch for token, _ in driver.batches("files")] == [1]
        with pytest.raises(StateError, match="it has files"):
            driver.batches("file")


def test_what_a_function_raises_reaches_the_test() -> None:
    def refuse(records: BatchRecords[None, str], token: BatchToken) -> None:
        message = f"{token}: {len(records)}"
        raise ValueError(message)

    builder = StreamBuilder("job")
    builder.source("words", serdes.string).for_each_batch(refuse)
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(ValueError, match="job-1: 1"),
    ):
        driver.input("words", serdes.string).send("a")


def test_writer_may_hold_what_cannot_be_sent_to_workers() -> None:
    lock = threading.Lock()
    builder = StreamBuilder("job")
    words = builder.source("words", serdes.string)
    words.sink_dataframe(lambda frame, token: lock.acquire())
    builder.build()
    words.for_each_batch(lambda records, token: lock.acquire(), name="bad")
    with pytest.raises(TopologyError, match=r"bad.*cannot be sent"):
        builder.build()


def test_function_with_other_parameters_is_refused() -> None:
    words = StreamBuilder("job").source("words", serdes.string)
    with pytest.raises(TopologyError, match=r"function\(records, token\)"):
        words.for_each_batch(lambda records: None)  # type: ignore[arg-type, misc]
    with pytest.raises(TopologyError, match=r"function\(frame, token\)"):
        words.sink_dataframe(lambda frame: None)  # type: ignore[arg-type, misc]


def test_values_without_a_serde_are_refused() -> None:
    words = StreamBuilder("job").source("words", serdes.string)
    things = words.map_values(thing_of)
    with pytest.raises(TopologyError, match="writes them to its topic"):
        things.for_each_batch(lambda records, token: None)


def thing_of(word: str) -> threading.Event:
    del word
    return threading.Event()


def test_own_topics_are_named_and_belong_to_the_job() -> None:
    builder = StreamBuilder("job")
    words = builder.source("words", serdes.string)
    words.for_each_batch(lambda records, token: None, name="each")
    described = builder.build().describe()
    assert "job-each-batchTopic  written by each" in described
    assert "job-each-doneTopic   batches done by each" in described
    words.sink("job-each-doneTopic", serdes.string)
    with pytest.raises(TopologyError, match="belongs to the job"):
        builder.build()
