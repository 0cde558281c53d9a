"""Word count from topic to topic, exactly once, on the embedded broker."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import msgspec

from benchmarks.lines import QUEUES, WORDS_PER_LINE, send_lines
from benchmarks.measures import Runs, benchmark
from headrace import StreamBuilder, Topology, serdes
from headrace.client import Admin, Client, PullConsumer
from headrace.embedded import embedded_broker
from headrace.protocol.transactions import CommitRecord
from headrace.settings import JobSettings
from headrace.spark import StreamJob

_WORDS = 10_000_000
#: Batches in which workers start, code is compiled and caches fill.
_WARM_UP = 4
_LIMIT = timedelta(minutes=10)


def word_count(name: str, lines: str, counts: str) -> Topology:
    """Count the comma-separated words of a topic."""
    builder = StreamBuilder(name)
    (
        builder.source(lines, serdes.string)
        .flat_map_values(lambda line: line.lower().split(","))
        .key_by(lambda word: word)
        .count()
        .to_stream()
        .sink(counts, serdes.json)
    )
    return builder.build()


@contextmanager
def cluster() -> Iterator[tuple[Client, JobSettings]]:
    """Start an embedded broker in a folder that is removed afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        embedded_broker(Path(folder)) as address,
        Client(address) as client,
    ):
        yield client, JobSettings(namesrv=address, data_dir=Path(folder))


def steady_rate(client: Client, topology: Topology) -> float:
    """Lines per second from the commit that ends the warm-up to the last one."""
    (queue,) = client.queues(topology.commit_topic)
    consumer = PullConsumer(client)
    end = consumer.end_offset(queue)
    records = [
        msgspec.json.decode(body, type=CommitRecord)
        for block in consumer.blocks(queue, consumer.begin_offset(queue), end)
        for body in block.columns().body.to_pylist()
    ]
    commits = [record for record in records if record.kind == "commit"]
    first, last = commits[_WARM_UP - 1], commits[-1]
    lines = last.counters["records_in"] - first.counters["records_in"]
    return lines / ((last.timestamp - first.timestamp) / 1000)


def measured(measure: str, vocabulary: int, runs: int) -> Runs:
    """Count the same lines once per run, each by a job of its own."""
    with cluster() as (client, settings):
        send_lines(client, "lines", _WORDS // WORDS_PER_LINE, vocabulary)
        for run in range(runs):
            topology = word_count(f"word-count-{run}", "lines", f"counts-{run}")
            Admin(client).create_topic(f"counts-{run}", queues=QUEUES)
            with StreamJob(topology, settings).start() as job:
                job.await_caught_up(_LIMIT)
            yield {measure: steady_rate(client, topology) * WORDS_PER_LINE}


@benchmark({"word_count_1k": "words/s"})
def word_count_1k(runs: int) -> Iterator[Mapping[str, float]]:
    """Ten million words out of 1,000."""
    yield from measured("word_count_1k", 1_000, runs)


@benchmark({"word_count_200k": "words/s"})
def word_count_200k(runs: int) -> Iterator[Mapping[str, float]]:
    """Ten million words out of 200,000."""
    yield from measured("word_count_200k", 200_000, runs)
