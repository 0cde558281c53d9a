from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from headrace.connect.connectors.storage import FilesSinkConnector, FilesSourceConnector
from headrace.errors import ConnectionFailedError, DeserializationError
from tests.connect.connectors import runs
from tests.connect.connectors.runs import problems, source
from tests.connect.servers.s3 import S3Bucket

ROWS = [{"id": number, "name": f"n{number}"} for number in range(25)]


def texts(bucket: S3Bucket, **more: str) -> dict[str, str]:
    given = {name.replace("_", "."): value for name, value in more.items()}
    quick = {"topic": "rows", "scan.interval.ms": "0", "batch.max.rows": "10"}
    return {**bucket.config, **quick, **given}


def parquet() -> bytes:
    held = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), held, row_group_size=7)
    return held.getvalue()


def csv() -> bytes:
    return b"id,name\n" + b"".join(f"{row['id']},{row['name']}\n".encode() for row in ROWS)


def jsonl() -> bytes:
    lines = [f'{{"id":{row["id"]},"name":"{row["name"]}"}}\n' for row in ROWS]
    return "".join(lines).encode()


CONTENTS: dict[str, Callable[[], bytes]] = {
    "a.csv": csv,
    "a.jsonl": jsonl,
    "a.parquet": parquet,
    "a.jsonl.gz": lambda: gzip.compress(jsonl()),
    "a.csv.gz": lambda: gzip.compress(csv()),
}


@pytest.mark.requirement(21)
@pytest.mark.parametrize("name", sorted(CONTENTS))
@pytest.mark.parametrize("rounds", [0, 1, 2, 3])
def test_restart_goes_on_at_the_row(bucket: S3Bucket, name: str, rounds: int) -> None:
    bucket.put(f"in/{name}", CONTENTS[name]())
    with source(FilesSourceConnector, texts(bucket, prefixes="in")) as run:
        found = run.values(rounds=rounds)
        run.poll(rounds=1)
        run.kill()
        found += run.values()
        run.kill()
        assert run.values() == []
        [position] = run.committed.all()
    assert found == ROWS
    assert position[0] == {"bucket": bucket.name, "object": f"in/{name}"}
    assert position[1]["row"] == 25


def test_objects_below_the_prefixes_are_read_in_the_order_of_their_keys(bucket: S3Bucket) -> None:
    for key in ("b/1.jsonl", "a/2.jsonl", "a/1/x.jsonl", "c/1.jsonl", "ab/1.jsonl"):
        bucket.put(key, f'"{key}"\n'.encode())
    with source(FilesSourceConnector, texts(bucket, prefixes="b/, a")) as run:
        assert run.values() == ["a/1/x.jsonl", "a/2.jsonl", "b/1.jsonl"]
    with source(FilesSourceConnector, texts(bucket, files="*/1.jsonl")) as run:
        assert run.values() == ["ab/1.jsonl", "b/1.jsonl", "c/1.jsonl"]


def test_whole_objects_are_records_and_empty_ones_are_none(bucket: S3Bucket) -> None:
    bucket.put("a.bin", b"\x00raw")
    bucket.put("b.bin", b"more")
    with source(FilesSourceConnector, texts(bucket, format="whole")) as run:
        assert run.values() == [b"\x00raw", b"more"]
    for name in ("e.csv", "e.jsonl"):
        bucket.put(f"empty/{name}", b"")
    emptied = texts(bucket, prefixes="empty", when_done="delete")
    with source(FilesSourceConnector, emptied) as run:
        assert run.values() == []
    assert bucket.listed() == ["a.bin", "b.bin"]


@pytest.mark.slow
@pytest.mark.timeout(300)  # a busy machine takes its time for a thousand objects
def test_listing_of_more_than_a_page_is_whole(bucket: S3Bucket) -> None:
    keys = [f"many/{number:04d}.jsonl" for number in range(1_001)]
    for key in keys:
        bucket.put(key, b"1\n")
    with source(FilesSourceConnector, texts(bucket)) as run:
        assert [one.name for one in run.tasks[0]._files.ready(run.tasks[0]._config)] == keys  # type: ignore[attr-defined]


def test_new_and_changed_objects_are_read(bucket: S3Bucket) -> None:
    with source(FilesSourceConnector, texts(bucket)) as run:
        assert run.values() == []
        bucket.put("a.jsonl", b"1\n")
        assert run.values() == [1]
        bucket.put("b.jsonl", b"2\n")
        assert run.values() == [2]
        bucket.put("a.jsonl", b"3\n4\n")  # an object is never appended to: this is another one
        assert run.values() == [3, 4]
        run.kill()
        assert run.values() == []


