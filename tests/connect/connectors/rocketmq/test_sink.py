"""Records become messages of another cluster, once as far as that can be told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.broker import spawn_broker
from headrace.client import Client, PullConsumer, StoredMessage
from headrace.connect import Header
from headrace.connect.connectors.rocketmq import RocketMQSinkConnector
from headrace.connect.connectors.rocketmq.sink import ORIGIN, REPLICA
from headrace.connect.testing.sinks import SinkTaskKit
from headrace.errors import ConnectionFailedError, MessageTooLargeError, SchemaError
from headrace.keys import encode_key, partition_of
from tests.connect.connectors.rocketmq.conftest import NewSink, stored

NewTopic = Callable[..., str]


def bodies(messages: list[StoredMessage]) -> list[str]:
    return [message.body.decode() for message in messages]


def test_records_arrive_with_all_that_they_have(
    client: Client, make_topic: NewTopic, sink: NewSink
) -> None:
    topic = make_topic(4)
    with sink(topic, queues=4) as kit:
        kit.send(
            "one",
            queue=3,
            key="k 1",
            timestamp_ms=1234,
            headers=(Header("TAGS", "red"), Header("colour", "dark"), Header("DELAY", "3")),
        )
        kit.send(None, key=b"\xff", queue=0)
        kit.deliver()
    empty, one = stored(client, topic, 2)
    assert (one.queue_id, one.body, one.born) == (3, b"one", 1234)
    assert (one.keys, one.tags) == ("k 1", "red")
    assert one.properties["colour"] == "dark"
    assert one.properties[ORIGIN] == "here"
    assert one.properties[REPLICA] == f"to-{topic}:{topic}@broker-a@3:0"
    assert "DELAY" not in one.properties
    assert (empty.body, empty.properties["HEADRACE_KEY"]) == (b"", encode_key(b"\xff").hex())


def test_topics_are_made_with_as_many_queues_and_named_anew(
    client: Client, make_topic: NewTopic, sink: NewSink
) -> None:
    topic = make_topic(1)
    with sink(topic, {"topic.format": "${topic}-far"}, queues=3) as kit:
        kit.send("one", queue=2)
        kit.deliver()
    (message,) = stored(client, f"{topic}-far", 1)
    assert message.queue_id == 2
    assert len(client.queues(f"{topic}-far")) == 3


def test_keys_choose_the_queue_where_that_is_wanted(
    client: Client, make_topic: NewTopic, sink: NewSink
) -> None:
    topic = make_topic(4)
    with sink(topic, {"queue.by": "key"}, queues=4) as kit:
        for key in "abcdef":
            kit.send(key, key=key)
        kit.send("none", queue=1)
        kit.deliver()
    wanted = {key: partition_of(encode_key(key), 4) for key in "abcdef"} | {"none": 1}
    found = stored(client, topic, 7)
    assert {message.body.decode(): message.queue_id for message in found} == wanted


def test_records_that_were_born_there_do_not_go_back(
    client: Client, make_topic: NewTopic, sink: NewSink
) -> None:
    topic = make_topic(1)
    with sink(topic) as kit:
        kit.send("there", headers=(Header(ORIGIN, "there"),))
        kit.send("elsewhere", headers=(Header(ORIGIN, "elsewhere"),))
        kit.send("here")
        kit.deliver()
    found = stored(client, topic, 2)
    assert bodies(found) == ["elsewhere", "here"]
    assert [one.properties[ORIGIN] for one in found] == ["elsewhere", "here"]


class TestRepeated:
    """A batch that comes again, because its commit did not come."""

    def test_is_not_sent_again(self, client: Client, make_topic: NewTopic, sink: NewSink) -> None:
        topic = make_topic(2)
        with sink(topic, queues=2) as kit:
            kit.send("a", "b")
            kit.deliver()
            kit.send("c", "d", queue=1)
            kit.send("e")
            kit.put()
            kit.flush(commit=False)
            kit.crash()
            kit.send("f")
            kit.deliver()
        assert bodies(stored(client, topic, 6)) == ["a", "b", "e", "f", "c", "d"]

    def test_is_found_where_other_tasks_had_sent_it(
        self, client: Client, make_topic: NewTopic, sink: NewSink
    ) -> None:
        topic = make_topic(1)
        with sink(topic, {"tasks.max": 2}, number=1) as kit:
            kit.send("a", "b")
            kit.put()
            kit.flush(commit=False)
            kit.crash()
        with sink(topic) as kit:
            kit.send("a", "b", "c")
            kit.deliver()
        assert bodies(stored(client, topic, 3)) == ["a", "b", "c"]

    def test_is_sent_where_somebody_has_set_the_offsets_back(
        self, client: Client, make_topic: NewTopic, sink: NewSink
    ) -> None:
        topic = make_topic(1)
        with sink(topic) as kit:
            for value in "ab":
                kit.send(value)
                kit.deliver()
            kit.offsets.clear()
            kit.restart()
            kit.deliver()
        # What the last batch held may not have been committed, as far as the sink knows.
        assert bodies(stored(client, topic, 3)) == ["a", "b", "a"]

    def test_is_sent_again_without_marks(
        self, client: Client, make_topic: NewTopic, sink: NewSink
    ) -> None:
        topic = make_topic(1)
        with sink(topic, {"find.repeated": False}) as kit:
            kit.send("a")
            kit.put()
            kit.flush(commit=False)
            kit.crash()
            kit.deliver()
        found = stored(client, topic, 2)
        assert bodies(found) == ["a", "a"]
        assert REPLICA not in found[0].properties


class TestRefused:
    """Records that the other cluster does not take."""

    TOO_LARGE = "x" * (5 << 20)

    def test_are_reported_while_the_others_are_sent(
        self, client: Client, make_topic: NewTopic, sink: NewSink
    ) -> None:
        topic = make_topic(1)
        with sink(topic, {"errors.tolerance": "all"}) as kit:
            kit.send("a", self.TOO_LARGE, "b", 7, timestamp_ms=1)
            kit.deliver()
            assert [record.offset for record, _ in kit.reported] == [3, 1]
        assert bodies(stored(client, topic, 2)) == ["a", "b"]

    def test_end_the_task_where_no_error_is_tolerated(
        self, make_topic: NewTopic, sink: NewSink
    ) -> None:
        with sink(make_topic(1)) as kit:
            kit.send(self.TOO_LARGE)
            with pytest.raises(MessageTooLargeError):
                kit.deliver()
            kit.restart()
            kit.offsets[kit.queues[0]] = 1
            kit.restart()
            kit.send({"a": 1})
            with pytest.raises(SchemaError, match=r"value is dict.*\n.*ByteArrayConverter"):
                kit.deliver()


def far(tmp_path: Path, port: int = 0) -> Any:
    return spawn_broker(tmp_path / "broker", port=port)


def kit_for(address: str, **more: Any) -> SinkTaskKit:
    texts = {
        "topics": "orders",
        "rocketmq.namesrv": address,
        "local.cluster": "here",
        "delivery.timeout.ms": "60 s",
    }
    return SinkTaskKit(RocketMQSinkConnector, texts | more)


def test_a_batch_waits_for_the_broker_and_is_sent_once(tmp_path: Path) -> None:
    broker = far(tmp_path)
    port = int(broker.address.rpartition(":")[2])
    with kit_for(broker.address) as kit:
        kit.send("a")
        kit.deliver()
        broker.kill()
        kit.send("b", "c")
        kit.put()
        flushing = threading.Thread(target=kit.flush)
        flushing.start()
        with far(tmp_path, port) as again, Client(again.address) as client:
            flushing.join(60)
            assert not flushing.is_alive()
            assert bodies(stored(client, "orders", 3)) == ["a", "b", "c"]


def test_patience_ends(tmp_path: Path) -> None:
    broker = far(tmp_path)
    with kit_for(broker.address, **{"delivery.timeout.ms": "1 ms"}) as kit:
        kit.send("a")
        kit.deliver()
        broker.kill()
        kit.send("b")
        kit.put()
        with pytest.raises(ConnectionFailedError):
            kit.flush()


def test_bounds_are_offsets_of_a_group_of_the_task(
    client: Client, make_topic: NewTopic, sink: NewSink
) -> None:
    topic = make_topic(1)
    with sink(topic) as kit:
        kit.send("a")
        kit.deliver()
        kit.send("b")
        kit.deliver()
    (queue,) = client.queues(topic)
    assert PullConsumer(client, f"headrace-connect-to-{topic}-0").committed(queue) == 1
