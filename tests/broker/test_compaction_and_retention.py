"""Compacted topics and retention through the broker, and what jobs need of both."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.errors import OffsetExpiredError, SettingsError
from headrace.protocol.codes import RequestCode
from headrace.protocol.messages import Message, decode_messages
from headrace.protocol.transactions import CommitRecord, PlanAnswer
from headrace.runtime.planning import starting_offsets
from headrace.store import MessageStore
from headrace.store.compaction import CompactionSettings
from tests.broker.wire import COMMIT_TOPIC, JobWire, staged_part

COMPACTION = "+cleanup.policy=COMPACTION"
SMALL = BrokerSettings(
    segment_size=4000,
    retention=None,
    retention_size=12_000,
    disk_watermark=1.0,
    flush="async",
    compaction=CompactionSettings(file_size=2000, tombstone_retention=timedelta(0)),
)
MESSAGE_ILLEGAL = 13
OFFSET_MOVED = 21


def store_of(broker: EmbeddedBroker) -> MessageStore:
    core = broker._server._core
    assert core is not None
    return core.store


def filled(wire: JobWire, topic: str, count: int) -> None:
    wire.create(topic)
    for _ in range(count):
        assert wire.put(topic, b"x" * 500).code == 0


def keys(wire: JobWire, topic: str, queue: int = 0) -> list[tuple[str | None, bytes]]:
    found: list[tuple[str | None, bytes]] = []
    offset = 0
    while True:
        answer = wire.pull(topic, queue, offset)
        if answer.code not in (0, 20):
            return found
        found += [(each.keys, each.body) for each in decode_messages(answer.payload)]
        offset = int(answer.ext["nextBeginOffset"])


def test_a_compacted_topic_keeps_the_newest_message_of_each_key(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, settings=SMALL) as broker, JobWire(broker.address) as wire:
        wire.create("prices", attributes=COMPACTION)
        assert store_of(broker).compacted_topics() == ["prices"]
        for number in range(30):
            assert wire.put("prices", b"%d" % number, i=f"KEYS\1k{number % 3}\2").code == 0
        assert wire.put("prices", b"", i="KEYS\1k0\2").code == 0
        filled(wire, "others", 60)
        store = store_of(broker)
        store.compact(force=True)
        assert store.expire().segments > 0
        assert keys(wire, "prices") == [("k1", b"28"), ("k2", b"29")]
    with EmbeddedBroker(tmp_path, settings=SMALL) as broker, JobWire(broker.address) as wire:
        assert keys(wire, "prices") == [("k1", b"28"), ("k2", b"29")]
        minimum = wire.ask(RequestCode.GET_MIN_OFFSET, topic="prices", queueId=0)
        assert minimum.ext["offset"] == "28"
        answer = wire.put("prices", b"new", i="KEYS\1k1\2")
        assert answer.ext["queueOffset"] == "31"


def test_a_topic_deleted_and_made_again_starts_clean(tmp_path: Path) -> None:
    """B8."""
    with EmbeddedBroker(tmp_path, settings=SMALL) as broker, JobWire(broker.address) as wire:
        for _ in range(2):
            wire.create("prices", attributes=COMPACTION)
            assert keys(wire, "prices") == []
            assert wire.put("prices", b"1", i="KEYS\1k\2").ext["queueOffset"] == "0"
            store_of(broker).compact()
            assert keys(wire, "prices") == [("k", b"1")]
            assert wire.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="prices").code == 0


@pytest.mark.parametrize("properties", ["", "KEYS\1   \2", "KEYS\1\t\2", "TAGS\1t\2"])
def test_a_blank_key_is_refused(broker: EmbeddedBroker, wire: JobWire, properties: str) -> None:
    wire.create("prices", attributes=COMPACTION)
    answer = wire.put("prices", b"x", i=properties)
    assert answer.code == MESSAGE_ILLEGAL
    assert "Required message key is missing" in (answer.remark or "")
    assert store_of(broker).bounds("prices", 0).max_offset == 0


def test_a_batch_with_one_blank_key_is_refused_whole(broker: EmbeddedBroker, wire: JobWire) -> None:
    wire.create("prices", attributes=COMPACTION)
    good, blank = (Message(topic="prices", body=b"x", keys=key) for key in ("k", "  "))
    assert wire.put_batch("prices", [good, blank]).code == MESSAGE_ILLEGAL
    assert wire.put_batch("prices", [good, good]).code == 0
    assert store_of(broker).bounds("prices", 0).max_offset == 2


def test_what_is_compacted_is_found_again_whichever_note_was_lost(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, settings=SMALL) as broker, JobWire(broker.address) as wire:
        wire.create("prices", attributes=COMPACTION)
        wire.put("prices", b"1", i="KEYS\1k\2")
    (tmp_path / "topics.json").unlink()
    with EmbeddedBroker(tmp_path, settings=SMALL) as broker, JobWire(broker.address) as wire:
        assert wire.put("prices", b"2").code == MESSAGE_ILLEGAL
        wire.create("another")
    with MessageStore.open(tmp_path / "store") as store:
        store.delete_topic("prices").result()
    with EmbeddedBroker(tmp_path, settings=SMALL) as broker:
        # The topic is still known as a compacted one.
        assert store_of(broker).compacted_topics() == ["prices"]


def test_a_pull_below_the_first_offset_tells_where_to_go_on(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, settings=SMALL) as broker, JobWire(broker.address) as wire:
        filled(wire, "lines", 60)
        assert wire.ask(RequestCode.DELETE_EXPIRED_COMMITLOG).code == 0
        first = store_of(broker).bounds("lines", 0).min_offset
        assert first > 10
        answer = wire.pull("lines", 0, 3)
        assert (answer.code, answer.remark) == (OFFSET_MOVED, "OFFSET_TOO_SMALL")
        assert answer.ext["nextBeginOffset"] == answer.ext["minOffset"] == str(first)
        assert wire.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE).code == 0


def test_the_broker_tells_of_compaction_and_of_its_settings(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, settings=SMALL) as broker, JobWire(broker.address) as wire:
        wire.create("prices", attributes=COMPACTION)
        for number in range(30):
            wire.put("prices", b"%d" % number, i="KEYS\1k\2")
        store_of(broker).compact(force=True)
        answer = wire.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = json.loads(bytes(answer.payload))["table"]
        assert table["headraceCompactionQueues"] == "1"
        assert int(table["headraceCompactionRuns"]) >= 1
        assert table["headraceCompactionDirtyBytes"] == "0"
        assert table["dispatchBehindBytes"] == table["headraceReputLag"] == "0"
        assert int(table["headraceCompactionLastRun"]) > 0
        config = bytes(wire.ask(RequestCode.GET_BROKER_CONFIG).payload).decode()
        assert "diskMaxUsedSpaceRatio=100\n" in config
        statistics = broker.statistics().store.compaction
        assert (statistics.queues, statistics.records_dropped) == (1, 29)


def test_a_job_restarts_when_old_commit_records_and_old_state_are_gone(tmp_path: Path) -> None:
    """Commit topics are compacted: the newest record of each epoch and kind stays."""
    with EmbeddedBroker(tmp_path, settings=SMALL) as broker, JobWire(broker.address) as wire:
        wire.create("state", attributes=COMPACTION)
        filled(wire, "others", 1)
        for epoch in range(1, 4):
            assert wire.open().code == 0
            for batch in range(5 * epoch - 4, 5 * epoch + 1):
                wire.stage({("others", 0): [b"x" * 900]}, epoch=epoch, batch=batch)
                offsets = {"others@broker-a@0": batch}
                parts = [staged_part()]
                answer = wire.commit(batch, epoch=epoch, parts=parts, offsets=offsets)
                assert answer.code == 0, answer.remark
        store = store_of(broker)
        assert COMMIT_TOPIC in store.compacted_topics()
        store.compact(force=True)
        assert store.expire().segments > 0
        store.compact(force=True)
        left = [
            msgspec.json.decode(body, type=CommitRecord) for _, body in keys(wire, COMMIT_TOPIC)
        ]
        assert [(each.kind, each.epoch, each.batch) for each in left] == [
            ("open", 1, 0),
            ("commit", 1, 5),
            ("open", 2, 5),
            ("commit", 2, 10),
            ("open", 3, 10),
            ("commit", 3, 15),
        ]
    with EmbeddedBroker(tmp_path, settings=SMALL) as broker, JobWire(broker.address) as wire:
        answer = wire.open()
        record = msgspec.json.decode(answer.payload)["record"]
        assert (record["epoch"], record["batch"]) == (4, 15)
        assert record["offsets"] == {"others@broker-a@0": 15}


def test_commit_topic_of_a_job_that_was_started_again_and_again_stays_short(
    tmp_path: Path,
) -> None:
    with EmbeddedBroker(tmp_path, settings=SMALL) as broker, JobWire(broker.address) as wire:
        wire.create("others")
        for epoch in range(1, 81):
            assert wire.open().code == 0
            answer = wire.commit(epoch, epoch=epoch)
            assert answer.code == 0, answer.remark
        store_of(broker).compact(force=True)
        left = [
            msgspec.json.decode(body, type=CommitRecord) for _, body in keys(wire, COMMIT_TOPIC)
        ]
        assert len(left) <= 2 * 64
        assert (left[-1].kind, left[-1].epoch, left[-1].batch) == ("commit", 80, 80)
    with EmbeddedBroker(tmp_path, settings=SMALL) as broker, JobWire(broker.address) as wire:
        record = msgspec.json.decode(wire.open().payload)["record"]
        assert (record["epoch"], record["batch"]) == (81, 80)


class _Plans:
    """What a job's driver asks of the broker, over the wire."""

    def __init__(self, wire: JobWire) -> None:
        self._wire = wire

    def plan(self, topics: list[str], offsets: dict[str, int], _: int, __: int) -> PlanAnswer:
        return self._wire.plan(topics, offsets)


