from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from headrace.client import Admin, Client, ClientSettings, Message, MessageQueue, Producer
from headrace.errors import OffsetExpiredError
from headrace.keys import properties_of_key
from headrace.protocol.columns import decode_columns
from headrace.protocol.properties import encode_properties
from headrace.protocol.records import encode_records
from headrace.protocol.transactions import CommitRecord
from headrace.spark.rocketmq.options import ClusterOptions
from headrace.spark.rocketmq.source import RangeReader, ReadRange, arrow_schema, read_schema
from headrace.spark.rocketmq.writer import record_batch
from tests.clusters import Cluster

SCHEMA = arrow_schema(read_schema(headers=True))
QUEUE = MessageQueue("lines", "broker-a", 0)


def rows(properties: list[bytes], end: int = 1000) -> pa.RecordBatch:
    bodies = [b"%d" % number for number in range(len(properties))]
    records = encode_records("lines", 0, bodies, properties, born=5)
    columns = decode_columns(records.data)
    columns.queue_offset[:] = np.arange(len(bodies))
    return record_batch(QUEUE, columns, end, SCHEMA)


@pytest.mark.parametrize(
    ("key", "read"),
    [
        ("word", b"word"),
        (None, None),
        (b"\xff\x00", b"\xff\x00"),
        ("", b""),
        ("long" * 3000, b"long" * 3000),
        (7, b"6907"),
        (("a", 1), None),
    ],
)
def test_keys_of_bytes_and_text_read_back_as_they_were(key: object, read: bytes | None) -> None:
    properties = properties_of_key(key)
    (found,) = rows([encode_properties(properties) if properties else b""])["key"].to_pylist()
    # The key of another type stays as KEYS shows it.
    assert found == (properties["KEYS"].encode() if isinstance(key, tuple) else read)


def test_a_broken_exact_key_leaves_the_plain_one() -> None:
    batch = rows([b"KEYS\x01k\x02HEADRACE_KEY\x01zz\x02", b"KEYS\x01j\x02"])
    assert batch["key"].to_pylist() == [b"k", b"j"]


def test_rows_stop_in_front_of_the_end() -> None:
    batch = rows([b"TAGS\x01red\x02a\x01b\x02TX\x01job:1:0\x02"] * 5, end=3)
    batch.validate(full=True)
    assert batch["value"].to_pylist() == [b"0", b"1", b"2"]
    assert batch["offset"].to_pylist() == [0, 1, 2]
    assert batch["tags"].to_pylist() == ["red"] * 3
    assert batch["headers"].to_pylist() == [[{"key": "a", "value": "b"}]] * 3


def test_the_schema_is_the_one_that_spark_compares_with() -> None:
    assert rows([b""]).schema.equals(SCHEMA)


@pytest.fixture
def read(
    cluster: Cluster, client: Client, make_topic: Callable[..., str]
) -> Callable[[int, int, bool], list[bytes]]:
    """Read a range of a queue that holds three messages."""
    topic = make_topic(queues=1)
    (queue,) = client.queues(topic)
    bodies = [b"a", b"b", b"c"]
    Producer(client).send_batch([Message(topic=topic, body=body) for body in bodies], queue)

    # The client waits so long for messages that the queue should hold by now.
    settings = ClientSettings(request_timeout=timedelta(milliseconds=500))

    def values(begin: int, end: int, strict: bool) -> list[bytes]:
        reader = RangeReader(ClusterOptions(cluster.namesrv, settings), SCHEMA, strict)
        batches = reader.read(ReadRange(queue, begin, end))
        return [value for batch in batches for value in batch["value"].to_pylist()]

    return values


def test_a_range_is_read_without_its_end(read: Callable[[int, int, bool], list[bytes]]) -> None:
    assert read(1, 3, True) == [b"b", b"c"]
    assert read(0, 2, True) == [b"a", b"b"]


@pytest.mark.rocketmq
def test_with_committed_a_message_is_read_once(rocketmq: Cluster) -> None:
    topic = f"committed-{time.time_ns()}"
    with Client(rocketmq.namesrv) as client:
        for name in (topic, f"{topic}-commitTopic"):
            Admin(client).create_topic(name, queues=1)
        record = CommitRecord(job=topic, kind="commit", epoch=1, batch=1)
        Producer(client).send(
            Message(topic=f"{topic}-commitTopic", body=msgspec.json.encode(record))
        )
        (queue,) = client.queues(topic)
        for number in (0, 1, 0, 2):
            body, tag = b"%d" % number, f"{topic}:1:{number}"
            Producer(client).send(Message(topic=topic, body=body, properties={"TX": tag}), queue)
        cluster = ClusterOptions(rocketmq.namesrv, ClientSettings())
        for committed, found in ((False, [b"0", b"1", b"0", b"2"]), (True, [b"0", b"1", b"2"])):
            reader = RangeReader(cluster, SCHEMA, committed=committed)
            batches = list(reader.read(ReadRange(queue, 0, 4)))
            assert [value for batch in batches for value in batch["value"].to_pylist()] == found


def test_messages_that_are_gone_are_an_error_or_passed_over(
    read: Callable[[int, int, bool], list[bytes]],
) -> None:
    with pytest.raises(OffsetExpiredError, match="set failOnDataLoss to false"):
        read(1, 9, True)
    assert read(1, 9, False) == [b"b", b"c"]
