"""RocketMQ Streams, on a real RocketMQ and on ours: the count by the system nearest to ours."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping

from benchmarks.clusters import embedded, java_command, parse_rate, real
from benchmarks.events import add_events, random_keys
from benchmarks.lines import random_lines, spread
from benchmarks.measures import Plan, benchmark
from benchmarks.sizes import QUEUES, WORDS_PER_LINE, Sizes
from benchmarks.streams import WINDOW_KEYS
from headrace.client import Admin, Client

__all__ = ["rocketmq_streams", "rocketmq_streams_ours", "rocketmq_streams_window"]


@benchmark({"rocketmq_streams_1k": "words/s"}, peers=True)
def rocketmq_streams(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Count words as its own program does, from the first to the last that it sees."""
    with real() as address:
        for run in range(plan.runs):
            yield {"rocketmq_streams_1k": _count_words(address, run, plan.sizes)}


@benchmark({"rocketmq_streams_ours": "words/s"}, peers=True)
def rocketmq_streams_ours(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Count words as its own program does, with our broker below it."""
    with embedded("--flush", "async") as (address, _):
        for run in range(plan.runs):
            yield {"rocketmq_streams_ours": _count_words(address, run, plan.sizes)}


@benchmark({"rocketmq_streams_window": "records/s"}, peers=True)
def rocketmq_streams_window(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Sum by key in tumbling windows, over the first events of ``window_tumbling``."""
    with real() as address:
        for run in range(plan.runs):
            yield {"rocketmq_streams_window": _sum_windows(address, run, plan.sizes)}


def _count_words(address: str, run: int, sizes: Sizes) -> float:
    def send(client: Client, topic: str) -> None:
        lines = sizes.peer_words // WORDS_PER_LINE
        spread(client, topic, random_lines(lines, sizes.few_words, separator=","))

    return _rate("WordCount.java", address, f"words-{run}", sizes.peer_words, sizes, send)


def _sum_windows(address: str, run: int, sizes: Sizes) -> float:
    def send(client: Client, topic: str) -> None:
        add_events(client, [topic], random_keys(sizes.peer_events, WINDOW_KEYS))

    return _rate("WindowSum.java", address, f"events-{run}", sizes.peer_events, sizes, send)


def _rate(
    program: str,
    address: str,
    topic: str,
    count: int,
    sizes: Sizes,
    send: Callable[[Client, str], None],
) -> float:
    with Client(address) as client:
        Admin(client).create_topic(topic, queues=QUEUES)
        command = java_command("streams", program, address, topic, str(count))
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
                send(client, topic)
                output, _ = streams.communicate(timeout=sizes.patience.total_seconds())
            finally:
                streams.kill()
    counted, rate = parse_rate(output)
    assert counted >= count, f"it counted {counted} of {count}"
    return rate
