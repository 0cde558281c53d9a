"""A sink of batches beside its job: calls, failures, positions; no Spark runs here."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headrace import StreamBuilder, serdes
from headrace.backoff import Backoff
from headrace.client import Admin, Message, Producer, PullConsumer
from headrace.errors import OffsetExpiredError, StateError
from headrace.protocol.transactions import CommitRecord
from headrace.runtime.batches.cutting import CommittedBatch, make_tag
from headrace.runtime.batches.reading import SinkPosition, SinkPositions
from headrace.runtime.commit.transactions import BatchEnd
from headrace.runtime.job_plan import JobConnection, JobPlan
from headrace.settings import JobSettings
from headrace.spark.batches import runner as running
from headrace.spark.batches.runner import BatchRunner
from tests.clusters import Cluster

_numbers = itertools.count(1)
_COMPACTION = {"cleanup.policy": "COMPACTION"}


class Calls:
    """Notes every call; raises what it is told to."""

    def __init__(self, *errors: Exception) -> None:
        self.cuts: list[CommittedBatch] = []
        self.errors = list(errors)
        self.hangs = False
        self.free = threading.Event()

    def __call__(self, cut: CommittedBatch) -> None:
        self.cuts.append(cut)
        if self.hangs:
            self.free.wait(60)
        if self.errors:
            raise self.errors.pop(0)

    def interrupt(self) -> None:
        self.free.set()

    def close(self) -> None:
        pass

    @property
    def batches(self) -> list[int]:
        return [cut.batch for cut in self.cuts]


class Job:
    """A job whose tasks are this test: it writes messages and commits."""

    def __init__(self, namesrv: str, name: str, folder: Path) -> None:
        builder = StreamBuilder(name)
        builder.source("words", serdes.string).for_each_batch(lambda *_: None, name="each")
        settings = JobSettings(namesrv=namesrv, data_dir=folder, partitions=2)
        self.plan = JobPlan(builder.build(), settings, namesrv, embedded=True)
        self.connection = JobConnection(self.plan)
        self.sink = self.plan.topology.batch_sinks[0]
        admin = Admin(self.connection.client)
        admin.create_topic(self.plan.topology.commit_topic, queues=1, attributes=_COMPACTION)
        admin.create_topic(self.sink.topic, queues=2)
        admin.create_topic(self.sink.done_topic, queues=1, attributes=_COMPACTION)
        self.record: CommitRecord = self.connection.transactions.open("test").record

    def commit(self, *sizes: int) -> int:
        """Commit a batch with so many messages in each queue; give its number."""
        batch = self.record.batch + 1
        producer = Producer(self.connection.client)
        queues = sorted(self.connection.client.queues(self.sink.topic))
        tag = make_tag(self.record.epoch, batch, has_value=True)
        for queue, size in zip(queues, sizes, strict=False):
            if size:
                bodies = pa.array([b"word"] * size, pa.binary())
                producer.send_columns(queue, bodies, properties=pa.array([tag] * size, pa.binary()))
        record = CommitRecord(
            job=self.plan.job,
            kind="commit",
            epoch=self.record.epoch,
            batch=batch,
            lineage=self.record.lineage or [[self.record.epoch, 1]],
        )
        self.connection.transactions.commit(BatchEnd(previous=batch - 1, parts=[], record=record))
        self.record = record
        return batch

    def runner(self, calls: Calls) -> BatchRunner:
        return BatchRunner(self.connection, self.sink, calls)


@pytest.fixture
def job(embedded: Cluster, tmp_path: Path) -> Iterator[Job]:
    made = Job(embedded.namesrv, f"runner-{os.getpid()}-{next(_numbers)}", tmp_path)
    yield made
    made.connection.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_BACKOFF", Backoff(0.01))


def await_true(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


def finish(runner: BatchRunner) -> None:
    runner.ask_to_stop()
    runner.stop(time.monotonic() + 5)


def test_batches_come_in_order_and_once_over_restarts(job: Job) -> None:
    calls = Calls()
    runner = job.runner(calls)
    runner.start(0)
    for sizes in ((3, 0), (0, 0), (1, 2)):
        runner.committed(job.commit(*sizes))
    await_true(lambda: runner.has_done(3))
    finish(runner)
    job.commit(0, 5)
    runner = job.runner(calls)
    runner.start(4)
    await_true(lambda: runner.has_done(4))
    finish(runner)
    assert calls.batches == [1, 3, 4]
    ranges = [sorted(cut.ranges.values()) for cut in calls.cuts]
    assert ranges == [[(0, 3)], [(0, 2), (3, 4)], [(2, 7)]]
    follower = PullConsumer(job.connection.client, f"{job.plan.job}-each")
    queues = sorted(job.connection.client.queues(job.sink.topic))
    assert [follower.committed(queue) for queue in queues] == [4, 7]


def test_failed_call_is_made_again_with_the_same_batch(job: Job) -> None:
    calls = Calls(ValueError("first"), ValueError("second"), OffsetExpiredError("not ours"))
    runner = job.runner(calls)
    runner.start(0)
    calls.hangs = True
    runner.committed(job.commit(2, 2))
    await_true(lambda: len(calls.cuts) == 1)
    running_for = runner.statistics().running
    assert running_for is not None
    calls.free.set()
    runner.committed(job.commit(1, 0))
    await_true(lambda: runner.has_done(2))
    finish(runner)
    assert calls.batches == [1, 1, 1, 1, 2]
    assert len({str(cut.ranges) for cut in calls.cuts[:4]}) == 1
    found = runner.statistics()
    assert (found.batches, found.failures, found.error, found.stopped) == (2, 0, None, False)


def test_status_tells_of_failures(job: Job) -> None:
    calls = Calls(*[ValueError("the disk is full")] * 1000)
    runner = job.runner(calls)
    runner.start(0)
    runner.committed(job.commit(1, 0))
    await_true(lambda: runner.statistics().failures >= 2)
    found = runner.statistics()
    finish(runner)
    assert (found.batch, found.error) == (0, "the disk is full")
    assert SinkPositions(job.connection.client, job.plan.job, job.sink).read() == SinkPosition(
        batch=0, offsets=dict.fromkeys(found_queues(job), 0)
    )


def found_queues(job: Job) -> list[str]:
    return [queue.name for queue in sorted(job.connection.client.queues(job.sink.topic))]


def test_call_that_hangs_is_broken_off_by_a_stop(job: Job) -> None:
    calls = Calls(ValueError("broken off"))
    calls.hangs = True
    runner = job.runner(calls)
    runner.start(0)
    runner.committed(job.commit(1, 0))
    await_true(lambda: len(calls.cuts) == 1)
    begun = time.monotonic()
    runner.ask_to_stop()
    runner.stop(begun + 0.2)
    assert 0.2 <= time.monotonic() - begun < 5
    position = SinkPositions(job.connection.client, job.plan.job, job.sink).read()
    assert position is not None
    assert position.batch == 0


def test_messages_of_others_are_passed_over(job: Job) -> None:
    calls = Calls()
    runner = job.runner(calls)
    runner.start(0)
    Producer(job.connection.client).send(Message(topic=job.sink.topic, body=b"stray"))
    runner.committed(job.commit(2, 2))
    await_true(lambda: runner.has_done(1))
    finish(runner)
    assert calls.batches == [1]


def test_position_ahead_of_the_commits_is_refused(job: Job) -> None:
    positions = SinkPositions(job.connection.client, job.plan.job, job.sink)
    positions.write(SinkPosition(batch=7))
    with pytest.raises(StateError, match="has done batch 7, but the job has committed 2"):
        job.runner(Calls()).start(2)


def test_sink_whose_records_are_gone_stops_and_says_so(job: Job) -> None:
    calls = Calls()
    runner = job.runner(calls)
    runner.start(0)
    runner.committed(job.commit(5, 5))
    await_true(lambda: runner.has_done(1))
    admin = Admin(job.connection.client)
    admin.delete_topic(job.sink.topic)
    admin.create_topic(job.sink.topic, queues=2)
    runner.committed(job.commit(2, 2))
    await_true(lambda: runner.statistics().stopped)
    finish(runner)
    assert "the topic was made anew" in (runner.statistics().error or "")
