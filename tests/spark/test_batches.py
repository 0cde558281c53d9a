"""Committed batches in users' functions and in Spark's own writers."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from headrace import BatchRecords, BatchToken, serdes
from headrace.client import Admin, Client
from headrace.failpoints import ENVIRONMENT_VARIABLE
from headrace.spark import StreamJob
from headrace.streams import Stream, StreamBuilder
from headrace.topology import Topology
from tests.clusters import Cluster
from tests.spark import batch_program
from tests.spark.batch_program import NOTES, TOPIC
from tests.spark.pipelines import LIMIT, Rig

pytestmark = pytest.mark.spark

LINES = [f"line {number}" for number in range(400)]


def await_true(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT.total_seconds()
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.05)


def run(rig: Rig, topology: Topology, **given: Any) -> None:
    with StreamJob(topology, rig.settings(**given)).start() as job:
        job.await_caught_up(LIMIT)
        job.await_batches(LIMIT)


def calls(path: Path) -> list[tuple[int, str]]:
    """Batch and value of every record of every call."""
    if not path.exists():
        return []
    rows = [line.split("\t") for line in path.read_text().splitlines()]
    return [(int(batch), value) for batch, value in rows]


def noting(path: Path) -> Callable[[BatchRecords[Any, str], BatchToken], None]:
    """Make a function that writes down what it gets, and raises while there is a file ``.broken``."""
    broken = path.with_suffix(".broken")

    def note(records: BatchRecords[Any, str], token: BatchToken) -> None:
        if broken.exists():
            message = "not yet, it is broken"
            raise ValueError(message)
        with path.open("a") as file:
            file.writelines(f"{token.batch}\t{record.value}\n" for record in records)

    return note


def test_every_batch_comes_once_in_order_also_after_failures_and_a_restart(
    rig: Rig, tmp_path: Path
) -> None:
    lines, notes = rig.topic(queues=2), tmp_path / "notes"
    builder = StreamBuilder(f"noted-{lines}")
    builder.source(lines, serdes.string).for_each_batch(noting(notes), name="note")
    topology = builder.build()
    broken = notes.with_suffix(".broken")
    broken.touch()
    rig.send(lines, LINES[:200])
    with StreamJob(topology, rig.settings(max_records_per_batch=60)).start() as job:
        job.await_caught_up(LIMIT)
        await_true(lambda: job.statistics().batches["note"].failures > 1)
        status = job.statistics().batches["note"]
        assert "not yet, " in (status.error or "")
        assert "test_batches.py" in (status.error or "")
        broken.unlink()
        job.await_batches(LIMIT)
        assert job.statistics().batches["note"].failures == 0
    found = calls(notes)
    assert sorted(value for _, value in found) == sorted(LINES[:200])
    batches = [batch for batch, _ in found]
    assert batches == sorted(batches)
    assert len(set(batches)) > 2
    rig.send(lines, LINES[200:])
    run(rig, topology)
    assert sorted(value for _, value in calls(notes)) == sorted(LINES)


def test_parquet_holds_every_record_once(
    rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines, folder = rig.topic(queues=2), tmp_path / "parquet"
    builder = StreamBuilder(f"parquet-{lines}")
    words = builder.source(lines, serdes.string)
    numbered = words.key_by(lambda line: line[-1]).map_values(int_of)
    tries: list[int] = []

    def write(frame: DataFrame, token: BatchToken) -> None:
        tries.append(token.batch)
        frame.write.mode("overwrite").parquet(f"{folder}/batch={token.batch}")
        if len(tries) < 3:
            message = "after the files were written"
            raise ValueError(message)

    numbered.sink_dataframe(write, name="files")
    rig.send(lines, LINES)
    run(rig, builder.build(), max_records_per_batch=150)
    assert "after the files were written" in caplog.text
    assert "test_batches.py" in caplog.text
    assert tries[:3] == [tries[0]] * 3
    assert len(set(tries)) == len(tries) - 2
    session = SparkSession.getActiveSession()
    assert session is not None
    rows = session.read.parquet(str(folder)).collect()
    assert sorted(row.value for row in rows) == list(range(400))
    assert {(row.key, row.value) for row in rows} == {(line[-1], int_of(line)) for line in LINES}
    assert len({row.batch for row in rows}) > 1
    assert len({(row.broker, row.queue, row.offset) for row in rows}) == 400
    assert all(row.time is not None for row in rows)


def int_of(line: str) -> int:
    return int(line.split()[1])


def hang_in_a_function(read: Stream[Any, str]) -> None:
    read.for_each_batch(lambda records, token: time.sleep(600), name="hang")


def hang_in_spark(read: Stream[Any, str]) -> None:
    read.sink_dataframe(
        lambda frame, token: frame.foreach(lambda row: time.sleep(600)), name="hang"
    )


@pytest.mark.slow
@pytest.mark.parametrize("hang", [hang_in_a_function, hang_in_spark])
def test_what_hangs_holds_nobody_up(rig: Rig, hang: Callable[[Stream[Any, str]], None]) -> None:
    lines, copies = rig.topic(), rig.topic()
    builder = StreamBuilder(f"hangs-{lines}")
    read = builder.source(lines, serdes.string)
    read.sink(copies, serdes.string)
    hang(read)
    rig.send(lines, LINES[:10])
    job = StreamJob(builder.build(), rig.settings()).start()
    try:
        job.await_caught_up(LIMIT)
        await_true(lambda: job.statistics().batches["hang"].running is not None)
        rig.send(lines, LINES[10:30])
        job.await_caught_up(LIMIT)
        assert job.statistics().batches["hang"].batch == 0
        begun = time.monotonic()
    finally:
        job.stop()
    assert time.monotonic() - begun < 20
    assert len(rig.read(copies)) == 30


def test_a_table_of_tokens_takes_each_batch_once(rig: Rig, tmp_path: Path) -> None:
    lines, database = rig.topic(), tmp_path / "counts.db"

    def store(records: BatchRecords[str, int], token: BatchToken) -> None:
        with sqlite3.connect(database) as connection:
            connection.execute("create table if not exists done (batch integer primary key)")
            connection.execute(
                "create table if not exists counts (word text primary key, n integer)"
            )
            if connection.execute("select 1 from done where batch = ?", [token.batch]).fetchone():
                return
            connection.execute("insert into done values (?)", [token.batch])
            rows = [(record.key, record.value) for record in records]
            connection.executemany("insert or replace into counts values (?, ?)", rows)

    builder = StreamBuilder(f"tokens-{lines}")
    words = builder.source(lines, serdes.string).flat_map_values(str.split)
    words.key_by(lambda word: word).count().to_stream().for_each_batch(store, name="store")
    rig.send(lines, LINES)
    run(rig, builder.build(), max_records_per_batch=100)
    with sqlite3.connect(database) as connection:
        found = dict(connection.execute("select word, n from counts"))
    assert found == {"line": 400} | {str(number): 1 for number in range(400)}


@pytest.mark.slow
@pytest.mark.parametrize("place", ["job.after_commit", "batches.called"])
def test_a_killed_driver_loses_no_batch_and_repeats_none_under_another_token(
    embedded: Cluster, tmp_path: Path, place: str
) -> None:
    lines, notes = f"killed-{os.getpid()}-{place[:3]}", tmp_path / "notes"
    with Client(embedded.namesrv) as client:
        Admin(client).create_topic(lines, queues=2)
        Rig(embedded.namesrv, client, tmp_path, lambda: lines).send(lines, LINES[:120])
    assert drive(embedded, lines, notes, f"{place}=kill:2") == -signal.SIGKILL
    before = calls_with_tokens(notes)
    assert drive(embedded, lines, notes) == 0
    found = calls_with_tokens(notes)
    by_token = dict(found)
    assert all(by_token[token] == values for token, values in found)
    numbers = [int(token.rpartition("-")[2]) for token in by_token]
    assert numbers == list(range(1, len(numbers) + 1))
    assert sorted(value for values in by_token.values() for value in values) == sorted(LINES[:120])
    # Only the call repeats that was made and not noted.
    repeated = 1 if place == "batches.called" else len(found) - len(by_token)
    assert len(found) - len(by_token) == repeated <= 1
    assert len(before) < len(found)


def drive(cluster: Cluster, lines: str, notes: Path, failpoints: str = "") -> int:
    """Run the program to its end, in a process of its own; give its status."""
    options = ["--namesrv", cluster.namesrv, "--data-dir", str(notes.parent / "data")]
    limits = ["--max-records-per-batch", "30", "--partitions", "2", "--master", "local[2]"]
    environment = {NOTES: str(notes), TOPIC: lines, ENVIRONMENT_VARIABLE: failpoints}
    command = [
        sys.executable,
        "-m",
        "headrace",
        "run",
        str(batch_program.__file__),
        "--no-supervise",
    ]
    return subprocess.run(
        [*command, "--until-caught-up", *options, *limits],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        timeout=240,
        check=False,
    ).returncode


def calls_with_tokens(notes: Path) -> list[tuple[str, list[str]]]:
    if not notes.exists():
        return []
    return [(token, values) for token, values in map(json.loads, notes.read_text().splitlines())]
