from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.client import (
    Admin,
    Client,
    Jobs,
    Message as NewMessage,
    MessageQueue,
    Producer,
    PullConsumer,
    StageTarget,
)
from headrace.errors import (
    FencedError,
    PredecessorMismatchError,
    RequestNotSupportedError,
    StagedPartMissingError,
    TopicNotFoundError,
)
from headrace.protocol.records import encode_records
from headrace.protocol.transactions import (
    CommitRecord,
    CommitRequest,
    OpenRequest,
    PlanRequest,
    StagedPart,
    StagedSection,
    encode_sections,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.clusters import Cluster

JOB = "word-count"


class Job:
    """A job with its topics, and the requests that its driver and tasks make."""

    def __init__(self, client: Client, number: int) -> None:
        self.client = client
        self.output = f"{JOB}-output-{number}"
        self.commit_topic = f"{JOB}-{number}-commitTopic"
        self.group = f"{JOB}-{number}"
        for topic, queues in ((self.output, 2), (self.commit_topic, 1)):
            Admin(client).create_topic(topic, queues=queues)
        self.jobs = Jobs(client, self.commit_topic)

    def open(self) -> int:
        request = OpenRequest(job=self.group, commit_topic=self.commit_topic, driver="test:1")
        return self.jobs.open(request).epoch

    def stage(self, epoch: int, batch: int, bodies: list[bytes], attempt: int = 1) -> StagedPart:
        target = StageTarget(self.group, epoch, batch, 0, 0, attempt)
        for queue_id in (0, 1):
            records = encode_records(self.output, queue_id, bodies, None, 0)
            section = StagedSection(self.output, queue_id, len(bodies), bytes(records.data))
            self.jobs.stage(target, queue_id, encode_sections([section]))
        return StagedPart(stage=0, partition=0, attempt=attempt, chunks=2, records=2 * len(bodies))

    def request(
        self, epoch: int, batch: int, parts: list[StagedPart], offsets: dict[str, int]
    ) -> CommitRequest:
        record = CommitRecord(
            job=self.group, kind="commit", epoch=epoch, batch=batch, offsets=offsets
        )
        return CommitRequest(
            commit_topic=self.commit_topic,
            group=self.group,
            previous=batch - 1,
            parts=parts,
            record=record,
        )


@pytest.fixture
def job(embedded: Cluster, request: pytest.FixtureRequest) -> Iterator[Job]:
    with Client(embedded.namesrv) as client:
        yield Job(client, abs(hash(request.node.name)) % 1_000_000)


def test_what_is_staged_shows_with_its_commit_and_not_before(job: Job) -> None:
    epoch = job.open()
    part = job.stage(epoch, 1, [b"a", b"b"])
    consumer = PullConsumer(job.client)
    queues = job.client.queues(job.output)
    assert set(consumer.end_offsets(queues).values()) == {0}
    answer = job.jobs.commit(job.request(epoch, 1, [part], {}))
    assert (answer.batch, answer.already) == (1, False)
    for queue in queues:
        assert consumer.pull(queue, 0).columns().body.to_pylist() == [b"a", b"b"]


def test_a_repeated_commit_is_answered_and_publishes_nothing_twice(job: Job) -> None:
    epoch = job.open()
    request = job.request(epoch, 1, [job.stage(epoch, 1, [b"a"])], {})
    assert not job.jobs.commit(request).already
    assert job.jobs.commit(request).already
    ends = PullConsumer(job.client).end_offsets(job.client.queues(job.output))
    assert set(ends.values()) == {1}


def test_an_older_epoch_is_fenced(job: Job) -> None:
    old = job.open()
    part = job.stage(old, 1, [b"a"])
    assert job.open() > old
    with pytest.raises(FencedError):
        job.jobs.commit(job.request(old, 1, [part], {}))
    with pytest.raises(FencedError):
        job.stage(old, 1, [b"b"], attempt=2)


def test_a_batch_must_follow_the_last_one(job: Job) -> None:
    epoch = job.open()
    with pytest.raises(PredecessorMismatchError):
        job.jobs.commit(job.request(epoch, 3, [], {}))


def test_a_missing_part_is_told_at_once(job: Job) -> None:
    epoch = job.open()
    part = StagedPart(stage=0, partition=5, attempt=9, chunks=1, records=1)
    with pytest.raises(StagedPartMissingError):
        job.jobs.commit(job.request(epoch, 1, [part], {}))
    assert job.client.statistics().retries == 0


def test_a_plan_tells_the_last_commit_and_what_can_be_read(job: Job) -> None:
    epoch = job.open()
    queue = job.client.queues(job.output)[0]
    producer = Producer(job.client)
    for _ in range(5):
        producer.send(NewMessage(topic=job.output, body=b"x"), queue)
    offsets = {queue.name: 2}
    job.jobs.commit(job.request(epoch, 1, [], offsets))
    plan = job.jobs.plan(
        PlanRequest(job=job.group, commit_topic=job.commit_topic, topics=[job.output])
    )
    assert plan.record is not None
    assert (plan.record.batch, plan.record.offsets) == (1, offsets)
    assert plan.ends[queue.name] == 5
    assert {MessageQueue.parse(name).topic for name in plan.ends} == {job.output}


def test_jobs_are_listed_with_where_they_stand(job: Job) -> None:
    epoch = job.open()
    job.jobs.commit(job.request(epoch, 1, [], {}))
    (found,) = [each for each in Admin(job.client).jobs() if each.commit_topic == job.commit_topic]
    assert (found.record.job, found.record.batch, found.driver) == (job.group, 1, "test:1")


def test_a_plan_waits_for_messages(job: Job) -> None:
    request = PlanRequest(
        job=job.group, commit_topic=job.commit_topic, topics=[job.output], wait=300
    )
    plan = job.jobs.plan(request)
    assert set(plan.ends.values()) == {0}


@pytest.mark.slow
@pytest.mark.rocketmq
def test_rocketmqs_tool_shows_the_lag_of_a_job(job: Job, embedded: Cluster) -> None:
    epoch = job.open()
    queue = job.client.queues(job.output)[0]
    for _ in range(5):
        Producer(job.client).send(NewMessage(topic=job.output, body=b"x"), queue)
    job.jobs.commit(job.request(epoch, 1, [], {queue.name: 3}))
    output = embedded.mqadmin("consumerProgress", "-g", job.group)
    assert "Consume Diff Total: 2" in output


def test_a_commit_topic_that_is_missing_is_named(embedded: Cluster) -> None:
    with Client(embedded.namesrv) as client, pytest.raises(TopicNotFoundError, match="not-there"):
        Jobs(client, "not-there").open(
            OpenRequest(job="j", commit_topic="not-there", driver="test:1")
        )


@pytest.mark.rocketmq
def test_a_stock_broker_is_told_apart(rocketmq: Cluster) -> None:
    with Client(rocketmq.namesrv) as client:
        Admin(client).create_topic("some-commitTopic", queues=1)
        jobs = Jobs(client, "some-commitTopic")
        with pytest.raises(RequestNotSupportedError, match="as one unit") as caught:
            jobs.open(OpenRequest(job="j", commit_topic="some-commitTopic", driver="test:1"))
        assert "headrace broker" in str(caught.value)
