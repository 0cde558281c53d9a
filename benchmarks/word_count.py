"""Word count from topic to topic, exactly once, on the embedded broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from benchmarks.clusters import embedded
from benchmarks.lines import send_lines
from benchmarks.measures import Plan, Runs, benchmark
from benchmarks.sizes import QUEUES, WORDS_PER_LINE, Sizes
from headrace import StreamBuilder, Topology, serdes
from headrace.client import Admin, Client, PullConsumer
from headrace.keys import KEYS
from headrace.protocol.transactions import CommitRecord
from headrace.settings import Executor, JobSettings
from headrace.spark import StreamJob

__all__ = [
    "commits",
    "counted_words",
    "job_settings",
    "resident_word_count_1k",
    "resident_word_count_200k",
    "steady_rate",
    "word_count",
    "word_count_1k",
    "word_count_200k",
]


@benchmark({"word_count_1k": "words/s"}, turns="word_count_1k")
def word_count_1k(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Ten million words out of 1,000."""
    yield from _measured("word_count_1k", plan.sizes.few_words, plan)


@benchmark({"word_count_200k": "words/s"}, turns="word_count_200k")
def word_count_200k(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Ten million words out of 200,000."""
    yield from _measured("word_count_200k", plan.sizes.many_words, plan)


@benchmark({"resident_word_count_1k": "words/s"}, turns="word_count_1k")
def resident_word_count_1k(plan: Plan) -> Iterator[Mapping[str, float]]:
    """The same by resident tasks."""
    yield from _measured("resident_word_count_1k", plan.sizes.few_words, plan, "resident")


@benchmark({"resident_word_count_200k": "words/s"}, turns="word_count_200k")
def resident_word_count_200k(plan: Plan) -> Iterator[Mapping[str, float]]:
    """The same by resident tasks."""
    yield from _measured("resident_word_count_200k", plan.sizes.many_words, plan, "resident")


def word_count(name: str, lines: str, counts: str) -> Topology:
    """Count the words of a topic."""
    builder = StreamBuilder(name)
    (
        builder.source(lines, serdes.string)
        .flat_map_values(lambda line: line.lower().split())
        .key_by(lambda word: word)
        .count()
        .sink(counts, serdes.json)
    )
    return builder.build()


def job_settings(address: str, folder: Path, sizes: Sizes) -> JobSettings:
    """Run with the defaults, but for the size of a batch."""
    return JobSettings(namesrv=address, data_dir=folder, max_records_per_batch=sizes.batch_lines)


def steady_rate(commits: Sequence[CommitRecord], sizes: Sizes) -> float:
    """Words per second from the commit that ends the warm-up to the last one."""
    first, last = commits[sizes.warm_up_batches - 1], commits[-1]
    lines = last.counters["records_in"] - first.counters["records_in"]
    return lines * WORDS_PER_LINE / ((last.timestamp - first.timestamp) / 1000)


def _measured(
    measure: str, vocabulary: int, plan: Plan, executor: Executor = "micro-batch"
) -> Runs:
    """Count the same lines once per run, each by a job of its own."""
    sizes = plan.sizes
    with embedded() as (address, folder), Client(address) as client:
        send_lines(client, "lines", sizes.words // WORDS_PER_LINE, vocabulary)
        settings = replace(job_settings(address, folder, sizes), executor=executor)
        for run in range(plan.runs):
            topology = word_count(f"word-count-{run}", "lines", f"counts-{run}")
            Admin(client).create_topic(f"counts-{run}", queues=QUEUES)
            with StreamJob(topology, settings).start() as job:
                job.await_caught_up(sizes.patience)
            counted = counted_words(client, f"counts-{run}")
            assert counted == sizes.words, f"{counted} of {sizes.words} words were counted"
            yield {measure: steady_rate(commits(client, topology), sizes)}


def commits(client: Client, topology: Topology) -> list[CommitRecord]:
    """Read what the driver committed, in order."""
    (queue,) = client.queues(topology.commit_topic)
    consumer = PullConsumer(client)
    records = [
        msgspec.json.decode(body, type=CommitRecord)
        for block in consumer.blocks(queue, 0, consumer.end_offset(queue))
        for body in block.columns().body.to_pylist()
    ]
    return [record for record in records if record.kind == "commit"]


def counted_words(client: Client, topic: str) -> int:
    """Add up the last count of every word: a fast job that counts wrong is worth nothing."""
    consumer = PullConsumer(client)
    latest: dict[bytes, bytes] = {}
    for queue, end in consumer.end_offsets(client.queues(topic)).items():
        for block in consumer.blocks(queue, 0, end):
            columns = block.columns()
            keys = columns.property(KEYS).to_pylist()
            latest.update(zip(keys, columns.body.to_pylist(), strict=True))
    return sum(map(int, latest.values()))
