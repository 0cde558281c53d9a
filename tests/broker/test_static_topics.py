"""Static topics: mappings, their numbers in every request, and RocketMQ Streams on top of them."""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.broker import EmbeddedBroker
from headrace.broker.static_topics import LogicalQueue, StaticTopics
from headrace.errors import BrokerError, InvalidParameterError
from headrace.protocol.codes import RequestCode
from headrace.protocol.routes import (
    MappingDetail,
    MappingItem,
    TopicConfig,
    TopicRoute,
    dumps,
    loads,
)
from tests.broker.wire import JobWire, Wire
from tests.clusters import SCRIPT, require_rocketmq
from tests.java.clients import Java
from tests.java.process import JavaError

BROKER = "broker-a"
SHUFFLE_QUEUES = 16
STREAMS = Path(__file__).with_name("StreamsCount.java")


def item(queue: int = 0, *, gen: int = 0, broker: str = BROKER, logic: int = 0) -> MappingItem:
    return MappingItem(gen=gen, queue_id=queue, bname=broker, logic_offset=logic)


def detail(
    hosted: dict[str, list[MappingItem]], *, total: int = 2, epoch: int = 1, broker: str = BROKER
) -> MappingDetail:
    return MappingDetail(
        topic="t", total_queues=total, bname=broker, epoch=epoch, hosted_queues=hosted
    )


IDENTITY = detail({"0": [item(0)], "1": [item(1)]})
SWAPPED = detail({"0": [item(1)], "1": [item(0, logic=100)]})


def create(wire: Wire, mapping: MappingDetail, queues: int = 2, **more: object) -> int:
    fields: dict[str, object] = {
        "topic": "t",
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
    }
    # As Java writes it: integer keys without quotes.
    body = re.sub(rb'"(\d+)":', rb"\1:", dumps(mapping))
    return wire.ask(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, body, **(fields | more)).code


def offset(wire: Wire, code: RequestCode, queue: int, **more: object) -> int:
    answer = wire.ask(code, topic="t", queueId=queue, **more)
    assert answer.code == 0, answer.remark
    return int(answer.ext["offset"])


def test_a_queue_is_found_by_its_last_place() -> None:
    topics = StaticTopics(BROKER)
    moved = [item(5, broker="broker-b"), item(1, gen=1, logic=100)]
    topics.put(topics.merged(detail({"0": moved, "1": [item(0)]})))
    assert topics.locate("t", 0) == LogicalQueue(0, 1, delta=100, begin=100)
    assert topics.locate("t", -1) == LogicalQueue(0, 1, delta=100, begin=100)
    assert topics.locate("u", 0) is None
    info = topics.info("t")
    assert info is not None
    assert info.curr_id_map == {"0": 1, "1": 0}


def test_a_queue_of_another_broker_is_not_served() -> None:
    topics = StaticTopics(BROKER)
    topics.put(topics.merged(detail({"0": [item(0), item(0, gen=1, broker="b", logic=9)]})))
    with pytest.raises(BrokerError, match="not on this broker") as refused:
        topics.locate("t", 0)
    assert refused.value.number == 501
    with pytest.raises(BrokerError):
        topics.locate("t", 7)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (detail({"0": [item()]}, broker="other"), "is for broker 'other'"),
        (detail({"2": [item()]}), "has a queue 2, but 2 queues in all"),
        (detail({"0": []}), "has no place"),
        (detail({"0": [item(0)], "1": [item(0)]}), "two queues into one"),
        (detail({"0": [item(8)]}), "uses queue 8, but the topic has 2"),
        (detail({"0": [item(gen=1), item(gen=0)]}), "out of order"),
        (detail({"0": [item(logic=-1)]}), "at which offset"),
        (detail({"0": [item(-1)]}), "a place with queue -1"),
    ],
)
def test_a_mapping_that_contradicts_itself_is_refused(wrong: MappingDetail, why: str) -> None:
    with pytest.raises(InvalidParameterError, match=why):
        StaticTopics(BROKER).merged(wrong, queues=2)


@pytest.mark.parametrize(
    ("later", "why"),
    [
        (detail({"0": [item(0)], "1": [item(1)]}, epoch=0), "epoch 1 is known already"),
        (detail({"0": [item(0)]}, total=1, epoch=2), "1 queues in all, before 2"),
        (detail({"0": [item(0)]}), "lacks queue 1, in the same epoch"),
        (detail({"0": [item(1)], "1": [item(0)]}, epoch=2), "changes where the old messages"),
        (
            detail({"0": [item(0), item(2, gen=1, logic=9)], "1": [item(1)]}),
            "moves queue 0, in the same epoch",
        ),
    ],
)
def test_a_mapping_continues_the_one_before(later: MappingDetail, why: str) -> None:
    topics = StaticTopics(BROKER)
    topics.put(topics.merged(IDENTITY))
    with pytest.raises(InvalidParameterError, match=why):
        topics.merged(later)
    topics.put(topics.merged(later, force=True))


def test_a_later_mapping_adds_places_and_queues() -> None:
    topics = StaticTopics(BROKER)
    topics.put(topics.merged(IDENTITY))
    moved = detail({"0": [item(0), item(2, gen=1, logic=50)], "2": [item(3)]}, total=3, epoch=2)
    topics.put(topics.merged(moved))
    assert topics.locate("t", 0) == LogicalQueue(0, 2, delta=50, begin=50)
    assert topics.locate("t", 1) == LogicalQueue(1, 1)
    assert topics.locate("t", 2) == LogicalQueue(2, 3)


