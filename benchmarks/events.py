"""Events of a stream, made and sent without an object per event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.sizes import QUEUES
from headrace.client import Admin, Client, Producer

__all__ = ["EVENTS_PER_SECOND", "add_events", "random_keys", "send_events", "serial_keys"]

Int64s = npt.NDArray[np.int64]

#: Of event time.
EVENTS_PER_SECOND = 10_000
_CHUNK = 4_000
_START = 1_700_000_000_000


def random_keys(count: int, different: int, seed: int = 42) -> Iterator[Int64s]:
    """Draw keys, chunk by chunk."""
    random = np.random.default_rng(seed)
    for begin in range(0, count, _CHUNK):
        yield random.integers(0, different, min(_CHUNK, count - begin))


def serial_keys(count: int) -> Iterator[Int64s]:
    """Give every key once, chunk by chunk."""
    for begin in range(0, count, _CHUNK):
        yield np.arange(begin, min(begin + _CHUNK, count))


def send_events(client: Client, topics: Sequence[str], chunks: Iterator[Int64s]) -> None:
    """Make topics and send events to each."""
    for topic in topics:
        Admin(client).create_topic(topic, queues=QUEUES)
    add_events(client, topics, chunks)


def add_events(client: Client, topics: Sequence[str], chunks: Iterator[Int64s]) -> None:
    """Send events ``{"k": KEY, "n": NUMBER}`` to each of some topics, spread over its queues.

    The events of a chunk share their time; all queues' times go on side by side.
    """
    by_topic = [client.queues(topic, for_="write") for topic in topics]
    producer = Producer(client)
    for number, keys in enumerate(chunks):
        bodies = _bodies(keys)
        born = _START + number * _CHUNK * 1000 // EVENTS_PER_SECOND
        for queues in by_topic:
            share = -(-len(bodies) // len(queues))
            for place, queue in enumerate(queues):
                if part := bodies.slice(place * share, share):
                    producer.send_columns(queue, part, born=born)


def _bodies(keys: Int64s) -> pa.BinaryArray:
    texts = pa.array(keys).cast(pa.string())
    numbers = pa.array(keys % 10).cast(pa.string())
    body = pc.binary_join_element_wise('{"k":"', texts, '","n":', numbers, "}", "")
    return body.cast(pa.binary())
