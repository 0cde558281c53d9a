"""Our pull consumer, on our broker and on a real one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import numpy as np
import pyarrow as pa

from benchmarks.clusters import embedded, real
from benchmarks.lines import await_stored, spread
from benchmarks.measures import Plan, benchmark
from benchmarks.sizes import QUEUES, Sizes
from headrace.client import Admin, Client, PullConsumer

__all__ = ["pull"]

_TOPIC = "pulled"
_CHUNK = 200_000


@benchmark({"pull_ours": "MB/s", "pull_real": "MB/s"})
def pull(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Pull and decode messages of 100 bytes; megabytes of bodies, 10,000 messages each."""
    with ExitStack() as opened:
        clients = {
            "pull_ours": opened.enter_context(Client(opened.enter_context(embedded())[0])),
            "pull_real": opened.enter_context(Client(opened.enter_context(real()))),
        }
        for client in clients.values():
            Admin(client).create_topic(_TOPIC, queues=QUEUES)
            spread(client, _TOPIC, _bodies(plan.sizes))
            await_stored(client, _TOPIC, plan.sizes.pulled_messages, plan.sizes.patience)
        for _ in range(plan.runs):
            yield {name: _rate(client, plan.sizes) for name, client in clients.items()}


def _bodies(sizes: Sizes) -> Iterator[pa.BinaryArray]:
    random = np.random.default_rng(42)
    offsets = pa.py_buffer(np.arange(_CHUNK + 1, dtype=np.int32) * sizes.pulled_size)
    for begin in range(0, sizes.pulled_messages, _CHUNK):
        count = min(_CHUNK, sizes.pulled_messages - begin)
        bodies = pa.py_buffer(random.bytes(count * sizes.pulled_size))
        yield pa.Array.from_buffers(pa.binary(), count, [None, offsets, bodies])


def _rate(client: Client, sizes: Sizes) -> float:
    consumer = PullConsumer(client)
    ends = consumer.end_offsets(client.queues(_TOPIC))
    messages = size = 0
    begun = time.monotonic()
    for queue, end in ends.items():
        for block in consumer.blocks(queue, 0, end):
            bodies = block.columns().body
            messages += len(bodies)
            size += len(bodies) * sizes.pulled_size
    seconds = time.monotonic() - begun
    assert messages == sizes.pulled_messages, f"{messages} of {sizes.pulled_messages} were pulled"
    return size / seconds / 1e6
