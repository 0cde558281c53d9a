"""The broker as a name server for others, and as a broker of other name servers."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.client import Client, Message, Producer, PullConsumer
from headrace.errors import SettingsError
from headrace.protocol.codes import RequestCode
from headrace.protocol.routes import (
    ClusterInfo,
    DataVersion,
    TopicList,
    TopicRoute,
    body_checksum,
    dumps,
    loads,
)
from tests.broker.wire import JobWire, Wire, registration
from tests.clusters import running_name_server, running_rocketmq_broker
from tests.java.clients import Java

OTHER = {"brokerName": "other", "brokerAddr": "127.0.0.1:9", "clusterName": "c2", "brokerId": 0}


def register(wire: Wire, *topics: str, version: int = 1, **more: object) -> int:
    body = registration(topics, version)
    fields = {**OTHER, "haServerAddr": "127.0.0.1:10", "bodyCrc32": body_checksum(body), **more}
    return wire.ask(RequestCode.REGISTER_BROKER, body, **fields).code


def route(wire: Wire, topic: str) -> TopicRoute | None:
    answer = wire.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)
    assert answer.code in (0, 17)
    return loads(answer.payload, TopicRoute) if answer.code == 0 else None


def names(wire: Wire, topic: str) -> list[str]:
    found = route(wire, topic)
    return [data.broker_name for data in found.queue_datas] if found else []


def topics(wire: Wire, code: RequestCode, **ext: object) -> list[str]:
    return loads(wire.ask(code, **ext).payload, TopicList).topic_list


def test_a_broker_that_registers_is_in_routes_and_lists(wire: JobWire) -> None:
    wire.create("both")
    assert register(wire, "both", "theirs") == 0
    assert names(wire, "both") == ["broker-a", "other"]
    assert names(wire, "theirs") == ["other"]
    found = route(wire, "both")
    assert found is not None
    assert found.address_of("other") == "127.0.0.1:9"
    cluster = loads(wire.ask(RequestCode.GET_BROKER_CLUSTER_INFO).payload, ClusterInfo)
    assert cluster.cluster_addr_table == {"DefaultCluster": ["broker-a"], "c2": ["other"]}
    everywhere = topics(wire, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert {"both", "theirs"} <= set(everywhere)
    assert topics(wire, RequestCode.GET_TOPICS_BY_CLUSTER, cluster="c2") == ["both", "theirs"]
    system = topics(wire, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    assert {"other", "c2", "broker-a", "DefaultCluster"} <= set(system)


def test_a_broker_leaves_by_its_word_or_with_its_connection(
    wire: JobWire, broker: EmbeddedBroker
) -> None:
    register(wire, "theirs", "more")
    assert wire.ask(RequestCode.UNREGISTER_BROKER, **OTHER).code == 0
    assert names(wire, "theirs") == []
    with Wire(broker.address) as short:
        register(short, "theirs", "more")
        assert names(wire, "theirs") == ["other"]
    poll_until(lambda: names(wire, "theirs") == [])


def test_a_broker_asks_whether_it_must_register_anew(wire: JobWire) -> None:
    register(wire, "theirs", "more", version=3)
    same = wire.ask(RequestCode.QUERY_DATA_VERSION, dumps(DataVersion(counter=3)), **OTHER)
    assert (same.ext["changed"], loads(same.payload, DataVersion).counter) == ("false", 3)
    newer = wire.ask(RequestCode.QUERY_DATA_VERSION, dumps(DataVersion(counter=4)), **OTHER)
    assert newer.ext["changed"] == "true"
    assert wire.ask(RequestCode.BROKER_HEARTBEAT, **OTHER).code == 0


def test_a_damaged_registration_and_one_with_our_name_are_refused(wire: JobWire) -> None:
    assert register(wire, "theirs", "more", bodyCrc32=1) == 1
    assert register(wire, "theirs", "more", brokerName="broker-a") == 29
    assert names(wire, "theirs") == []


def test_a_replica_of_ours_is_told_its_master(wire: JobWire, broker: EmbeddedBroker) -> None:
    fields = {**OTHER, "brokerName": "broker-a", "brokerId": 1, "haServerAddr": "x:1"}
    answer = wire.ask(RequestCode.REGISTER_BROKER, b"", **fields)
    assert answer.ext["masterAddr"] == broker.address
    cluster = loads(wire.ask(RequestCode.GET_BROKER_CLUSTER_INFO).payload, ClusterInfo)
    addresses = cluster.broker_addr_table["broker-a"].broker_addrs
    assert addresses == {"0": broker.address, "1": "127.0.0.1:9"}


@pytest.mark.parametrize("name", ["other", "broker-a"])
def test_write_permission_is_wiped_from_routes_and_comes_back(wire: JobWire, name: str) -> None:
    wire.create("both")
    register(wire, "both", "more")

    def perms() -> dict[str, int]:
        found = route(wire, "both")
        return {data.broker_name: data.perm for data in found.queue_datas} if found else {}

    wiped = wire.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName=name)
    assert int(wiped.ext["wipeTopicCount"]) >= 2
    assert perms() == {"other": 6, "broker-a": 6} | {name: 4}
    added = wire.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName=name)
    assert int(added.ext["addTopicCount"]) >= 2
    assert perms() == {"other": 6, "broker-a": 6}


def test_a_topic_is_deleted_and_added_in_the_name_server(wire: JobWire) -> None:
    register(wire, "theirs", "more")
    assert wire.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="theirs").code == 0
    assert names(wire, "theirs") == []
    body = b'{"queueDatas":[{"brokerName":"other","readQueueNums":2,"writeQueueNums":2,"perm":6}]}'
    assert wire.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, body, topic="theirs").code == 0
    assert names(wire, "theirs") == ["other"]


def test_keys_are_kept_and_order_goes_into_routes(tmp_path: Path) -> None:
    place = {"namespace": "ORDER_TOPIC_CONFIG", "key": "t"}
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.address) as wire:
        wire.create("t")
        assert wire.ask(RequestCode.GET_KV_CONFIG, **place).code == 22
        assert wire.ask(RequestCode.PUT_KV_CONFIG, **place, value="broker-a:2").code == 0
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.address) as wire:
        assert wire.ask(RequestCode.GET_KV_CONFIG, **place).ext == {"value": "broker-a:2"}
        listed = wire.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="ORDER_TOPIC_CONFIG")
        assert loads(listed.payload) == {"table": {"t": "broker-a:2"}}
        found = route(wire, "t")
        assert found is not None
        assert found.order_topic_conf == "broker-a:2"
        assert wire.ask(RequestCode.DELETE_KV_CONFIG, **place).code == 0
        assert wire.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="x").code == 22
        assert wire.ask(RequestCode.GET_KV_CONFIG, **place).code == 22


def test_settings_of_the_name_server_are_told_again(wire: JobWire) -> None:
    body = b"clusterTest=true\n# a remark\n"
    assert wire.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body).code == 0
    shown = bytes(wire.ask(RequestCode.GET_NAMESRV_CONFIG).payload)
    assert b"clusterTest=true\n" in shown
    assert b"listenPort=" in shown


QUICK = timedelta(milliseconds=100)


@pytest.mark.slow
@pytest.mark.rocketmq
def test_a_real_broker_registers_with_ours_and_java_uses_both(
    tmp_path: Path, broker: EmbeddedBroker, wire: JobWire, java: Java
) -> None:
    with running_rocketmq_broker(tmp_path, broker.address, "real") as address:
        wire.create("both", queues=1)
        java.mqadmin(broker.address, *f"updateTopic -b {address} -t both -r 1 -w 1".split())
        poll_until(lambda: names(wire, "both") == ["broker-a", "real"])
        with java.producer(broker.address) as producer:
            queues = {("both", "broker-a", 0), ("both", "real", 0)}
            assert set(producer.queues("both")) == queues
            for queue in queues:
                producer.send("both", queue[1].encode(), queue=queue)
        with java.lite_consumer(broker.address, "g", "both") as consumer:
            assert set(consumer.bodies(2)) == {b"broker-a", b"real"}
        with Client(broker.address) as client:
            held = [
                PullConsumer(client).pull(queue, 0).messages() for queue in client.queues("both")
            ]
            assert sorted(m.body for messages in held for m in messages) == [b"broker-a", b"real"]
        assert "real" in java.mqadmin(broker.address, "clusterList")
    poll_until(lambda: names(wire, "both") == ["broker-a"])


@pytest.mark.rocketmq
def test_ours_registers_with_a_real_name_server(tmp_path: Path, java: Java) -> None:
    # Its own: topics that other tests make meanwhile must not come to ours.
    with running_name_server(tmp_path) as namesrv, Wire(namesrv) as names_there:
        settings = BrokerSettings(broker_name="ours", name_servers=(namesrv,))
        with (
            EmbeddedBroker(tmp_path / "ours", settings=settings) as ours,
            Wire(ours.address) as there,
        ):
            there.create("at-ours", queues=2)
            poll_until(lambda: names(names_there, "at-ours") == ["ours"])
            with java.producer(namesrv) as producer:
                (sent,) = producer.send("at-ours", b"x", queue=("at-ours", "ours", 1))
                assert (sent.queue, sent.offset) == (1, 0)
            with java.lite_consumer(namesrv, "g-ours", "at-ours") as consumer:
                assert consumer.bodies(1) == [b"x"]
            there.create("at-ours", queues=3)
            poll_until(lambda: len(listed(names_there)) == 3)
        poll_until(lambda: names(names_there, "at-ours") == [])


def listed(wire: Wire) -> list[int]:
    found = route(wire, "at-ours")
    return list(range(found.queue_datas[0].read_queue_nums)) if found else []


def test_ours_registers_with_another_name_server_and_takes_leave(
    tmp_path: Path, broker: EmbeddedBroker, wire: JobWire
) -> None:
    settings = BrokerSettings(broker_name="second", name_servers=(broker.address,))
    with EmbeddedBroker(tmp_path / "second", settings=settings) as second:
        poll_until(lambda: names(wire, "TBW102") == ["broker-a", "second"])
        with Wire(second.address) as there:
            there.create("new")
        poll_until(lambda: names(wire, "new") == ["second"])
        with Client(broker.address) as client:
            sent = Producer(client).send(Message(topic="new", body=b"x"))
            assert sent.queue.broker == "second"
            consumer = PullConsumer(client)
            assert [m.body for m in consumer.pull(sent.queue, 0).messages()] == [b"x"]
    assert names(wire, "new") == []


def test_a_name_server_that_is_not_there_stops_nothing(tmp_path: Path) -> None:
    settings = BrokerSettings(name_servers=("127.0.0.1:1",), register_interval=QUICK)
    with EmbeddedBroker(tmp_path, settings=settings) as broker, Wire(broker.address) as wire:
        wire.create("t")
        assert wire.put("t", b"x").code == 0


def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    settings = BrokerSettings(name_servers=("nowhere",))
    with pytest.raises(SettingsError, match="'nowhere' is no address"):
        EmbeddedBroker(tmp_path, settings=settings).start()


def poll_until(done: Callable[[], bool], patience: float = 20.0) -> None:
    deadline = time.monotonic() + patience
    while not done():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
