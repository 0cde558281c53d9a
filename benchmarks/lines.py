"""Lines of random words, made and sent without an object per line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.sizes import QUEUES, WORDS_PER_LINE
from headrace.client import Admin, Client, MessageQueue, Producer, PullConsumer

__all__ = ["await_stored", "random_lines", "send_lines", "spread"]

_CHUNK = 100_000


def random_lines(
    lines: int, vocabulary: int, *, separator: str = " ", seed: int = 42
) -> Iterator[pa.BinaryArray]:
    """Make lines of five words out of ``word0`` to ``word<vocabulary - 1>``."""
    random = np.random.default_rng(seed)
    words = pa.array([f"word{number}" for number in range(vocabulary)])
    for begin in range(0, lines, _CHUNK):
        size = min(_CHUNK, lines - begin)
        columns = [words.take(random.integers(0, vocabulary, size)) for _ in range(WORDS_PER_LINE)]
        yield pc.binary_join_element_wise(*columns, separator).cast(pa.binary())


def send_lines(
    client: Client, topic: str, lines: int, vocabulary: int, *, separator: str = " "
) -> None:
    """Make a topic and spread lines over its queues."""
    Admin(client).create_topic(topic, queues=QUEUES)
    spread(client, topic, random_lines(lines, vocabulary, separator=separator))


def spread(client: Client, topic: str, columns: Iterator[pa.BinaryArray]) -> None:
    """Send columns of bodies, each in equal shares to all queues of a topic."""
    queues = client.queues(topic, for_="write")
    producer = Producer(client)
    for bodies in columns:
        share = -(-len(bodies) // len(queues))
        for number, queue in enumerate(queues):
            if part := bodies.slice(number * share, share):
                producer.send_columns(queue, part)


def await_stored(
    client: Client, topic: str, messages: int, patience: timedelta
) -> dict[MessageQueue, int]:
    """Wait until a topic shows all messages sent to it; give the ends of its queues.

    A real RocketMQ lists messages some time after it has confirmed them.
    """
    consumer = PullConsumer(client)
    deadline = time.monotonic() + patience.total_seconds()
    while True:
        ends = consumer.end_offsets(client.queues(topic))
        stored = sum(ends.values())
        if stored == messages:
            return ends
        if stored > messages or time.monotonic() > deadline:
            raise RuntimeError(f"topic {topic} holds {stored} messages, {messages} were sent")
        time.sleep(0.1)
