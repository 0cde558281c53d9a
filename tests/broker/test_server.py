from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import threading
import time
from pathlib import Path

import msgspec
import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker, snapshots, spawn_broker
from headrace.errors import SettingsError, StoreLockedError
from headrace.protocol.codes import RequestCode, ResponseCode
from headrace.protocol.frames import Command
from headrace.protocol.messages import decode_messages
from headrace.protocol.routes import loads
from tests.broker.wire import JobWire, Wire


def body(answer: Command) -> dict[str, object]:
    assert answer.code == 0, answer.remark
    found = msgspec.json.decode(answer.payload)
    assert isinstance(found, dict)
    return found


def heartbeat(client: str, topic: str = "t", version: int = 1) -> bytes:
    subscription = {"topic": topic, "subString": "red", "subVersion": version}
    consumer = {
        "groupName": "g",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [subscription],
    }
    return msgspec.json.encode({"clientID": client, "consumerDataSet": [consumer]})


def test_unknown_request_is_answered_as_rocketmq_does(wire: JobWire) -> None:
    answer = wire.ask(9999)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == " request type 9999 not supported"


def test_oneway_request_is_never_answered(wire: JobWire) -> None:
    wire.create("t")
    wire.send_oneway(
        RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="g", topic="t", queueId=0, commitOffset=3
    )
    answer = wire.ask(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="g", topic="t", queueId=0)
    assert answer.ext["offset"] == "3"


def test_garbage_closes_only_its_own_connection(wire: JobWire, broker: EmbeddedBroker) -> None:
    with Wire(broker.address) as other:
        other.send_raw(struct.pack(">i", 2**31 - 1) + b"GET / HTTP/1.1")
        with pytest.raises((ConnectionError, OSError)):
            other.read()
    assert wire.ask(RequestCode.HEADRACE_CAPABILITIES).code == 0


def test_route_leads_back_to_the_same_port(wire: JobWire, broker: EmbeddedBroker) -> None:
    wire.create("t", queues=3)
    route = body(wire.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="t"))
    assert route["brokerDatas"] == [
        {
            "cluster": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerAddrs": {"0": broker.address},
            "enableActingMaster": False,
        }
    ]
    missing = wire.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="missing")
    assert missing.code == ResponseCode.TOPIC_NOT_EXIST


def test_topic_settings_survive_a_restart_and_deletion_does_too(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.address) as wire:
        wire.create("kept", queues=3, attributes="+cleanup.policy=COMPACTION")
        wire.create("gone")
        wire.put("gone", b"x")
        wire.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="gone")
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.address) as wire:
        config = body(wire.ask(RequestCode.GET_TOPIC_CONFIG, topic="kept"))
        assert (config["readQueueNums"], config["attributes"]) == (
            3,
            {"cleanup.policy": "COMPACTION"},
        )
        assert wire.ask(RequestCode.GET_TOPIC_CONFIG, topic="gone").code == 17
        wire.create("gone")
        assert wire.put("gone", b"y").ext["queueOffset"] == "0"


def test_topic_stats_show_every_queue(wire: JobWire) -> None:
    wire.create("t")
    wire.put("t", b"x", 1)
    table = body(wire.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="t"))["offsetTable"]
    assert isinstance(table, dict)
    ends = {msgspec.json.decode(key)["queueId"]: queue for key, queue in table.items()}
    assert (ends[0]["maxOffset"], ends[0]["lastUpdateTimestamp"]) == (0, 0)
    assert ends[1]["maxOffset"] == 1
    assert ends[1]["lastUpdateTimestamp"] > 0


def test_offsets_of_queues_are_told(wire: JobWire) -> None:
    wire.create("t")
    wire.put("t", b"x")
    for code, offset in [(RequestCode.GET_MAX_OFFSET, "1"), (RequestCode.GET_MIN_OFFSET, "0")]:
        assert wire.ask(code, topic="t", queueId=0).ext["offset"] == offset
    search = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    assert wire.ask(search, topic="t", queueId=0, timestamp=0).ext["offset"] == "0"
    assert wire.ask(search, topic="t", queueId=0, timestamp=2**60).ext["offset"] == "1"
    upper = wire.ask(search, topic="t", queueId=0, timestamp=2**60, boundaryType="UPPER")
    assert upper.ext["offset"] == "0"
    earliest = RequestCode.GET_EARLIEST_MSG_STORETIME
    assert wire.ask(earliest, topic="t", queueId=1).ext["timestamp"] == "-1"
    assert int(wire.ask(earliest, topic="t", queueId=0).ext["timestamp"]) > 0


