"""Readers of what is committed: on RocketMQ by the commit records, on the embedded broker as it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import msgspec
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from headrace.cli.app import app
from headrace.client import (
    Admin,
    Client,
    ClientSettings,
    GroupConsumer,
    GroupOptions,
    Message,
    Producer,
    PullConsumer,
    PullStatus,
    PushConsumer,
    PushOptions,
    Retry,
    StoredMessage,
)
from headrace.errors import RequestTimeoutError, TopicNotFoundError
from headrace.protocol.journal_tags import TAG
from headrace.protocol.transactions import CommitRecord
from tests.clusters import Cluster, await_messages

SECOND = timedelta(seconds=1)


class Output:
    """A topic of one queue that a job writes, its driver played by the test."""

    def __init__(self, client: Client, topic: str) -> None:
        self.client = client
        self.job, self.topic = f"job-{topic}", topic
        Admin(client).create_topic(f"{self.job}-commitTopic", queues=1)
        (self.queue,) = client.queues(topic)
        self.sent = 0
        self.records = 0

    def publish(self, *numbers: tuple[int, int], tagged: bool = True) -> None:
        """Send messages of (batch, sequence) as they say."""
        texts = [f"{batch}:{sequence}" for batch, sequence in numbers]
        tags = [f"{TAG}\1{self.job}:{text}\2".encode() if tagged else b"" for text in texts]
        Producer(self.client).send_columns(
            self.queue,
            pa.array([text.encode() for text in texts], pa.binary()),
            properties=pa.array(tags, pa.binary()),
        )
        self.sent += len(numbers)
        await_messages(self.client, self.queue, self.sent)

    def commit(self, batch: int, epoch: int = 1, kind: str = "commit") -> None:
        record = CommitRecord(job=self.job, kind=kind, epoch=epoch, batch=batch)
        topic = f"{self.job}-commitTopic"
        Producer(self.client).send(Message(topic=topic, body=msgspec.json.encode(record)))
        self.records += 1
        (queue,) = self.client.queues(topic)
        await_messages(self.client, queue, self.records)

    def read(self, begin: int = 0, end: int | None = None) -> list[str]:
        """Read a range of the queue."""
        consumer = PullConsumer(self.client, committed=True)
        end = self.sent if end is None else end
        return [
            message.body.decode()
            for result in consumer.blocks(self.queue, begin, end)
            for message in result.messages()
        ]


@pytest.fixture
def output(rocketmq: Cluster) -> Iterator[Output]:
    settings = ClientSettings(retry_timeout=2 * SECOND)
    with Client(rocketmq.namesrv, settings) as client:
        topic = f"out-{time.time_ns()}"
        Admin(client).create_topic(topic, queues=1)
        yield Output(client, topic)


@pytest.mark.rocketmq
def test_messages_wait_for_the_commit_of_their_batch(output: Output) -> None:
    output.commit(1)
    output.publish((1, 0), (1, 1), (2, 0), (2, 1))
    consumer = PullConsumer(output.client, committed=True)
    first = consumer.pull(output.queue, 0)
    assert [message.body for message in first.messages()] == [b"1:0", b"1:1"]
    assert (first.status, first.next_offset) == (PullStatus.FOUND, 2)
    nothing = consumer.pull(output.queue, 2)
    assert (nothing.status, nothing.next_offset) == (PullStatus.AT_END, 2)
    output.commit(2)
    rest = consumer.pull(output.queue, 2)
    assert [message.body for message in rest.messages()] == [b"2:0", b"2:1"]


@pytest.mark.rocketmq
def test_pull_that_waits_gets_what_is_committed_meanwhile(output: Output) -> None:
    output.publish((1, 0))
    committing = threading.Timer(0.5, output.commit, [1])
    committing.start()
    begun = time.monotonic()
    result = PullConsumer(output.client, committed=True).pull(output.queue, 0, wait=20 * SECOND)
    committing.join()
    assert [message.body for message in result.messages()] == [b"1:0"]
    assert time.monotonic() - begun < 10


@pytest.mark.rocketmq
def test_void_commit_of_an_older_driver_shows_nothing(output: Output) -> None:
    output.commit(1)
    output.commit(1, epoch=2, kind="open")
    output.commit(2, epoch=1)
    output.publish((1, 0), (2, 0))
    result = PullConsumer(output.client, committed=True).pull(output.queue, 0)
    assert [message.body for message in result.messages()] == [b"1:0"]


@pytest.mark.rocketmq
def test_each_message_is_given_once_wherever_reading_begins(output: Output) -> None:
    output.commit(9)
    batch = [(8, n) for n in range(5)], [(9, n) for n in range(150)]
    output.publish(*batch[0], *batch[1])
    # A send that timed out and was stored after all, long after it was sent again.
    output.publish(*batch[1][20:130])
    output.publish((8, 4), (9, 150))
    everything = [f"{b}:{n}" for b, n in [*batch[0], *batch[1]]]
    assert output.read() == [*everything, "9:150"]
    for begin in (1, 5, 6, 100, 154):
        assert output.read(begin) == [*everything[begin:], "9:150"]
    # Among the repetitions, where 32 messages before show nothing of the first copies.
    for begin in (155, 156, 220, 264, 265):
        assert output.read(begin) == ["9:150"], begin
    assert output.read(0, 40) == everything[:40]
    assert output.read(150, 200) == everything[150:]


@pytest.mark.rocketmq
def test_messages_without_tags_pass(output: Output) -> None:
    output.publish((1, 0), (1, 0), tagged=False)
    assert output.read() == ["1:0", "1:0"]


@pytest.mark.rocketmq
def test_range_that_is_never_committed_is_named(output: Output) -> None:
    output.publish((1, 0))
    with pytest.raises(RequestTimeoutError, match=f"batch 1 of job '{output.job}'"):
        output.read()
    # What stands behind the range need not be committed.
    assert output.read(0, 0) == []


@pytest.mark.rocketmq
def test_job_whose_commit_topic_is_gone_is_named(output: Output) -> None:
    output.publish((1, 0))
    Admin(output.client).delete_topic(f"{output.job}-commitTopic")
    with Client(";".join(output.client.asynchronous.name_servers)) as client:
        consumer = PullConsumer(client, committed=True)
        with pytest.raises(TopicNotFoundError, match="cannot be told from uncommitted ones"):
            consumer.pull(output.queue, 0)


@pytest.mark.rocketmq
def test_groups_read_what_is_committed(output: Output) -> None:
    output.commit(1)
    output.publish((1, 0), (1, 1), (1, 0), (2, 0))
    polled: list[bytes] = []
    options = GroupOptions(start="first", committed=True, wait=SECOND)
    with GroupConsumer(output.client, f"poll-{output.topic}", [output.topic], options) as group:
        deadline = time.monotonic() + 30
        while len(polled) < 2 and time.monotonic() < deadline:
            for block in group.poll(SECOND):
                polled += [message.body for message in block.messages()]
    assert polled == [b"1:0", b"1:1"]


@pytest.mark.rocketmq
def test_message_that_a_listener_gives_back_comes_again(output: Output) -> None:
    output.commit(1)
    output.publish((1, 0), (1, 0), (1, 1))
    seen: list[tuple[bytes, int]] = []

    def listener(message: StoredMessage) -> Retry | None:
        seen.append((message.body, message.reconsume_times))
        return Retry(level=1) if message.reconsume_times == 0 else None

    options = PushOptions(start="first", committed=True, concurrency=1, wait=SECOND)
    group = f"push-{output.topic}"
    with PushConsumer(output.client, group, [output.topic], listener, options):
        deadline = time.monotonic() + 40
        while len(seen) < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
    assert sorted(seen) == [(b"1:0", 0), (b"1:0", 1), (b"1:1", 0), (b"1:1", 1)]


@pytest.mark.rocketmq
def test_command_prints_what_is_committed(output: Output) -> None:
    output.commit(1)
    output.publish((1, 0), (1, 1), (1, 0))

    def printed(*more: str) -> str:
        command = ["consume", output.topic, "--from-beginning", "--until-end", *more]
        address = ";".join(output.client.asynchronous.name_servers)
        done = CliRunner().invoke(app, [*command, "--namesrv", address])
        assert done.exit_code == 0, done.output
        return done.stdout

    assert printed() == "\t1:0\n\t1:1\n\t1:0\n"
    assert printed("--committed") == "\t1:0\n\t1:1\n"


def test_embedded_broker_shows_nothing_else_anyway(embedded: Cluster) -> None:
    with Client(embedded.namesrv) as client:
        topic = f"out-{time.time_ns()}"
        Admin(client).create_topic(topic, queues=1)
        output = Output(client, topic)
        output.publish((1, 0), (1, 0))
        assert output.read() == ["1:0", "1:0"]
