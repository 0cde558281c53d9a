"""Tables on both kinds of cluster, and the three uses that compaction topics are made for."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker, spawn_broker
from headrace.client import (
    Admin,
    AsyncClient,
    AsyncTableReader,
    Client,
    ClientSettings,
    Message,
    MessageQueue,
    Producer,
    TableReader,
    TableWriter,
)
from headrace.errors import BrokerError, ConfigurationError, RequestTimeoutError
from headrace.keys import encode_key, partition_of
from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Command
from headrace.protocol.records import encode_records
from headrace.protocol.routes import BrokerData, QueueData, TopicRoute, dumps
from headrace.protocol.stamps import stamp_records
from headrace.store.compaction import CompactionSettings
from tests.client.scripted_server import scripted
from tests.client.test_push import until
from tests.client.test_restarts import Restartable

MakeTopic = Callable[..., str]
COMPACTED = {"cleanup.policy": "COMPACTION"}
EXAMPLES = Path(__file__).parents[2] / "examples"
SOON = timedelta(seconds=30)


def read(client: Client, topic: str) -> TableReader:
    table = TableReader(client, topic, wait=timedelta(seconds=1))
    table.caught_up(SOON)
    return table


def test_a_table_is_read_from_the_start_and_followed(client: Client, make_topic: MakeTopic) -> None:
    # Behaviour 34: the ordinary client, from offset 0, into a local map; the last write wins.
    topic = make_topic(queues=3, attributes=COMPACTED)
    writer = TableWriter(client, topic)
    for version in range(3):
        for number in range(20):
            writer.put(f"key-{number}", b"%d.%d" % (number, version))
    with read(client, topic) as table:
        assert len(table) == 20
        assert (table.get("key-7"), table.get("key-20"), table.get("key-20", b"-")) == (
            b"7.2",
            None,
            b"-",
        )
        # Read your writes: a value, a key that is no text, a delete.
        table.wait_until(writer.put("key-7", b"new"), SOON)
        table.wait_until(writer.put(("a", 1), b"pair"), SOON)
        table.wait_until(writer.delete("key-8"), SOON)
        assert (table.get("key-7"), table.get(("a", 1)), "key-8" in table) == (
            b"new",
            b"pair",
            False,
        )
        assert dict(table.items(prefix="key-1")) == {
            f"key-{n}": b"%d.2" % n for n in (1, *range(10, 20))
        }
        statistics = table.statistics()
        assert (statistics.keys, statistics.messages, statistics.without_key) == (20, 63, 0)
        assert sum(statistics.positions.values()) == 63
        assert statistics.bytes > 0
        (queue, *_) = statistics.positions
        with pytest.raises(RequestTimeoutError, match="not up to 1000"):
            table.wait_until({queue: 1000}, timedelta(milliseconds=50))
    with pytest.raises(ConfigurationError, match="would delete the key"):
        writer.put("k", b"")
    with pytest.raises(ConfigurationError, match="needs a key"):
        writer.put(None, b"x")


def test_equal_keys_go_to_one_queue_in_every_process(client: Client, make_topic: MakeTopic) -> None:
    # Behaviour 33: no hash that differs from process to process, and none that differs by release.
    names = ["a", "key-7", "Grüße", "group@lines@broker-a@3"]
    program = (
        "from headrace.keys import encode_key, partition_of\n"
        f"print([partition_of(encode_key(key), 8) for key in {names!r}])"
    )
    for seed in ("0", "1"):
        shown = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert shown.strip() == "[4, 6, 5, 6]"
    topic = make_topic(queues=8)
    producer = Producer(client)
    for name in names:
        expected = partition_of(encode_key(name), 8)
        assert producer.queue_for(topic, name).queue_id == expected
        assert producer.send(Message(topic=topic, body=b"x", keys=name)).queue.queue_id == expected


def test_a_table_outlives_its_broker(tmp_path: Path) -> None:
    broker = Restartable(tmp_path / "data")
    try:
        settings = ClientSettings(
            retry_timeout=timedelta(seconds=1), retry_backoff_limit=timedelta(milliseconds=100)
        )
        with Client(broker.address, settings) as client:
            Admin(client).create_topic("t", queues=1, attributes=COMPACTED)
            writer = TableWriter(client, "t")
            with read(client, "t") as table:
                table.wait_until(writer.put("a", b"1"), SOON)
                broker.kill()
                assert table.get("a") == b"1"
                broker.start()
                table.wait_until(writer.put("b", b"2"), SOON)
                assert dict(table.items()) == {"a": b"1", "b": b"2"}
                # The topic is made anew: its offsets begin at 0 again.
                Admin(client).delete_topic("t")
                Admin(client).create_topic("t", queues=1, attributes=COMPACTED)
                writer.put("c", b"3")
                until(lambda: dict(table.items()) == {"c": b"3"}, lambda: dict(table.items()))
    finally:
        broker.kill()


def test_damage_is_told_to_who_waits_for_a_table(tmp_path: Path) -> None:
    with spawn_broker(tmp_path) as broker, Client(broker.address) as client:
        Admin(client).create_topic("t", queues=1, attributes=COMPACTED)
        TableWriter(client, "t").put("color", b"yellow")
    (log,) = tmp_path.rglob("log/*.log")
    log.write_bytes(log.read_bytes().replace(b"yellow", b"Yellow"))
    with (
        spawn_broker(tmp_path) as broker,
        Client(broker.address) as client,
        TableReader(client, "t") as table,
        pytest.raises(BrokerError, match="does not match its checksum"),
    ):
        table.caught_up(SOON)


@pytest.mark.parametrize("offsets", [(2, 5, 9), ()])
def test_holes_that_compaction_left_are_passed_also_at_the_end(offsets: tuple[int, ...]) -> None:
    # Offset 11 was the last one, and is gone; at the end a server holds back its answers.
    topic, end = "t", 12
    pulls: list[tuple[int, bool]] = []

    def answer(command: Command) -> Command | None:
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            broker = BrokerData(broker_name="b", broker_addrs={"0": server_address[0]})
            queue = QueueData(broker_name="b", read_queue_nums=1, write_queue_nums=1)
            return command.reply(body=dumps(TopicRoute(broker_datas=[broker], queue_datas=[queue])))
        if command.code == RequestCode.GET_MAX_OFFSET:
            return command.reply(ext={"offset": str(end)})
        offset = int(command.ext["queueOffset"])
        waits = command.ext["suspendTimeoutMillis"] != "0"
        pulls.append((offset, waits))
        ext = {"minOffset": "0", "maxOffset": str(end), "nextBeginOffset": str(end)}
        found = next((there for there in offsets if there >= offset), None)
        if found is None:
            return None if waits else command.reply(19, ext=ext)
        record = encode_records(topic, 0, [b"v%d" % found], b"KEYS\x01k%d\x02" % found)
        stamp_records(record, found, 0, 1, ("127.0.0.1", 1))
        return command.reply(ext=ext | {"nextBeginOffset": str(found + 1)}, body=record.data)

    server_address: list[str] = []

    async def scenario() -> None:
        async with scripted(answer) as server, AsyncClient(server.address) as client:
            server_address.append(server.address)
            async with AsyncTableReader(client, topic) as table:
                await table.caught_up(SOON)
                assert dict(table.items()) == {f"k{n}": b"v%d" % n for n in offsets}
                assert list(table.statistics().positions.values()) == [end]

    asyncio.run(scenario())
    assert (end, True) in pulls


def example() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "tables"}
    exec(compile((EXAMPLES / "tables.py").read_text(), "tables.py", "exec"), names)
    return names


def test_consumer_offsets_source_positions_and_checkpoints(
    client: Client, make_topic: MakeTopic
) -> None:
    # Behaviour 35: the three uses that the compaction topic was made for.
    uses = example()
    topics = [make_topic(queues=2, attributes=COMPACTED) for _ in range(3)]
    queue = MessageQueue("lines", "broker-a", 3)
    offsets = uses["GroupOffsets"](client, topics[0])
    positions = uses["SourcePositions"](client, topics[1])
    checkpoints = uses["Checkpoints"](client, topics[2])
    for number in range(1, 4):
        offsets.commit("readers", queue, 100 * number)
        positions.note("orders-db", f"shard-{number % 2}", {"file": "bin.7", "at": number})
        checkpoints.save("word-count", "task-0", number, {"words": number})
    offsets.commit("others", queue, 7)
    assert (offsets.committed("readers", queue), offsets.committed("others", queue)) == (300, 7)
    assert checkpoints.last("word-count", "task-0") == (3, {"words": 3})
    # The next process finds all of it.
    positions = uses["SourcePositions"](client, topics[1])
    assert positions.position("orders-db", "shard-1") == {"file": "bin.7", "at": 3}
    assert positions.partitions("orders-db") == ["shard-0", "shard-1"]
    assert uses["GroupOffsets"](client, topics[0]).committed("readers", queue) == 300
    checkpoints.forget("word-count", "task-0")
    assert uses["Checkpoints"](client, topics[2]).last("word-count", "task-0") is None


def test_a_table_stays_right_while_its_topic_is_compacted(tmp_path: Path) -> None:
    compaction = CompactionSettings(
        file_size=16 << 10, dirty_ratio=0.01, tombstone_retention=timedelta(0)
    )
    settings = BrokerSettings(compaction=compaction)
    model: dict[str, bytes] = {}
    with EmbeddedBroker(tmp_path, settings=settings) as broker, Client(broker.address) as client:
        Admin(client).create_topic("t", queues=2, attributes=COMPACTED)
        producer, sent = Producer(client), 0
        queues = client.queues("t")
        with read(client, "t") as early:
            # The broker hands records on to the compaction log by the thousands.
            for version in range(100):
                for number, queue in enumerate(queues):
                    keys = [f"key-{n}" for n in range(number, 100, 2)]
                    # The last queue's last messages are deletes, and compaction takes them.
                    values = [b"" if n % 7 == version % 7 else b"%d" % version for n in range(50)]
                    producer.send_batch(
                        [
                            Message(topic="t", body=value, keys=key)
                            for key, value in zip(keys, values, strict=True)
                        ],
                        queue,
                    )
                    sent += len(keys)
                    model.update(zip(keys, values, strict=True))
            live = {key: value for key, value in model.items() if value}
            early.caught_up(SOON)
            assert dict(early.items()) == live

        def fresh() -> int:
            with read(client, "t") as late:
                assert dict(late.items()) == live
                return late.statistics().messages

        until(lambda: fresh() < sent // 2, fresh)
