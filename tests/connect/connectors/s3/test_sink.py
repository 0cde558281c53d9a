from __future__ import annotations

import gzip
import io
from collections.abc import Mapping
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from headrace.connect import SchemaError, SinkRecord
from headrace.connect.connectors.storage import FilesSinkConnector
from headrace.connect.connectors.storage.places import Bucket
from headrace.connect.testing import SinkTaskKit
from headrace.errors import ConnectorConfigError, FencedError, SerializationError
from tests.connect.connectors import runs
from tests.connect.connectors.runs import QUEUE, SinkRun, configured, problems
from tests.connect.servers.s3 import S3Bucket, S3Server

WHERE = {
    "rocketmq_topic": QUEUE.topic,
    "rocketmq_broker": QUEUE.broker,
    "rocketmq_queue_id": QUEUE.queue_id,
}


def texts(bucket: S3Bucket, **more: str) -> dict[str, str]:
    given = {name.replace("_", "."): value for name, value in more.items()}
    return {**bucket.config, "format": "jsonl", "compression": "none", **given}


def running(bucket: S3Bucket, **more: str) -> Any:
    return runs.sink(FilesSinkConnector, texts(bucket, **more))


def name(first: int, folder: str = "lines", queue: int = 0, ending: str = "jsonl") -> str:
    return f"{folder}/lines+broker-a+{queue}+{first:019d}.{ending}"


def objects(bucket: S3Bucket) -> list[str]:
    return [key for key in bucket.listed() if "_headrace" not in key]


def rows(bucket: S3Bucket) -> list[Any]:
    lines = (line for key in objects(bucket) for line in bucket.get(key).splitlines())
    return [orjson.loads(line) for line in lines]


def test_batch_becomes_one_object_per_queue(bucket: S3Bucket) -> None:
    other = QUEUE._replace(queue_id=1)
    config = texts(bucket, format="parquet", uri=bucket.uri("raw/shop/"))
    with runs.sink(FilesSinkConnector, config, queues=[QUEUE, other]) as run:
        run.put([{"a": 1}, {"a": 2}])
        run.put([{"a": 3}], other)
        run.put_columns(pa.array([{"a": 4}]))
        run.commit()
        run.put([{"a": 5}])
        run.commit()
    found = {
        key: pq.read_table(io.BytesIO(bucket.get(key)))["a"].to_pylist() for key in objects(bucket)
    }
    assert found == {
        "raw/shop/" + name(0, ending="parquet"): [1, 2, 4],
        "raw/shop/" + name(3, ending="parquet"): [5],
        "raw/shop/" + name(0, ending="parquet", queue=1): [3],
    }


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_lines_are_compressed(bucket: S3Bucket, kind: str, compression: str) -> None:
    with running(bucket, format=kind, compression=compression) as run:
        run.put([{"a": 1}, {"a": 2}])
        run.commit()
    [key] = objects(bucket)
    assert key == name(0, ending=f"{kind}.{'gz' if compression == 'gzip' else 'zst'}")
    unpack = gzip.decompress if compression == "gzip" else _unpack_zstd
    text = b'"a"\n1\n2\n' if kind == "csv" else b'{"a":1}\n{"a":2}\n'
    assert unpack(bucket.get(key)) == text


def _unpack_zstd(packed: bytes) -> bytes:
    return bytes(pa.CompressedInputStream(pa.BufferReader(packed), "zstd").read())


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd"])
def test_parquet_is_compressed_within(bucket: S3Bucket, compression: str) -> None:
    with running(bucket, format="parquet", compression=compression) as run:
        run.put_columns(pa.array([{"a": 1}]))
        run.commit()
    file = pq.ParquetFile(io.BytesIO(bucket.get(name(0, ending="parquet"))))
    wanted = "UNCOMPRESSED" if compression == "none" else compression.upper()
    assert file.metadata.row_group(0).column(0).compression == wanted


def test_object_of_many_megabytes_is_whole(bucket: S3Bucket) -> None:
    block = "x" * 1_000_000
    with running(bucket) as run:
        run.put([block + str(number) for number in range(30)])
        run.commit()
    assert [row[-2:].strip("x") for row in rows(bucket)] == [str(number) for number in range(30)]