def test_group_without_offset_is_told_so_when_it_insists(wire: JobWire) -> None:
    wire.create("t")
    fields = {"consumerGroup": "g", "topic": "t", "queueId": 0}
    assert wire.ask(RequestCode.QUERY_CONSUMER_OFFSET, **fields).ext["offset"] == "0"
    answer = wire.ask(RequestCode.QUERY_CONSUMER_OFFSET, **fields, setZeroIfNotFound="false")
    assert answer.code == ResponseCode.QUERY_NOT_FOUND


def test_consumer_offsets_survive_a_restart(tmp_path: Path) -> None:
    fields = {"consumerGroup": "g", "topic": "t", "queueId": 0}
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.address) as wire:
        wire.create("t")
        wire.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **fields, commitOffset=5)
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.address) as wire:
        assert wire.ask(RequestCode.QUERY_CONSUMER_OFFSET, **fields).ext["offset"] == "5"


def test_members_hear_of_each_other(wire: JobWire, broker: EmbeddedBroker) -> None:
    wire.create("t")
    assert wire.ask(RequestCode.HEART_BEAT, heartbeat("a")).code == 0
    with Wire(broker.address) as other:
        assert other.ask(RequestCode.HEART_BEAT, heartbeat("b")).code == 0
        answer = other.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g")
        assert body(answer) == {"consumerIdList": ["a", "b"]}
        while len(wire.told) < 2:
            wire.read()
    while len(wire.told) < 3:
        wire.read()
    told = [(command.code, command.ext["consumerGroup"]) for command in wire.told]
    assert told == [(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, "g")] * 3
    answer = wire.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g")
    assert body(answer) == {"consumerIdList": ["a"]}


def test_nobody_in_a_group_is_an_error(wire: JobWire) -> None:
    answer = wire.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="nobody")
    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_pull_uses_the_subscription_of_the_heartbeat(wire: JobWire) -> None:
    wire.create("t")
    wire.ask(RequestCode.HEART_BEAT, heartbeat("a", version=5))
    for tag in ("red", "green"):
        wire.put("t", tag.encode(), i=f"TAGS\1{tag}\2")
    answer = wire.pull("t", sysFlag=0, subVersion=5)
    assert [message.body for message in decode_messages(answer.payload)] == [b"red"]
    stale = wire.pull("t", sysFlag=0, subVersion=6)
    assert stale.code == ResponseCode.SUBSCRIPTION_NOT_LATEST


def test_consume_stats_show_the_lag(wire: JobWire) -> None:
    wire.create("t", queues=1)
    for _ in range(3):
        wire.put("t", b"x")
    wire.pull("t", 0, 2, sysFlag=5, commitOffset=1)
    answer = wire.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="g")
    table = body(answer)["offsetTable"]
    assert isinstance(table, dict)
    [queue] = table.values()
    assert (queue["brokerOffset"], queue["consumerOffset"], queue["pullOffset"]) == (3, 1, 2)


def test_reset_moves_the_group_with_its_next_pull(wire: JobWire) -> None:
    wire.create("t", queues=1)
    for _ in range(3):
        wire.put("t", b"x")
    answer = wire.ask(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, topic="t", group="g", timestamp=0, isForce="true"
    )
    assert list(loads(answer.payload, dict)["offsetTable"].values()) == [0]
    moved = wire.pull("t", 0, 3)
    assert (moved.code, moved.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
    assert moved.ext["nextBeginOffset"] == "0"
    assert wire.pull("t", 0, 0).code == 0


def test_locked_queue_is_granted_to_one_client(wire: JobWire) -> None:
    queue = {"topic": "t", "brokerName": "broker-a", "queueId": 0}

    def lock(code: int, client: str) -> Command:
        asked = {"consumerGroup": "g", "clientId": client, "mqSet": [queue]}
        return wire.ask(code, msgspec.json.encode(asked))

    assert body(lock(RequestCode.LOCK_BATCH_MQ, "a"))["lockOKMQSet"] == [queue]
    assert body(lock(RequestCode.LOCK_BATCH_MQ, "b"))["lockOKMQSet"] == []
    lock(RequestCode.UNLOCK_BATCH_MQ, "a")
    assert body(lock(RequestCode.LOCK_BATCH_MQ, "b"))["lockOKMQSet"] == [queue]


def test_full_disk_refuses_writes_and_reads_go_on(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.address) as wire:
        wire.create("t")
        wire.put("t", b"x")
    full = BrokerSettings(min_free_space=2**62)
    with EmbeddedBroker(tmp_path, settings=full) as broker, JobWire(broker.address) as wire:
        answer = wire.put("t", b"y")
        assert answer.code == ResponseCode.STORAGE_FAILED
        assert str(tmp_path) in (answer.remark or "")
        assert "free" in (answer.remark or "")
        assert wire.open().code == ResponseCode.STORAGE_FAILED
        assert [m.body for m in decode_messages(wire.pull("t").payload)] == [b"x"]
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.address) as wire:
        assert wire.put("t", b"y").ext["queueOffset"] == "1"


