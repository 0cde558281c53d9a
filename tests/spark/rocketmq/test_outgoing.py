from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headrace.client import MessageQueue
from headrace.errors import ConfigurationError, MessageRejectedError, TopicNotFoundError
from headrace.keys import encode_key, partition_of
from headrace.protocol.properties import decode_properties
from headrace.spark.rocketmq.writer import Outgoing, RowRouter

QUEUES = [MessageQueue("out", "broker-a", number) for number in range(4)]


def route(rows: dict[str, Any], topic: str | None = "out") -> list[Outgoing]:
    router = RowRouter(topic, lambda name: QUEUES if name == "out" else [], spread=0)
    return list(router.route(pa.table(rows)))


def bodies(parts: list[Outgoing]) -> dict[int, list[bytes]]:
    return {part.queue.queue_id: part.bodies.to_pylist() for part in parts}


def test_a_key_decides_the_queue_and_keeps_order() -> None:
    keys = [b"a", b"b", b"c", b"a", b"b"]
    values = [b"1", b"2", b"3", b"4", b"5"]
    found = bodies(route({"key": keys, "value": values}))
    wanted: dict[int, list[bytes]] = {}
    for key, value in zip(keys, values, strict=True):
        wanted.setdefault(partition_of(encode_key(key.decode()), 4), []).append(value)
    assert found == wanted


def test_text_and_bytes_of_the_same_key_go_to_one_queue() -> None:
    as_text = route({"key": pa.array(["ü"]), "value": [b""]})
    as_bytes = route({"key": pa.array(["ü".encode()]), "value": [b""]})
    assert as_text[0].queue == as_bytes[0].queue
    assert as_text[0].properties.equals(as_bytes[0].properties)


def test_rows_without_a_key_are_spread_evenly() -> None:
    found = bodies(route({"value": [b"%d" % number for number in range(8)]}))
    assert found == {0: [b"0", b"1"], 1: [b"2", b"3"], 2: [b"4", b"5"], 3: [b"6", b"7"]}


def test_single_rows_without_a_key_take_turns() -> None:
    router = RowRouter("out", lambda _: QUEUES, spread=0)
    row = pa.table({"value": [b"x"]})
    assert [next(router.route(row)).queue.queue_id for _ in range(5)] == [0, 1, 2, 3, 0]


def test_a_queue_number_wins_over_the_key() -> None:
    found = bodies(
        route({"key": ["a", "a"], "value": [b"1", b"2"], "queue": pa.array([2, None], pa.int32())})
    )
    assert found[2] == [b"1"]
    assert found[partition_of(encode_key("a"), 4)] == [b"2"]


def test_a_queue_number_that_several_brokers_have_needs_the_broker() -> None:
    both = [MessageQueue("out", broker, 0) for broker in ("broker-a", "broker-b")]
    router = RowRouter("out", lambda _: both, spread=0)
    rows = pa.table({"value": [b"x"], "queue": [0], "broker": ["broker-b"]})
    assert next(router.route(rows)).queue == both[1]
    with pytest.raises(ConfigurationError, match="it has broker-a@0, broker-b@0"):
        next(router.route(rows.drop_columns("broker")))


def test_a_queue_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigurationError, match="for queue 7, which is not exactly one queue"):
        route({"value": [b"x"], "queue": [7]})


def test_every_row_goes_to_its_topic() -> None:
    both = {name: [MessageQueue(name, "broker-a", 0)] for name in ("a", "b")}
    router = RowRouter(None, both.__getitem__, spread=0)
    rows = pa.table({"topic": ["a", "b", "a"], "value": [b"1", b"2", b"3"]})
    found = {part.queue.topic: part.bodies.to_pylist() for part in router.route(rows)}
    assert found == {"a": [b"1", b"3"], "b": [b"2"]}


def test_a_row_without_a_topic_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="null in column 'topic'"):
        route({"topic": ["out", None], "value": [b"", b""]}, topic=None)


def test_a_topic_that_takes_no_messages_is_named() -> None:
    with pytest.raises(TopicNotFoundError, match="topic 'closed' has no queue"):
        route({"value": [b"x"]}, topic="closed")


def test_key_tags_and_headers_become_properties() -> None:
    (part,) = route(
        {
            "key": ["k", None],
            "value": [b"1", None],
            "tags": ["red", ""],
            "headers": [[{"key": "a", "value": "b"}, {"key": "c", "value": "d"}], None],
            "queue": [0, 0],
        }
    )
    assert part.bodies.to_pylist() == [b"1", None]
    assert [decode_properties(one) for one in part.properties.to_pylist()] == [
        {"KEYS": "k", "TAGS": "red", "a": "b", "c": "d"},
        {},
    ]


def test_born_times_are_milliseconds() -> None:
    times = pa.array([1_234_567, None], pa.timestamp("us", "UTC"))
    (part,) = route({"value": [b"", b""], "timestamp": times, "queue": [0, 0]})
    assert part.born is not None
    assert part.born.to_pylist() == [1234, None]


def test_tags_with_a_separator_are_refused() -> None:
    with pytest.raises(MessageRejectedError, match="column 'tags'"):
        route({"value": [b""], "tags": ["a\x01"]})


def test_keys_of_any_bytes_can_be_written() -> None:
    parts = route({"key": pa.array([b"\xff\x01", b"", b"plain"]), "value": [b"", b"", b""]})
    written = [decode_properties(one) for part in parts for one in part.properties.to_pylist()]
    assert sorted(one["KEYS"] for one in written) == ["62ff01", "73", "plain"]