@pytest.mark.parametrize("columns", [False, True])
def test_fields_and_times_choose_folders(bucket: S3Bucket, columns: bool) -> None:
    by = {"partition.by": "field,time", "partition.fields": "land", "partition.time.field": "at"}
    values = [
        {"n": 0, "land": "de", "at": 0},
        {"n": 1, "land": "fr", "at": 0},
        {"n": 2, "land": "de", "at": 86_400_000},
        {"n": 3, "land": "de", "at": 1},
    ]
    config = texts(bucket) | by | {"partition.time.format": "day=%d"}
    with runs.sink(FilesSinkConnector, config) as run:
        run.put_columns(pa.array(values)) if columns else run.put(values)
        run.commit()
    assert {key: bucket.get(key).count(b"\n") for key in objects(bucket)} == {
        name(0, "lines/land=de/day=01"): 2,
        name(0, "lines/land=de/day=02"): 1,
        name(0, "lines/land=fr/day=01"): 1,
    }


@pytest.mark.parametrize("columns", [False, True])
def test_record_that_belongs_to_no_folder_is_reported(bucket: S3Bucket, columns: bool) -> None:
    values = [{"n": 0, "at": 5}, {"n": 1, "at": None}, {"n": 2, "at": 7}]
    config = texts(bucket, partition_by="time", partition_time_field="at")
    with runs.sink(FilesSinkConnector, config, tolerant=True) as run:
        run.put_columns(pa.array(values)) if columns else run.put(values)
        run.commit()
        assert [(record.offset, record.value["n"]) for record, _ in run.reported] == [(1, 1)]
        assert isinstance(run.reported[0][1], SchemaError)
    assert [row["n"] for row in rows(bucket)] == [0, 2]


def test_topic_that_a_transform_gave_is_the_folder(bucket: S3Bucket) -> None:
    with running(bucket) as run:
        run.put([1])
        run.put_records([_renamed(1, "left"), _renamed(2, "right")])
        run.commit()
    assert objects(bucket) == [name(0, "left"), name(0), name(0, "right")]


def _renamed(offset: int, topic: str) -> SinkRecord:
    return SinkRecord(topic=topic, queue=QUEUE, offset=offset, value=offset)


def test_large_batch_is_cut(bucket: S3Bucket) -> None:
    with running(bucket, file_max_rows="2") as run:
        run.put(list(range(5)))
        run.commit()
    assert objects(bucket) == [name(0), name(2), name(4)]
    with running(bucket, file_max_bytes="100", uri=bucket.uri("small")) as run:
        run.put(["x" * 60] * 3)
        run.commit()
    assert len(bucket.listed("small/lines")) == 3


@pytest.mark.requirement(45)
def test_marks_are_the_offsets(bucket: S3Bucket) -> None:
    with running(bucket) as run:
        run.put([0, 1])
        run.flush()  # and the end comes before the runtime's own commit
        run.kill()
        assert run.next == {QUEUE: 2}
        run.committed = {}
        for key in objects(bucket):  # others may take objects away
            bucket.files.delete_file(f"{bucket.name}/{key}")
        run.kill()
        assert run.next == {QUEUE: 2}


def test_offsets_move_on_over_records_that_a_filter_dropped(bucket: S3Bucket) -> None:
    with running(bucket) as run:
        run.task.flush({QUEUE: 9})
        run.kill()
        assert run.next == {QUEUE: 9}
    assert objects(bucket) == []