def test_port_in_use_is_a_clear_error(broker: EmbeddedBroker, tmp_path: Path) -> None:
    port = int(broker.address.rpartition(":")[2])
    with pytest.raises(SettingsError, match=rf"127\.0\.0\.1:{port}: it is in use"):
        EmbeddedBroker(tmp_path / "other", port).start()


def test_folder_in_use_is_a_clear_error(broker: EmbeddedBroker, tmp_path: Path) -> None:
    with pytest.raises(StoreLockedError, match=str(os.getpid())):
        EmbeddedBroker(tmp_path / "data").start()


def test_process_tells_its_address_and_stops_when_asked(tmp_path: Path) -> None:
    with spawn_broker(tmp_path) as broker:
        with Wire(broker.address) as wire:
            wire.create("t")
            wire.put("t", b"x")
        os.kill(broker.pid, signal.SIGTERM)
        assert broker.process.wait(20) == 0
    host, _, port = broker.address.rpartition(":")
    with socket.socket() as probe:
        assert probe.connect_ex((host, int(port))) == errno.ECONNREFUSED


def test_answered_message_survives_a_killed_process(tmp_path: Path) -> None:
    with spawn_broker(tmp_path) as broker:
        with JobWire(broker.address) as wire:
            wire.create("t")
            wire.put("t", b"x")
            wire.open()
            wire.stage({("t", 0): [b"y"]})
        broker.kill()
    with spawn_broker(tmp_path) as broker, JobWire(broker.address) as wire:
        assert [m.body for m in decode_messages(wire.pull("t").payload)] == [b"x"]
        assert wire.plan(["t"]).record is not None


def test_second_process_on_a_folder_is_refused(tmp_path: Path) -> None:
    with spawn_broker(tmp_path) as broker, pytest.raises(StoreLockedError, match=str(broker.pid)):
        spawn_broker(tmp_path)


def test_process_on_a_port_in_use_is_refused(broker: EmbeddedBroker, tmp_path: Path) -> None:
    port = int(broker.address.rpartition(":")[2])
    with pytest.raises(SettingsError, match="in use"):
        spawn_broker(tmp_path / "other", port)


def test_group_of_a_job_shows_in_rocketmqs_lists(wire: JobWire) -> None:
    wire.open()
    wire.commit(offsets={"in@broker-a@0": 1}, group="group")
    assert wire.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="%RETRY%group").code == 0


def test_runtime_info_has_what_cluster_list_reads(wire: JobWire) -> None:
    table = body(wire.ask(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
    assert isinstance(table, dict)
    assert {
        "brokerVersionDesc",
        "brokerActive",
        "putTps",
        "getTransferredTps",
        "earliestMessageTimeStamp",
        "commitLogDiskRatio",
    } <= table.keys()
    assert len(table["putTps"].split()) == 3


def test_what_comes_while_a_topic_of_its_name_is_deleted_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, slow = snapshots.save_snapshot, threading.Event()

    def save(path: Path, table: object) -> None:
        if slow.is_set():
            time.sleep(0.3)
        inner(path, table)

    monkeypatch.setattr(snapshots, "save_snapshot", save)
    with (
        EmbeddedBroker(tmp_path) as broker,
        JobWire(broker.address) as deleting,
        JobWire(broker.address) as sending,
    ):
        deleting.create("again", queues=1)
        assert sending.put("again", b"old").code == 0
        slow.set()
        number = deleting.send(RequestCode.DELETE_TOPIC_IN_BROKER, topic="again")
        time.sleep(0.1)
        sent = sending.start_put("again", b"new", c="TBW102")
        place = {"consumerGroup": "g", "topic": "again", "queueId": 0}
        told = sending.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=1, **place)
        assert (told.code, sending.receive(sent).code) == (0, 0)
        assert deleting.receive(number).code == 0
        slow.clear()
        (message,) = decode_messages(sending.pull("again").payload)
        assert message.body == b"new"
        assert sending.ask(RequestCode.QUERY_CONSUMER_OFFSET, **place).ext["offset"] == "1"
