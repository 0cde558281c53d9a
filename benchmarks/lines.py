"""Lines of random words, made and sent without an object per line."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client import Admin, Client, Producer

WORDS_PER_LINE = 5
QUEUES = 4
_CHUNK = 100_000


def random_lines(lines: int, vocabulary: int, seed: int = 42) -> Iterator[pa.BinaryArray]:
    """Make lines of five words out of ``word0`` to ``word<vocabulary - 1>``, joined by commas."""
    random = np.random.default_rng(seed)
    words = pa.array([f"word{number}" for number in range(vocabulary)])
    for begin in range(0, lines, _CHUNK):
        size = min(_CHUNK, lines - begin)
        columns = [words.take(random.integers(0, vocabulary, size)) for _ in range(WORDS_PER_LINE)]
        yield pc.binary_join_element_wise(*columns, ",").cast(pa.binary())


def send_lines(client: Client, topic: str, lines: int, vocabulary: int) -> None:
    """Make a topic and spread lines over its queues."""
    Admin(client).create_topic(topic, queues=QUEUES)
    queues = client.queues(topic, for_="write")
    producer = Producer(client)
    for bodies in random_lines(lines, vocabulary):
        share = -(-len(bodies) // len(queues))
        for number, queue in enumerate(queues):
            producer.send_columns(queue, bodies.slice(number * share, share))