class Killed(BaseException):
    """What a kill looks like from within the process."""


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count writes of objects; the process is killed in place of the one named ``kill``."""
    counted = {"done": 0, "kill": -1}

    def write(*arguments: Any) -> None:
        if counted["done"] == counted["kill"]:
            raise Killed
        counted["done"] += 1
        plain(*arguments)

    plain = Bucket.write
    monkeypatch.setattr(Bucket, "write", write)
    monkeypatch.setattr(Bucket, "stage", write)
    return counted


CUTS: Mapping[str, dict[str, str]] = {
    "whole": {},
    "cut": {"file_max_rows": "2"},
    "folders": {"partition_by": "field", "partition_fields": "n"},
}


@pytest.mark.requirement(45)
@pytest.mark.parametrize("cut", sorted(CUTS))
@pytest.mark.parametrize("again", [1, 6])
def test_every_row_is_there_once_wherever_a_flush_is_killed(
    bucket: S3Bucket, writes: dict[str, int], cut: str, again: int
) -> None:
    """The batch after the kill has fewer rows, or more of them."""
    number, killed = 0, True
    while killed:
        prefix = f"{number}"
        run = SinkRun(FilesSinkConnector, texts(bucket, uri=bucket.uri(prefix), **CUTS[cut]))
        run.put([{"n": 0}])
        run.commit()
        writes.update(done=0, kill=number)
        run.put([{"n": n} for n in range(1, 5)])
        try:
            run.flush()
            killed = False
        except Killed:
            pass
        writes.update(kill=-1)
        run.kill()
        for most in (again, 8):
            first = run._put[QUEUE]
            run.put([{"n": n} for n in range(first, min(8, first + most))])
            run.commit()
        run.stop()
        found = [orjson.loads(line)["n"] for line in _lines(bucket, prefix)]
        assert sorted(found) == list(range(8)), f"killed at write {number}"
        number += 1
    assert number > (1 if cut == "whole" else 3)


def _lines(bucket: S3Bucket, prefix: str) -> list[bytes]:
    keys = [key for key in bucket.listed(prefix) if "_headrace" not in key]
    return [line for key in keys for line in bucket.get(key).splitlines()]


def test_format_may_change_after_a_kill(bucket: S3Bucket, writes: dict[str, int]) -> None:
    run = SinkRun(FilesSinkConnector, texts(bucket, file_max_rows="1"))
    run.put([0])
    run.commit()
    run.put([1, 2])
    writes["kill"] = writes["done"] + 2  # the draft's mark and one object are written
    with pytest.raises(Killed):
        run.flush()
    writes["kill"] = -1
    with running(bucket, format="csv") as after:
        after.put([1, 2])
        after.commit()
    assert objects(bucket) == [name(1, ending="csv"), name(0)] or objects(bucket) == [
        name(0),
        name(1, ending="csv"),
    ]


def test_task_that_was_replaced_is_refused(bucket: S3Bucket) -> None:
    with SinkTaskKit(FilesSinkConnector, {**texts(bucket), "topics": "lines"}) as kit:
        kit.send(1)
        kit.put()
        [mark] = [key for key in bucket.listed() if "_headrace" in key]
        bucket.put(mark, b'{"offset": null, "generation": 2, "drafts": []}')
        with pytest.raises(FencedError, match="generation 2 writes this queue"):
            kit.flush()
    assert objects(bucket) == []


def test_values_of_no_common_shape_lose_no_record(bucket: S3Bucket) -> None:
    config = texts(bucket, format="parquet")
    with runs.sink(FilesSinkConnector, config) as run:
        with pytest.raises(SerializationError, match="fit into no column together"):
            run.put([{"a": 1}, {"a": "x"}])
        run.put([{"a": 1}])  # the runtime halves the batch
        run.commit()
    assert objects(bucket) == [name(0, ending="parquet")]


def test_offsets_can_be_set_further_on_but_not_back(bucket: S3Bucket) -> None:
    config = texts(bucket)
    connector = configured(FilesSinkConnector, config)
    parsed = connector.context.config
    assert connector.alter_offsets(parsed, [(WHERE, {"rocketmq_queue_offset": 5})])
    with runs.sink(FilesSinkConnector, config) as run:
        assert run.next == {QUEUE: 5}
    for to in ({"rocketmq_queue_offset": 4}, None):
        with pytest.raises(ConnectorConfigError, match="up to offset 5; it cannot go back"):
            connector.alter_offsets(parsed, [(WHERE, to)])


def test_bucket_that_is_missing_is_named(storage: S3Server, bucket: S3Bucket) -> None:
    with pytest.raises(ConnectorConfigError, match="There is no bucket nowhere at http"):
        SinkRun(FilesSinkConnector, {**texts(bucket), "uri": "s3://nowhere"})


def test_storage_that_is_away_may_come_back(bucket: S3Bucket) -> None:
    config = {**texts(bucket), "endpoint": "http://127.0.0.1:1", "request.attempts": "1"}
    with pytest.raises(ConnectionError, match="does not do what was asked") as caught:
        SinkRun(FilesSinkConnector, config)
    assert getattr(caught.value, "retriable", False)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("compression", "snappy", "snappy is for Parquet"),
        ("partition.by", "field", "partition.by=field and partition.fields belong together"),
        ("partition.by", "hour", "must be"),
        ("partition.time.zone", "Mars", "no time zone Mars"),
        ("access.key.id", "k", "belong together"),
        ("endpoint", "localhost", "URL"),
    ],
)
def test_config_that_cannot_be_is_named(key: str, value: str, problem: str) -> None:
    given = {"uri": "s3://b", "format": "csv", "compression": "gzip", key: value}
    assert any(problem in one for one in problems(FilesSinkConnector, given))


@settings(
    max_examples=6,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=st.lists(st.sampled_from(["put", "flush", "commit", "kill"]), max_size=12))
def test_every_record_is_there_once(storage: S3Server, steps: list[str]) -> None:
    bucket = storage.bucket()
    with runs.sink(FilesSinkConnector, texts(bucket, file_max_rows="3")) as run:
        for step in [*steps, "put", "commit"]:
            if step == "put":
                at = run._put.get(QUEUE, 0)
                run.put([at, at + 1])
            elif step == "flush":
                run.flush()
            elif step == "commit":
                run.commit()
            else:
                run.kill()
        reached = run._put[QUEUE]
    assert rows(bucket) == list(range(reached))
