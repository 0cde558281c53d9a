"""The name server's knowledge of other brokers, without a network."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import pytest

from headrace.broker.naming.registry import BrokerPlace, BrokerRegistry, Registration
from headrace.errors import ProtocolError
from headrace.protocol.routes import (
    DataVersion,
    MappingInfo,
    QueueData,
    RegisterBroker,
    TopicConfig,
    TopicConfigTable,
    dumps,
    read_registration,
)

EXPIRY = 120.0


def place(port: int = 1, cluster: str = "c") -> BrokerPlace:
    return BrokerPlace(cluster, f"127.0.0.1:{port}")


def told(name: str = "b", port: int = 1, broker_id: int = 0, cluster: str = "c") -> Registration:
    return Registration(name=name, place=place(port, cluster), broker_id=broker_id, ha_address="h")


def table(version: int = 1, /, **topics: int) -> TopicConfigTable:
    configs = {
        name: TopicConfig(topic_name=name, read_queue_nums=count, write_queue_nums=count)
        for name, count in topics.items()
    }
    return TopicConfigTable(topic_config_table=configs, data_version=DataVersion(counter=version))


def registry_of(*brokers: Registration, peer: int = 1) -> BrokerRegistry:
    registry = BrokerRegistry(EXPIRY)
    for broker in brokers:
        registry.register(broker, table(t=4), peer=peer, now=0)
    return registry


def test_topics_of_several_brokers_come_together() -> None:
    registry = registry_of(told("b"), told("a", 2, cluster="d"))
    assert [data.broker_name for data in registry.queues("t")] == ["a", "b"]
    assert registry.topics() == ["t"]
    assert registry.topics("d") == ["t"]
    assert registry.topics("e") == []
    assert registry.brokers()["a"].cluster == "d"


@pytest.mark.parametrize(("version", "count"), [(1, 4), (2, 8)])
def test_known_topics_change_with_the_data_version_only(version: int, count: int) -> None:
    registry = registry_of(told())
    registry.register(told(), table(version, t=8, u=3), peer=1, now=1)
    assert registry.queues("t")[0].read_queue_nums == count
    assert registry.queues("u")[0].read_queue_nums == 3
    assert registry.has_changed(place(), DataVersion(counter=9))
    assert not registry.has_changed(place(), DataVersion(counter=version))


def test_topics_that_are_not_mentioned_stay_until_they_are_deleted() -> None:
    registry = registry_of(told("a", 2, cluster="d"), told())
    registry.register(told(), table(2, u=1), peer=1, now=1)
    assert registry.topics() == ["t", "u"]
    registry.delete_topic("t", "d")
    assert [data.broker_name for data in registry.queues("t")] == ["b"]
    registry.delete_topic("t")
    assert registry.topics() == ["u"]


def test_the_last_process_of_a_name_takes_its_topics_along() -> None:
    registry = registry_of(told(), told(port=2, broker_id=1))
    assert registry.brokers()["b"].broker_addrs == {"0": "127.0.0.1:1", "1": "127.0.0.1:2"}
    assert registry.master("b") == ("127.0.0.1:1", "h")
    registry.unregister("b", 0, place(1))
    assert registry.topics() == ["t"]
    assert registry.master("b") is None
    registry.unregister("b", 1, place(2))
    assert (registry.topics(), registry.brokers(), len(registry)) == ([], {}, 0)


def test_a_broker_that_was_replaced_cannot_take_its_successor_along() -> None:
    registry = registry_of(told(port=1), told(port=2))
    registry.unregister("b", 0, place(1))
    assert registry.brokers()["b"].broker_addrs == {"0": "127.0.0.1:2"}


def test_a_replica_that_becomes_the_master_has_one_place() -> None:
    registry = registry_of(told(port=1), told(port=2, broker_id=1))
    registry.register(told(port=2, broker_id=0), table(5, t=4), peer=1, now=1)
    assert registry.brokers()["b"].broker_addrs == {"0": "127.0.0.1:2"}


@pytest.mark.parametrize(("expiry", "gone_after"), [(None, EXPIRY), (7.0, 7.0)])
def test_a_silent_broker_is_gone_after_its_time(expiry: float | None, gone_after: float) -> None:
    registry = BrokerRegistry(EXPIRY)
    broker = replace(told(), expiry=expiry)
    registry.register(broker, table(t=1), peer=1, now=0)
    assert registry.expire(now=gone_after) == []
    registry.touch(place(), now=1)
    assert registry.expire(now=gone_after + 0.5) == []
    assert registry.expire(now=gone_after + 1.5) == ["b"]
    assert registry.topics() == []


def test_a_closed_connection_takes_its_brokers_along() -> None:
    registry = registry_of(told("a", 1), told("b", 2), peer=1)
    registry.register(told("c", 3), table(t=1), peer=2, now=0)
    assert sorted(registry.disconnect(1)) == ["a", "b"]
    assert list(registry.brokers()) == ["c"]


def test_write_permission_can_be_wiped_and_given_back() -> None:
    registry = registry_of(told("a", 1), told("b", 2))
    assert registry.set_writable("b", writable=False) == 1
    assert [data.perm for data in registry.queues("t")] == [6, 4]
    assert registry.set_writable("b", writable=True) == 1
    assert [data.perm for data in registry.queues("t")] == [6, 6]
    assert registry.set_writable("z", writable=True) == 0


def test_a_single_topic_is_added_for_brokers_that_are_known() -> None:
    registry = registry_of(told())
    registry.add_topic(
        "u", [QueueData(broker_name="b", read_queue_nums=2), QueueData(broker_name="z")]
    )
    assert [data.broker_name for data in registry.queues("u")] == ["b"]


def test_mappings_of_static_topics_are_told_by_broker() -> None:
    registry = BrokerRegistry(EXPIRY)
    content = table(1, t=2)
    content.topic_queue_mapping_info_map = {"t": MappingInfo(topic="t", bname="b", total_queues=2)}
    registry.register(told(), content, peer=1, now=0)
    assert registry.mappings("t")["b"].total_queues == 2
    registry.unregister("b", 0, place())
    assert registry.mappings("t") == {}


def packed(*, mappings: bool = True) -> bytes:
    def text(content: bytes) -> bytes:
        return struct.pack(">i", len(content)) + content

    topics = [b'lines 4 8 6 SINGLE_TAG {"message.type":"NORMAL"}', b"words 1 1 4 SINGLE_TAG {}"]
    body = text(b'{"counter":3,"stateVersion":0,"timestamp":7}') + struct.pack(">i", len(topics))
    body += b"".join(map(text, topics)) + text(b"[]")
    if mappings:
        info = b'{"bname":"b","currIdMap":{0:0,1:1},"topic":"lines","totalQueues":2}'
        body += struct.pack(">i", 1) + text(info)
    return zlib.compress(body, 9)


@pytest.mark.parametrize("said", [True, False])
@pytest.mark.parametrize(("version", "mappings"), [(479, True), (401, False)])
def test_a_packed_registration_is_read(version: int, mappings: bool, said: bool) -> None:
    content = read_registration(packed(mappings=mappings), compressed=said, version=version)
    read = content.topic_config_serialize_wrapper
    assert read.data_version == DataVersion(timestamp=7, counter=3)
    lines = read.topic_config_table["lines"]
    assert (lines.read_queue_nums, lines.write_queue_nums, lines.perm) == (4, 8, 6)
    assert lines.attributes == {"message.type": "NORMAL"}
    assert bool(read.topic_queue_mapping_info_map) is mappings


def test_a_plain_registration_is_read() -> None:
    body = dumps(RegisterBroker(topic_config_serialize_wrapper=table(3, t=1)))
    content = read_registration(body, compressed=False, version=479)
    assert content.topic_config_serialize_wrapper.data_version.counter == 3
    assert read_registration(b"", compressed=False, version=479) == RegisterBroker()


@pytest.mark.parametrize(
    "broken",
    [
        b"no zlib",
        zlib.compress(struct.pack(">i", 1 << 30)),
        zlib.compress(struct.pack(">i", -1)),
        zlib.compress(b"\0\0"),
        packed()[:40],
        zlib.compress(bytes(65 * 1024 * 1024)),
    ],
)
def test_a_registration_that_makes_no_sense_is_refused(broken: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_registration(broken, compressed=True, version=479)