@pytest.mark.parametrize("choice", ["fail", "earliest"])
def test_a_job_whose_offset_has_expired_stops_or_goes_on_at_the_earliest(
    tmp_path: Path, choice: str
) -> None:
    with EmbeddedBroker(tmp_path, settings=SMALL) as broker, JobWire(broker.address) as wire:
        filled(wire, "lines", 60)
        assert store_of(broker).expire().segments > 0
        first = store_of(broker).bounds("lines", 0).min_offset
        settings = SimpleNamespace(on_expired_offset=choice, start="first")
        topology = SimpleNamespace(sources=())
        plan = SimpleNamespace(job="j", topology=topology, settings=settings)
        job: Any = SimpleNamespace(
            plan=plan, transactions=_Plans(wire), source_topics=lambda: ["lines"]
        )
        record = CommitRecord(
            job="j", kind="commit", epoch=1, batch=1, offsets={"lines@broker-a@0": 3}
        )
        if choice == "earliest":
            assert starting_offsets(job, record) == {"lines@broker-a@0": first}
            return
        with pytest.raises(OffsetExpiredError) as raised:
            starting_offsets(job, record)
        assert (
            f"at offset 3 of queue lines@broker-a@0, but the broker's first offset is {first}"
            in (str(raised.value))
        )
        assert "on_expired_offset='earliest'" in str(raised.value)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["dirty_rati=1"], "did you mean 'dirty_ratio'"),
        (["dirty_ratio=much"], "dirty_ratio"),
        (["dirty_ratio=2"], "dirty_ratio is '2': input should be less than or equal to 1"),
        (["max_lag=soon"], "max_lag"),
    ],
)
def test_wrong_settings_of_compaction_are_named(texts: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        CompactionSettings.parse(texts)


def test_settings_of_compaction_are_read() -> None:
    given = CompactionSettings.parse(
        ["threads=2", "max_lag=none", "bytes_per_second=10MB", "digest=md5", "min_lag=0"]
    )
    assert given == CompactionSettings(threads=2, bytes_per_second=10_000_000, digest="md5")


@pytest.mark.parametrize("text", ["", "10 parsecs", "-1"])
def test_wrong_sizes_and_durations_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"retention_size is .*a size is bytes"):
        BrokerSettings(retention_size=text)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=r"retention is .*a duration is a number"):
        BrokerSettings(retention=text)  # type: ignore[arg-type]


def test_messages_are_kept_for_ever() -> None:
    assert BrokerSettings(retention="forever").retention is None  # type: ignore[arg-type]
