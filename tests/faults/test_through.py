"""A topic of the job's own between two parts of it, on both kinds of cluster."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from headrace import serdes
from headrace.cli.app import app
from headrace.client import Admin, Producer, PullConsumer
from headrace.protocol.properties import encode_properties
from headrace.streams import StreamBuilder
from headrace.topology import Topology
from headrace.topology.operators.core import WATERMARK
from headrace.topology.windows import tumbling
from tests.faults.local_driver import LocalDriver
from tests.spark.pipelines import Rig

SECOND = timedelta(seconds=1)


def windows(
    events: str,
    results: str,
    *,
    passing: bool = True,
    idle_timeout: timedelta = timedelta(seconds=10),
) -> Topology:
    """Sums by seconds of (key, second) pairs, with those that come too late."""
    builder = StreamBuilder(f"through-{events}-{passing}")
    read = builder.source(
        events,
        serdes.json,
        timestamp=lambda e: e[1] * 1000,
        allowed_lateness=timedelta(0),
        idle_timeout=idle_timeout,
    )
    keyed = read.key_by(lambda event: event[0])
    table = (keyed.through(serde=serdes.json) if passing else keyed).window(tumbling(SECOND))
    counts = table.count()
    counts.to_stream().sink(results, serdes.json)
    counts.late().sink(results, serdes.json)
    return builder.build()


def send(rig: Rig, topic: str, queue: int, events: list[tuple[str, int]]) -> None:
    queues = sorted(rig.client.queues(topic, for_="write"))
    bodies = pa.array([json.dumps(event).encode() for event in events], pa.binary())
    Producer(rig.client).send_columns(queues[queue], bodies)


def settle(rig: Rig, driver: LocalDriver) -> int:
    """Catch up; how many batches there were."""
    batches, quiet = 0, 0
    # A RocketMQ broker shows what it was sent a moment later.
    while quiet < (1 if rig.client.is_headrace() else 3):
        more = driver.catch_up()
        batches, quiet = batches + more, 0 if more else quiet + 1
    return batches


def run(rig: Rig, *, passing: bool, batch_size: int = 7) -> list[tuple[Any, bytes]]:
    """Run the same events through the same windows, one way or the other."""
    events, results = rig.topic(queues=2), rig.topic()
    topology = windows(events, results, passing=passing)
    with LocalDriver(rig.namesrv, rig.folder, batch_size, job=topology) as driver:
        for base in range(0, 40, 10):
            for queue in range(2):
                seconds = [base + 2 * n for n in range(5)] + [base + 1]
                send(rig, events, queue, [("ab"[n % 2], n + queue) for n in seconds])
            settle(rig, driver)
        send(rig, events, 0, [("a", 1000)])
        send(rig, events, 1, [("a", 1000)])
        assert 0 < settle(rig, driver) < 20
    return sorted(rig.read(results))


@pytest.mark.slow
def test_results_and_late_records_are_those_without_the_topic(rig: Rig) -> None:
    wanted = run(rig, passing=False)
    assert len(wanted) == 48
    assert run(rig, passing=True) == wanted
    assert run(rig, passing=True, batch_size=1000) == wanted


def test_job_goes_on_between_publish_and_read(rig: Rig) -> None:
    events, results = rig.topic(queues=1), rig.topic()
    topology = windows(events, results)
    send(rig, events, 0, [("a", 1), ("b", 2), ("a", 1), ("a", 9)])
    with LocalDriver(rig.namesrv, rig.folder, job=topology) as driver:
        driver.commit(driver.process())
        assert driver.record.counters["records_in"] == 4
    with LocalDriver(rig.namesrv, rig.folder, job=topology) as driver:
        if rig.client.is_headrace():
            # One batch is staged and never committed: what it read is read again.
            driver.process()
    with LocalDriver(rig.namesrv, rig.folder, job=topology) as driver:
        settle(rig, driver)
        # The late record reads its window's time off its own queue, as without the topic.
        assert sorted(rig.read(results)) == [("a", b"1"), ("a", b'["a",1]'), ("b", b"1")]
        assert driver.record.counters["records_in"] == 8
        assert driver.catch_up() == 0


def drive(namesrv: str, folder: Path, topology: tuple[str, str], commits: int, last: str) -> None:
    """Be a driver that commits some batches, and is killed in the midst of the next one."""
    driver = LocalDriver(namesrv, folder, 3, job=windows(*topology))
    for _ in range(commits):
        driver.commit(driver.process())
    end = driver.process()
    if last == "committed":
        driver.commit(end)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("cluster", ["embedded"], indirect=True)
def test_drivers_that_are_killed_lose_and_double_nothing(rig: Rig) -> None:
    events, results = rig.topic(queues=1), rig.topic()
    sent = [("ab"[n % 2], n) for n in range(12)]
    send(rig, events, 0, sent)
    deaths = [(0, "committed"), (1, "staged"), (1, "committed")]
    for commits, last in deaths:
        given = (rig.namesrv, rig.folder, (events, results), commits, last)
        process = multiprocessing.get_context("spawn").Process(target=drive, args=given)
        process.start()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
    with LocalDriver(rig.namesrv, rig.folder, 3, job=windows(events, results)) as driver:
        settle(rig, driver)
        assert driver.epoch == len(deaths) + 1
        assert driver.record.counters["records_in"] == 2 * len(sent)
    assert sorted(rig.read(results)) == sorted((key, b"1") for key, _ in sent[:-1])


def test_topic_is_made_as_it_is_named_and_can_be_read_by_others(rig: Rig) -> None:
    events, results = rig.topic(queues=1), rig.topic()
    topology = windows(events, results)
    (through,) = topology.throughs
    assert through.topic == f"{topology.name}-ROCKETMQ-THROUGH-00003-shuffleTopic"
    with LocalDriver(rig.namesrv, rig.folder, job=topology) as driver:
        send(rig, events, 0, [("a", 1), ("a", 3), ("a", 5)])
        settle(rig, driver)
        assert len(rig.client.queues(through.topic)) == 8
        consumer = PullConsumer(rig.client)
        messages = [
            message
            for queue in rig.client.queues(through.topic)
            for block in consumer.blocks(queue, 0, consumer.end_offset(queue))
            for message in block.messages()
        ]
    records = [message for message in messages if WATERMARK not in message.properties]
    assert [json.loads(message.body)[1] for message in records] == [1, 3, 5]
    assert {message.queue_id for message in records} == {records[0].queue_id}
    assert len(messages) == 3 + 8
    read = ["consume", through.topic, "--namesrv", rig.namesrv, "--from-beginning", "--until-end"]
    shown = CliRunner().invoke(app, read)
    assert [line.split("\t")[0] for line in shown.stdout.splitlines()] == ["a"] * 3
    # Another job reads the records alone.
    copies = rig.topic()
    builder = StreamBuilder(f"copy-{events}")
    builder.source(through.topic, serdes.with_key(serdes.json)).sink(copies, serdes.json)
    with LocalDriver(rig.namesrv, rig.folder / "copy", job=builder.build()) as driver:
        settle(rig, driver)
    assert len(rig.read(copies)) == 3


def test_queue_that_is_new_learns_the_time_at_the_next_start(rig: Rig) -> None:
    events, results = rig.topic(queues=1), rig.topic()
    topology = windows(events, results)
    send(rig, events, 0, [("a", 1), ("a", 3)])
    with LocalDriver(rig.namesrv, rig.folder, job=topology) as driver:
        settle(rig, driver)
    (through,) = topology.throughs
    Admin(rig.client).create_topic(through.topic, queues=11)
    assert len(rig.client.queues(through.topic)) == 11
    send(rig, events, 0, [("a", 3)])
    with LocalDriver(rig.namesrv, rig.folder, job=topology) as driver:
        settle(rig, driver)
        send(rig, events, 0, [("a", 9)])
        settle(rig, driver)
    assert sorted(rig.read(results)) == [("a", b"1"), ("a", b"2")]


def test_announcement_is_not_held_up_by_a_source_that_has_fallen_silent(rig: Rig) -> None:
    events, results = rig.topic(queues=1), rig.topic()
    send(rig, events, 0, [("a", 1), ("a", 3)])
    topology = windows(events, results, idle_timeout=timedelta(milliseconds=1))
    with LocalDriver(rig.namesrv, rig.folder, job=topology) as driver:
        driver.commit(driver.process())
        time.sleep(0.1)
        settle(rig, driver)
    assert rig.read(results) == [("a", b"1")]


def test_messages_of_others_and_their_watermarks_do_no_harm(rig: Rig) -> None:
    events, results, shared = rig.topic(queues=1), rig.topic(), rig.topic(queues=2)
    builder = StreamBuilder(f"shared-{events}")
    keyed = builder.source(
        events, serdes.json, timestamp=lambda e: e[1] * 1000, allowed_lateness=timedelta(0)
    ).key_by(lambda event: event[0])
    counts = keyed.through(shared, serde=serdes.json).window(tumbling(SECOND)).count()
    counts.to_stream().sink(results, serdes.json)
    own = encode_properties({WATERMARK: "99000000", "HEADRACE_JOB": "another"})
    (queue, _) = sorted(rig.client.queues(shared, for_="write"))
    with LocalDriver(rig.namesrv, rig.folder, job=builder.build()) as driver:
        body = pa.array([b"{}"], pa.binary())
        Producer(rig.client).send_columns(queue, body, properties=pa.array([own], pa.binary()))
        send(rig, events, 0, [("a", 1), ("a", 1)])
        settle(rig, driver)
        assert rig.read(results) == []
        send(rig, events, 0, [("a", 3)])
        settle(rig, driver)
    assert rig.read(results) == [("a", b"2")]
