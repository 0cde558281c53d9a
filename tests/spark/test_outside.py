"""Records from outside into topics, and messages to the outside, by jobs that tick."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.client import PullConsumer
from headrace.keys import encode_key, key_from_properties, partition_of
from headrace.runtime.state.home import StateHome
from headrace.spark import StreamJob
from headrace.spark.ticks import Ticks
from headrace.topology import Topology
from headrace.topology.operators.core import Delivery, Feed, FeedSink, MessageSource
from tests.spark.outside import ROWS, CountingIntake, FileOutlet, Readiness
from tests.spark.pipelines import LIMIT, Rig

pytestmark = pytest.mark.spark


def feed(job: str, intake: CountingIntake) -> Topology:
    return Topology(
        job,
        (
            Feed(name="feed", parents=(), intake=intake, generation=3),
            FeedSink(name="topics", parents=("feed",)),
        ),
    )


def delivery(job: str, topic: str, folder: Path, number: int, of: int) -> Topology:
    source = MessageSource(name="messages", parents=(), topic=topic, number=number, of=of)
    outlet = Delivery(name="out", parents=("messages",), outlet=FileOutlet(folder))
    return Topology(job, (source, outlet))


def run_batches(rig: Rig, topology: Topology, readiness: Readiness, batches: int) -> None:
    def provide(topics: Sequence[str]) -> dict[str, list[str]]:
        return {t: [q.name for q in sorted(rig.client.queues(t, for_="write"))] for t in topics}

    ticks = Ticks(readiness, provide=provide)
    with StreamJob(topology, rig.settings(), ticks=ticks).start() as job:
        job._await(lambda record: record.batch >= batches, None, LIMIT)


def test_what_comes_from_outside_is_committed_with_its_position(rig: Rig, tmp_path: Path) -> None:
    first, second = rig.topic(queues=4), rig.topic()
    job = f"feed-{first}"
    topology = feed(job, CountingIntake((first, second), tmp_path))
    run_batches(rig, topology, Readiness((first, second), tmp_path, 3), 3)
    run_batches(rig, topology, Readiness((first, second), tmp_path, 5), 5)
    numbers = sorted(int(body) for topic in (first, second) for _, body in rig.read(topic))
    assert numbers == list(range(5 * ROWS))
    record = StateHome.of(job, rig.client).record()
    assert record.positions['{"counter":1}'].offset == {"next": 5 * ROWS}
    assert record.positions['{"counter":1}'].generation == 3


def test_keys_from_outside_go_where_keys_of_pipelines_go(rig: Rig, tmp_path: Path) -> None:
    first, second = rig.topic(queues=4), rig.topic()
    topology = feed(f"feed-{first}", CountingIntake((first, second), tmp_path))
    run_batches(rig, topology, Readiness((first, second), tmp_path, 1), 1)
    consumer = PullConsumer(rig.client)
    places = {
        (key_from_properties(message.properties), queue.queue_id)
        for queue in rig.client.queues(first)
        for result in consumer.blocks(queue, 0, consumer.end_offset(queue))
        for message in result.messages()
    }
    assert places == {(str(key), partition_of(encode_key(str(key)), 4)) for key in range(0, 10, 2)}


def test_tasks_share_the_queues_of_a_topic_out(rig: Rig, tmp_path: Path) -> None:
    topic = rig.topic(queues=4)
    rig.send(topic, [str(number) for number in range(400)])
    seen: list[list[int]] = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        job = f"out-{topic}-{number}"
        with StreamJob(
            delivery(job, topic, folder, number, 2), rig.settings(), ticks=Ticks()
        ).start() as running:
            running.await_caught_up(LIMIT)
        rows = [
            json.loads(line)
            for file in folder.glob("*.done")
            for line in file.read_text().splitlines()
        ]
        assert len({row["queue"] for row in rows}) == 2
        record = StateHome.of(job, rig.client).record()
        ends = {queue: position.offset for queue, position in record.positions.items()}
        assert ends == record.offsets == dict.fromkeys({row["queue"] for row in rows}, 100)
        seen.append([int(row["body"]) for row in rows])
    assert sorted(seen[0] + seen[1]) == list(range(400))


def test_what_the_outside_refuses_is_committed_with_the_rest(rig: Rig, tmp_path: Path) -> None:
    topic, letters = rig.topic(), rig.topic()
    rig.send(topic, ["good 1", "bad 2", "good 3", "bad 4"])
    topology = Topology(
        f"out-{topic}",
        (
            MessageSource(name="messages", parents=(), topic=topic),
            Delivery(name="out", parents=("messages",), outlet=FileOutlet(tmp_path, letters)),
            FeedSink(name="letters", parents=("out",), topic=letters),
        ),
    )
    with StreamJob(topology, rig.settings(), ticks=Ticks()).start() as job:
        job.await_caught_up(LIMIT)
    assert sorted(body for _, body in rig.read(letters)) == [b"bad 2", b"bad 4"]


def test_query_that_rests_waits_for_a_tick_and_does_not_look_for_one(
    rig: Rig, tmp_path: Path
) -> None:
    topic = rig.topic()
    topology = delivery(f"out-{topic}", topic, tmp_path, 0, 1)
    with StreamJob(topology, rig.settings(), ticks=Ticks()).start() as job:
        for body in ("first", "second"):
            rig.send(topic, [body])
            job.await_caught_up(LIMIT)
            (query,) = SparkSession.active().streams.active
            # Between two looks no batch would be open.
            assert all(query.status["isTriggerActive"] for _ in range(200))
    assert SparkSession.active().streams.active == []


def test_job_without_a_batch_has_no_query(rig: Rig, tmp_path: Path) -> None:
    topic = rig.topic()
    topology = delivery(f"out-{topic}", topic, tmp_path, 0, 1)
    with StreamJob(topology, rig.settings(), ticks=Ticks()).start() as job:
        job.await_caught_up(LIMIT)
        assert SparkSession.active().streams.active == []