def test_tasks_share_objects(bucket: S3Bucket) -> None:
    for number in range(12):
        bucket.put(f"{number}.jsonl", f"{number}\n".encode())
    with source(FilesSourceConnector, texts(bucket), tasks=3) as run:
        shares = [[run._taken(task.poll()) for _ in range(13)] for task in run.tasks]
    taken = [[record.value for polled in share for record in polled] for share in shares]
    assert all(taken)
    assert sorted(value for some in taken for value in some) == list(range(12))


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("action", ["move", "delete"])
def test_object_leaves_once_it_is_committed(bucket: S3Bucket, action: str, killed: bool) -> None:
    bucket.put("in/sub/a.jsonl", b"1\n2\n")
    config = texts(bucket, prefixes="in", when_done=action, done_uri=bucket.uri("done"))
    with source(FilesSourceConnector, config) as run:
        run.poll()
        assert "in/sub/a.jsonl" in bucket.listed()
        if killed:
            run.commit_positions(run._positions)  # the end comes between the commit and its news
            run.kill()
            assert run.poll() == []
            assert run.poll() == []
        else:
            run.commit()
    assert bucket.listed() == (["done/in/sub/a.jsonl"] if action == "move" else [])


def test_what_the_sink_writes_is_read_and_its_marks_are_not(bucket: S3Bucket) -> None:
    with runs.sink(FilesSinkConnector, {**bucket.config, "uri": bucket.uri("raw")}) as run:
        run.put(ROWS[:5])
        run.commit()
        run.put(ROWS[5:])
        run.commit()
    assert any("_headrace" in key for key in bucket.listed())
    with source(FilesSourceConnector, texts(bucket)) as read:
        assert read.values() == ROWS


def test_bad_object_is_named_or_passed_over(bucket: S3Bucket) -> None:
    bucket.put("a.jsonl.gz", b"this is no gzip")
    bucket.put("b.jsonl", b"1\n")
    what = r"a\.jsonl\.gz cannot be read behind row 0"
    with (
        source(FilesSourceConnector, texts(bucket)) as run,
        pytest.raises(DeserializationError, match=what),
    ):
        run.poll()
    with source(FilesSourceConnector, texts(bucket, bad_files="skip")) as run:
        assert run.values() == [1]


def test_storage_that_goes_away_is_no_bad_object(
    bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put("a.jsonl", b"1\n")
    gone = {**bucket.config, "endpoint": "http://127.0.0.1:1"}
    away = fs.S3FileSystem(
        access_key="a",
        secret_key="b",
        region="us-east-1",
        endpoint_override=gone["endpoint"],
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),
        connect_timeout=1,
    )
    with source(FilesSourceConnector, texts(bucket, bad_files="skip")) as run:
        task: Any = run.tasks[0]
        found = list(task._files.ready(task._config))
        monkeypatch.setattr(task._files, "ready", lambda _: iter(found))
        monkeypatch.setattr(task._files, "files", away)
        with pytest.raises(ConnectionFailedError, match="does not do what was asked"):
            run.poll()
        monkeypatch.undo()
        assert run.values() == [1]


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"when.done": "move"}, "needs done.uri"),
        ({"when.done": "move", "done.uri": "s3://b/in/done", "prefixes": "in"}, "found again"),
        ({"when.done": "move", "done.uri": "s3://b/done"}, "found again"),
        ({"when.done": "move", "done.uri": "s3://b", "prefixes": "in"}, "found again"),
        ({"when.done": "move", "done.uri": "s3://c/done"}, "a place of the bucket b"),
        ({"ledger.uri": "/ledger"}, "a place of the bucket b"),
        ({"settle.ms": "1"}, "no key settle.ms for a bucket"),
        ({"csv.delimiter": "::"}, "one character"),
        ({"secret.access.key": "s"}, "belong together"),
    ],
)
def test_config_that_cannot_be_is_named(keys: dict[str, str], problem: str) -> None:
    given = {"uri": "s3://b", "topic": "t", **keys}
    assert any(problem in one for one in problems(FilesSourceConnector, given))


def test_objects_that_stay_are_read_once_however_many_they_are(bucket: S3Bucket) -> None:
    config = texts(bucket, prefixes="in", ledger_after_files="3")
    with source(FilesSourceConnector, config) as run:
        for first in (0, 7):
            for number in range(first, first + 7):
                bucket.put(f"in/{number:02}.jsonl", f"{number}\n".encode())
            assert run.values(rounds=20) == list(range(first, first + 7))
            assert run.values(rounds=20) == []
            named = {partition["ledger"] for partition, _ in run.committed.all()}
            found = run.tasks[0]._written.names()  # type: ignore[attr-defined]
            assert named == set(found)
            run.kill()
            assert run.values(rounds=20) == []
