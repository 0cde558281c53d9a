"""Messages that a publisher sends a second time, long after the first: jobs read each once.

The embedded broker takes the protocol for RocketMQ too, once its clients do not know it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace import StreamBuilder, serdes
from headrace.client import Producer, PullConsumer
from headrace.client.results import CommittedReading
from headrace.protocol.journal_tags import TAG, parse_tags
from headrace.runtime.batches.cutting import CommittedBatch
from headrace.spark.batches.function_worker import run
from headrace.spark.batches.runner import BatchRunner
from headrace.topology import ForEachBatch, Topology
from tests.clusters import await_messages
from tests.faults.local_driver import LocalDriver
from tests.spark.pipelines import Rig


@pytest.fixture(autouse=True)
def _shows_what_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no(*_: object) -> bool:
        return False

    monkeypatch.setattr(CommittedReading, "_commits_units", no)


def send_again(rig: Rig, topic: str, batch: int) -> int:
    """Append a batch's messages once more, as a sender does that wakes up; tell how many."""
    consumer, producer, count = PullConsumer(rig.client), Producer(rig.client), 0
    for queue in rig.client.queues(topic):
        end = consumer.end_offset(queue)
        for result in consumer.blocks(queue, 0, end):
            columns = result.columns()
            picks = np.flatnonzero(parse_tags(columns.property(TAG)).batch == batch)
            if len(picks):
                rows = pa.array(picks)
                bodies, properties = columns.body.take(rows), columns.properties.take(rows)
                producer.send_columns(queue, bodies, properties=properties)
                count += len(picks)
                await_messages(rig.client, queue, end + len(picks))
    return count


def drive(rig: Rig, topology: Topology, **settings: Any) -> None:
    """Run a job until it finds nothing new, as on RocketMQ."""
    folder = rig.folder / topology.name
    with LocalDriver(rig.namesrv, folder, 100, job=topology, journal=True, **settings) as driver:
        quiet = 0
        while quiet < 3:
            quiet = 0 if driver.catch_up() else quiet + 1


def passed_on(lines: str, copies: str) -> Topology:
    """A job that writes each line as it is."""
    builder = StreamBuilder(f"copy-{copies}")
    builder.source(lines, serdes.string).sink(copies, serdes.string)
    return builder.build()


def counted(lines: str, counts: str, *, through: bool = False) -> Topology:
    """A job that counts lines, behind a topic of its own or not."""
    builder = StreamBuilder(f"count-{counts}")
    read = builder.source(lines, serdes.string).key_by(lambda line: line)
    keyed = read.through(serde=serdes.string) if through else read
    keyed.count(name="count").to_stream().sink(counts, serdes.json)
    return builder.build()


def test_topic_of_the_jobs_own_gives_each_record_once(rig: Rig) -> None:
    lines, counts = rig.topic(), rig.topic()
    topology = counted(lines, counts, through=True)
    (own,) = topology.throughs
    rig.send(lines, ["a", "b", "a"])
    drive(rig, topology)
    assert send_again(rig, own.topic, 1) == 3
    rig.send(lines, ["b"])
    drive(rig, topology)
    assert rig.latest(counts) == {"a": 2, "b": 2}


@pytest.mark.parametrize(
    ("isolation", "wanted"),
    [("read_committed", {"a": 2, "b": 2}), ("read_uncommitted", {"a": 4, "b": 3})],
)
def test_source_gives_what_another_job_writes_once_unless_told_otherwise(
    rig: Rig, isolation: str, wanted: dict[str, int]
) -> None:
    lines, copies, counts = rig.topic(), rig.topic(), rig.topic()
    copying, counting = passed_on(lines, copies), counted(copies, counts)
    rig.send(lines, ["a", "b", "a"])
    drive(rig, copying)
    drive(rig, counting, isolation=isolation)
    send_again(rig, copies, 1)
    rig.send(lines, ["b"])
    drive(rig, copying)
    drive(rig, counting, isolation=isolation)
    assert rig.latest(counts) == wanted


def test_batches_are_handed_over_once(rig: Rig) -> None:
    lines, given = rig.topic(), Counter[str]()
    builder = StreamBuilder(f"each-{lines}")
    builder.source(lines, serdes.string).for_each_batch(
        lambda records, _: given.update(record.value for record in records), name="each"
    )
    topology = builder.build()
    (sink,) = topology.batch_sinks
    assert isinstance(sink, ForEachBatch)
    folder = rig.folder / "job"
    with LocalDriver(rig.namesrv, folder, job=topology, journal=True) as driver:
        job = driver._job

        def call(cut: CommittedBatch) -> None:
            run(job, sink, cut)

        runner = BatchRunner(job, sink, _Calls(call))
        runner.start(0)
        for number, sent in enumerate((["a", "b"], ["c"], ["d"]), 1):
            rig.send(lines, sent)
            while not driver.catch_up():
                time.sleep(0.01)
            if number > 1:
                send_again(rig, sink.topic, number - 1)
                # In the midst of a batch, too.
                send_again(rig, sink.topic, number)
            runner.committed(driver.record.batch)
            _await(lambda: runner.has_done(driver.record.batch))
        runner.ask_to_stop()
        runner.stop(time.monotonic() + 5)
    assert given == dict.fromkeys("abcd", 1)


class _Calls:
    """Runs the user's code here, and not in a process of its own."""

    def __init__(self, call: Callable[[CommittedBatch], None]) -> None:
        self._call = call

    def __call__(self, cut: CommittedBatch) -> None:
        self._call(cut)

    def interrupt(self) -> None:
        """Do nothing: no call hangs here."""

    def close(self) -> None:
        """Do nothing: nothing is held."""


def _await(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline, "it took more than 30 s"
        time.sleep(0.02)
