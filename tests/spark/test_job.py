"""Jobs on Spark, from topic to topic, on both kinds of cluster."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from headrace import serdes
from headrace.client import Message, Producer, PullConsumer
from headrace.errors import (
    ConnectionFailedError,
    DeserializationError,
    FencedError,
    JobFailedError,
    PartitionCountError,
    StateError,
    TopicNotFoundError,
    UserCodeError,
)
from headrace.runtime.jobs.reset import rescale
from headrace.runtime.state.home import StateHome
from headrace.spark import StreamJob
from headrace.streams import StreamBuilder
from headrace.topology import Accumulator
from tests.breaking import BrokenError
from tests.clusters import Cluster
from tests.spark.pipelines import LIMIT, Rig, tumbling_counts, word_count

pytestmark = pytest.mark.spark

TEXT = ["to be or not to be", "that is the question", "To be is to do", "do be do be do"] * 25


def words(lines: list[str]) -> Counter[str]:
    return Counter(word for line in lines for word in line.lower().split())


def test_every_word_is_counted_exactly_over_restarts(rig: Rig) -> None:
    lines, counts = rig.topic(), rig.topic()
    topology = word_count(f"count-{lines}", lines, counts)
    rig.send(lines, TEXT)
    rig.run(topology)
    assert rig.latest(counts) == words(TEXT)
    rig.send(lines, TEXT[:30])
    rig.run(topology)
    assert rig.latest(counts) == words(TEXT + TEXT[:30])


def test_a_wait_that_is_broken_off_leaves_the_job_as_it_is(rig: Rig) -> None:
    """Else a stop would not wait for its end, and Python might crash at its own."""
    lines, counts = rig.topic(), rig.topic()
    job = StreamJob(word_count(f"count-{lines}", lines, counts), rig.settings())
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        with job.start():
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            with pytest.raises(KeyboardInterrupt):
                job.await_termination()
            assert not job.await_termination(timedelta(0))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_offsets_of_the_group_follow_the_commits(rig: Rig) -> None:
    lines, counts = rig.topic(queues=2), rig.topic()
    topology = word_count(f"count-{lines}", lines, counts)
    rig.send(lines, TEXT)
    rig.run(topology)
    consumer = PullConsumer(rig.client, topology.name)
    for queue in rig.client.queues(lines):
        assert consumer.committed(queue) == consumer.end_offset(queue) == 50


def test_job_whose_lease_is_kept_no_more_ends_with_the_error(rig: Rig) -> None:
    lines, counts = rig.topic(), rig.topic()
    with StreamJob(word_count(f"count-{lines}", lines, counts), rig.settings()).start() as job:
        assert job._driver is not None
        # What the lease's thread and the job's own tell of their end.
        job._driver.fail(BrokenError("no word more"))
        with pytest.raises(JobFailedError, match="BrokenError: no word more"):
            job.await_commit(LIMIT)
        with pytest.raises(JobFailedError, match="BrokenError: no word more"):
            job.await_termination(LIMIT)


def test_batches_of_any_size_give_the_same_counts(rig: Rig) -> None:
    lines, counts = rig.topic(), rig.topic()
    rig.send(lines, TEXT)
    rig.run(word_count(f"small-{lines}", lines, counts), max_records_per_batch=17)
    assert rig.latest(counts) == words(TEXT)


def test_lost_local_state_is_restored_from_the_state_topic(rig: Rig, tmp_path: Path) -> None:
    lines, counts = rig.topic(), rig.topic()
    topology = word_count(f"restore-{lines}", lines, counts)
    rig.send(lines, TEXT)
    rig.run(topology)
    rig.send(lines, TEXT)
    rig.run(topology, state_dir=tmp_path / "another-machine")
    assert rig.latest(counts) == words(TEXT * 2)


class Span(Accumulator[int, int]):
    """Distance between the smallest and the largest number."""

    def __init__(self) -> None:
        self.low: int | None = None
        self.high: int | None = None

    def add(self, value: int) -> None:
        self.low = value if self.low is None else min(self.low, value)
        self.high = value if self.high is None else max(self.high, value)

    def merge(self, other: Span) -> None:
        for end in (other.low, other.high):
            if end is not None:
                self.add(end)

    def result(self) -> int:
        assert self.low is not None
        assert self.high is not None
        return self.high - self.low


def test_every_kind_of_aggregate_and_several_sinks_in_one_job(rig: Rig) -> None:
    numbers = rig.topic()
    sums, spans, products, evens, counts = (rig.topic() for _ in range(5))
    builder = StreamBuilder(f"kinds-{numbers}")
    stream = builder.source(numbers, serdes.string).map_values(int)
    by_rest = stream.key_by(lambda number: number % 3)
    by_rest.sum().to_stream().sink(sums, serdes.json)
    by_rest.aggregate(Span()).to_stream().sink(spans, serdes.json)
    by_rest.reduce(lambda a, b: a * b).to_stream().sink(products, serdes.json)
    stream.where(lambda number: number % 2 == 0).sink(evens, serdes.json)
    by_rest.count(emit="each").to_stream().sink(counts, serdes.json)
    rig.send(numbers, [str(number) for number in range(1, 41)])
    rig.run(builder.build(), max_records_per_batch=16)

    groups = {rest: [n for n in range(1, 41) if n % 3 == rest] for rest in range(3)}
    assert rig.latest(sums) == {rest: sum(group) for rest, group in groups.items()}
    assert rig.latest(spans) == {rest: max(g) - min(g) for rest, g in groups.items()}
    product = dict.fromkeys(groups, 1)
    for rest, group in groups.items():
        for number in group:
            product[rest] *= number
    assert rig.latest(products) == product
    assert sorted(int(body) for _, body in rig.read(evens)) == list(range(2, 41, 2))
    each = [(key, int(body)) for key, body in rig.read(counts)]
    assert sorted(each) == sorted(
        (rest, n) for rest, group in groups.items() for n in range(1, len(group) + 1)
    )


def test_aggregate_of_an_aggregate_runs_in_three_stages(rig: Rig) -> None:
    lines, lengths = rig.topic(), rig.topic()
    builder = StreamBuilder(f"stages-{lines}")
    (
        builder.source(lines, serdes.string)
        .flat_map_values(str.split)
        .key_by(lambda word: word)
        .count(emit="each")
        .to_stream()
        .key_by(lambda count: count)
        .count()
        .to_stream()
        .sink(lengths, serdes.json)
    )
    topology = builder.build()
    assert len(topology.plan.stages) == 3
    rig.send(lines, ["a b c", "a b", "a"])
    rig.run(topology)
    assert rig.latest(lengths) == {1: 3, 2: 2, 3: 1}


def test_keys_and_headers_of_a_stateless_job_reach_its_sink(rig: Rig) -> None:
    pairs, shouted = rig.topic(), rig.topic()
    builder = StreamBuilder(f"stateless-{pairs}")

    def read(body: bytes) -> serdes.Keyed[int, str]:
        number, text = body.decode().split("=")
        return serdes.Keyed(int(number), text)

    (
        builder.source(pairs, read)
        .map(lambda key, value: (key * 10, value.upper()))
        .sink(shouted, serdes.string)
    )
    rig.send(pairs, ["1=one", "2=two"])
    rig.run(builder.build())
    assert sorted(rig.read(shouted)) == [(10, b"ONE"), (20, b"TWO")]


def test_at_least_once_loses_nothing_and_counts_exactly_without_failures(rig: Rig) -> None:
    lines, counts = rig.topic(), rig.topic()
    rig.send(lines, TEXT)
    rig.run(word_count(f"alo-{lines}", lines, counts), guarantee="at_least_once")
    assert rig.latest(counts) == words(TEXT)


def test_new_windowed_operator_runs_on_the_same_machinery(rig: Rig) -> None:
    events, counts = rig.topic(queues=1), rig.topic()
    topology = tumbling_counts(f"windows-{events}", events, counts)
    producer = Producer(rig.client)
    for text, seconds in [("a", 1), ("A", 9), ("b", 10), ("a", 12), ("c", 22), ("d", 60)]:
        producer.send(Message(topic=events, body=text.encode(), born=seconds * 1000))
    rig.run(topology, max_records_per_batch=2)
    assert sorted((key, int(body)) for key, body in rig.read(counts)) == [
        ("a", 1),
        ("a", 2),
        ("b", 1),
        ("c", 1),
    ]


def test_job_waits_for_the_first_message_of_an_empty_topic(rig: Rig) -> None:
    lines, counts = rig.topic(), rig.topic()
    job = StreamJob(word_count(f"empty-{lines}", lines, counts), rig.settings()).start()
    try:
        assert not job.await_termination(timedelta(seconds=3))
        rig.send(lines, TEXT)
        job.await_caught_up(LIMIT)
        assert job.statistics().restarts == 0
    finally:
        job.stop()
    assert rig.latest(counts) == words(TEXT)


def test_user_code_that_raises_is_named_with_its_own_line(rig: Rig) -> None:
    lines, counts = rig.topic(queues=1), rig.topic()
    builder = StreamBuilder(f"raises-{lines}")
    numbers = builder.source(lines, serdes.string)
    numbers.map_values(lambda line: 1 + int(line)).sink(counts, serdes.json)
    rig.send(lines, ["1", "2", "three"])
    with pytest.raises(UserCodeError) as caught:
        rig.run(builder.build())
    message = str(caught.value)
    assert f"operator 'map_values-{lines}'" in message
    assert f"topic '{lines}', queue 0, offset 2" in message
    assert "test_job.py" in message
    assert "lambda line: 1 + int(line)" in message
    assert rig.read(counts) == []


def test_message_that_cannot_be_read_follows_the_policy(rig: Rig) -> None:
    numbers, sums, dead = rig.topic(queues=1), rig.topic(), rig.topic()
    rig.send(numbers, ["1", "x", "2"])

    def topology(policy: str) -> StreamBuilder:
        builder = StreamBuilder(f"policy-{numbers}-{policy.replace(':', '-')}")
        (
            builder.source(numbers, serdes.json, on_error=policy)
            .key_by(lambda _: "all")
            .sum()
            .to_stream()
            .sink(sums, serdes.json)
        )
        return builder

    with pytest.raises(DeserializationError) as caught:
        rig.run(topology("fail").build())
    assert f"topic '{numbers}', queue 0, offset 1 (1 bytes: b'x')" in str(caught.value)
    assert rig.read(sums) == []
    rig.run(topology("skip").build())
    assert rig.latest(sums) == {"all": 3}
    rig.run(topology(f"topic:{dead}").build())
    assert [body for _, body in rig.read(dead)] == [b"x"]


def test_second_driver_waits_on_rocketmq_until_the_first_one_ends(
    rig: Rig, cluster: Cluster
) -> None:
    if cluster.kind == "embedded":
        pytest.skip("there it takes over at once: the next test")
    lines, counts = rig.topic(), rig.topic()
    topology = word_count(f"lease-{lines}", lines, counts)
    rig.send(lines, TEXT)
    first = StreamJob(topology, rig.settings()).start()
    second = StreamJob(topology, rig.settings())
    waiting = threading.Thread(target=second.start)
    try:
        first.await_caught_up(LIMIT)
        waiting.start()
        waiting.join(2)
        assert waiting.is_alive()
        rig.send(lines, TEXT)
        first.await_caught_up(LIMIT)
        first.stop()
        waiting.join(LIMIT.total_seconds())
        rig.send(lines, TEXT)
        second.await_caught_up(LIMIT)
    finally:
        first.stop()
        waiting.join()
        second.stop()
    assert rig.latest(counts) == words(TEXT * 3)


def test_second_driver_takes_over_and_the_first_one_stops(rig: Rig, cluster: Cluster) -> None:
    if cluster.kind == "rocketmq":
        pytest.skip("there it waits for the first one's lease: the test before")
    lines, counts = rig.topic(), rig.topic()
    topology = word_count(f"fence-{lines}", lines, counts)
    rig.send(lines, TEXT)
    first = StreamJob(topology, rig.settings()).start()
    second = StreamJob(topology, rig.settings())
    try:
        first.await_caught_up(LIMIT)
        second.start()
        with pytest.raises(FencedError, match=f"fence-{lines}"):
            first.await_termination(LIMIT)
        rig.send(lines, TEXT)
        second.await_caught_up(LIMIT)
    finally:
        first.stop()
        second.stop()
    assert rig.latest(counts) == words(TEXT * 2)


def test_job_that_cannot_start_says_why(rig: Rig, tmp_path: Path) -> None:
    lines, counts = rig.topic(), rig.topic()
    with pytest.raises(TopicNotFoundError, match="reads topic 'no-such-topic'"):
        rig.run(word_count("missing", "no-such-topic", counts))
    with pytest.raises(TopicNotFoundError, match="writes topic 'no-such-topic'"):
        rig.run(word_count("missing", lines, "no-such-topic"))
    with pytest.raises(ConnectionFailedError, match=r"127\.0\.0\.1:1"):
        rig.run(
            word_count("nobody", lines, counts),
            namesrv="127.0.0.1:1",
            connect_timeout=timedelta(seconds=1),
        )


def test_state_of_a_running_job_is_looked_into(rig: Rig) -> None:
    lines, counts = rig.topic(), rig.topic()
    rig.send(lines, TEXT)
    topology = word_count(f"look-{lines}", lines, counts)
    with StreamJob(topology, rig.settings()).start() as job:
        job.await_caught_up(LIMIT)
        found = job.state(f"count-{lines}")
        assert found.get("be") == words(TEXT)["be"]
        assert dict(found.range()) == words(TEXT)
        with pytest.raises(StateError, match=r"driver of job .* is running"):
            rescale(StateHome.of(topology.name, rig.client), 3)
        shown = job.statistics().operators[f"count-{lines}"]
        assert shown.state_keys == len(words(TEXT))
    assert rescale(StateHome.of(topology.name, rig.client), 3).partitions == 3


def test_start_with_another_shape_of_state_is_refused(rig: Rig) -> None:
    lines, counts = rig.topic(), rig.topic()
    name = f"shape-{lines}"
    rig.send(lines, TEXT)
    rig.run(word_count(name, lines, counts))
    with pytest.raises(PartitionCountError, match="in 2 partitions, but was started with 3"):
        rig.run(word_count(name, lines, counts), partitions=3)
    stateless = StreamBuilder(name)
    stateless.source(lines, serdes.string).sink(counts, serdes.string)
    with pytest.raises(StateError, match=f"state of count-{lines}"):
        rig.run(stateless.build())