def test_every_request_counts_as_clients_of_the_topic_do(wire: JobWire) -> None:
    assert create(wire, SWAPPED) == 0
    first, second = wire.put("t", b"a", 1), wire.put("t", b"b", 1)
    assert (first.ext["queueId"], first.ext["queueOffset"]) == ("1", "100")
    assert second.ext["queueOffset"] == "101"
    assert wire.put("t", b"c", 0).ext["queueOffset"] == "0"
    pulled = wire.pull("t", 1, 100, maxMsgNums=1)
    assert (pulled.ext["nextBeginOffset"], pulled.ext["offsetDelta"]) == ("101", "100")
    assert (pulled.ext["minOffset"], pulled.ext["maxOffset"]) == ("100", "102")
    assert b"b" in bytes(wire.pull("t", 1, 101).payload)
    assert wire.pull("t", 1, 102).code == 19
    assert offset(wire, RequestCode.GET_MAX_OFFSET, 1) == 102
    assert offset(wire, RequestCode.GET_MIN_OFFSET, 1) == 100
    assert offset(wire, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, 1, timestamp=0) == 100
    commit = {"consumerGroup": "g", "topic": "t", "queueId": 1, "commitOffset": 101}
    assert wire.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **commit).code == 0
    assert offset(wire, RequestCode.QUERY_CONSUMER_OFFSET, 1, consumerGroup="g") == 101
    stored = wire.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, topic="t", queueId=0)
    assert int(stored.ext["timestamp"]) > 0


def test_tools_read_the_mapping_back(wire: JobWire) -> None:
    plain = wire.ask(RequestCode.GET_TOPIC_CONFIG, topic="t", lo="true")
    assert plain.code == 17
    assert create(wire, IDENTITY) == 0
    route = loads(
        wire.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="t").payload, TopicRoute
    ).topic_queue_mapping_by_broker
    assert route is not None
    assert route[BROKER].curr_id_map == {"0": 0, "1": 1}
    told = wire.ask(RequestCode.GET_TOPIC_CONFIG, topic="t", lo="true")
    config = loads(told.payload, TopicConfig)
    assert config.mapping_detail is not None
    assert config.mapping_detail.hosted_queues == IDENTITY.hosted_queues
    assert create(wire, detail({"0": [item(1)], "1": [item(0)]}, epoch=3)) == 29


def test_mappings_survive_a_restart_and_end_with_their_topic(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.address) as wire:
        assert create(wire, SWAPPED) == 0
        wire.put("t", b"a", 1)
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.address) as wire:
        assert offset(wire, RequestCode.GET_MAX_OFFSET, 1) == 101
        assert wire.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="t").code == 0
        wire.create("t", queues=2)
        assert wire.put("t", b"a", 1).ext["queueOffset"] == "0"


@pytest.mark.rocketmq
def test_java_uses_a_static_topic_that_mqadmin_makes_and_extends(
    broker: EmbeddedBroker, wire: JobWire, java: Java
) -> None:
    def make(queues: int) -> None:
        java.mqadmin(
            broker.address, *f"updateStaticTopic -c DefaultCluster -t t -qn {queues}".split()
        )

    make(2)
    with java.push_consumer(broker.address, "g", "t") as consumer:
        make(3)
        info = loads(
            wire.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="t").payload, TopicRoute
        ).topic_queue_mapping_by_broker
        assert info is not None
        assert sorted(info[BROKER].curr_id_map) == ["0", "1", "2"]
        with java.producer(broker.address) as producer:
            queues = producer.queues("t")
            assert {(name, queue) for _, name, queue in queues} == {
                ("__syslo__global__", queue) for queue in range(3)
            }
            sent = [producer.send("t", b"%d" % n, queue=each)[0] for n, each in enumerate(queues)]
            assert [each.queue for each in sent] == [queue for _, _, queue in queues]
        assert sorted(consumer.bodies(3)) == [b"0", b"1", b"2"]
    with pytest.raises(JavaError):
        make(1)


@pytest.mark.rocketmq
def test_rocketmq_streams_counts_words_exactly(
    broker: EmbeddedBroker, wire: JobWire, tmp_path: Path
) -> None:
    require_rocketmq()
    lines = ["to be or not to be", "that is the question", "to be"]
    words = " ".join(lines).split()
    wire.create("lines", queues=4)
    arguments = ("lines", "job", str(len(words)))
    command = [str(SCRIPT), "streams", str(STREAMS), broker.address, *arguments]
    printed = tmp_path / "streams.out"
    with (
        printed.open("w") as output,
        subprocess.Popen(command, stdout=output, stderr=output) as streams,
    ):
        try:
            # It begins at the end of the lines: ready when it has read its state from the broker
            # and every queue waits for a message.
            poll_until(lambda: "recover messageQueue finish" in printed.read_text())
            poll_until(lambda: broker.statistics().waiting == 4 + SHUFFLE_QUEUES)
            for number, line in enumerate(lines):
                wire.put("lines", line.encode(), number)
            assert streams.wait(timeout=40) == 0
        finally:
            streams.kill()
    updates = re.findall(r"\(key=(\w+), value=(\d+)\)", printed.read_text())
    last = {word: int(count) for word, count in updates}
    assert last == Counter(words)
    assert len(updates) == len(words)


def poll_until(done: Callable[[], bool], patience: float = 40.0) -> None:
    deadline = time.monotonic() + patience
    while not done():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
