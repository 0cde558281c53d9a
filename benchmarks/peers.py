"""RocketMQ Streams, on a real RocketMQ and on ours: the count by the system nearest to ours."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping

from benchmarks.clusters import embedded, java_command, parse_rate, real
from benchmarks.lines import random_lines, spread
from benchmarks.measures import Plan, benchmark
from benchmarks.sizes import QUEUES, WORDS_PER_LINE, Sizes
from headrace.client import Admin, Client

__all__ = ["rocketmq_streams", "rocketmq_streams_ours"]


@benchmark({"rocketmq_streams_1k": "words/s"}, peers=True)
def rocketmq_streams(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Count words as its own program does, from the first to the last that it sees."""
    with real() as address:
        for run in range(plan.runs):
            yield {"rocketmq_streams_1k": _rate(address, f"words-{run}", plan.sizes)}


@benchmark({"rocketmq_streams_ours": "words/s"}, peers=True)
def rocketmq_streams_ours(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Count words as its own program does, with our broker below it."""
    with embedded("--flush", "async") as (address, _):
        for run in range(plan.runs):
            yield {"rocketmq_streams_ours": _rate(address, f"words-{run}", plan.sizes)}


def _rate(address: str, topic: str, sizes: Sizes) -> float:
    with Client(address) as client:
        Admin(client).create_topic(topic, queues=QUEUES)
        command = java_command("streams", "WordCount.java", address, topic, str(sizes.peer_words))
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as streams:
            try:
                # It reads from the end of the topic, and says nothing when it is ready.
                time.sleep(sizes.peer_start.total_seconds())
                lines = sizes.peer_words // WORDS_PER_LINE
                spread(client, topic, random_lines(lines, sizes.few_words, separator=","))
                output, _ = streams.communicate(timeout=sizes.patience.total_seconds())
            finally:
                streams.kill()
    counted, rate = parse_rate(output)
    assert counted >= sizes.peer_words, f"it counted {counted} of {sizes.peer_words} words"
    return rate
