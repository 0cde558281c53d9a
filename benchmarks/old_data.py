"""Our pull consumer reads what a broker has held since before it was started."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.lines import spread
from benchmarks.measures import Plan, benchmark
from benchmarks.sizes import QUEUES
from headrace.broker import spawn_broker
from headrace.client import Admin, Client, PullConsumer, PullResult

__all__ = ["pull_bytes", "pull_columns"]

_TOPIC = "old"
_CHUNK_BYTES = 32 * 1024 * 1024


@benchmark({"pull_bytes": "MB/s"})
def pull_bytes(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Pull messages of 1 KiB as they are stored; megabytes of bodies."""
    sizes = plan.sizes
    size = sizes.old_messages * sizes.old_size
    for seconds, got in _timed(
        plan, sizes.old_messages, sizes.old_size, lambda block: len(block.block)
    ):
        assert got > size, f"{got} bytes hold no {sizes.old_messages} messages"
        yield {"pull_bytes": size / seconds / 1e6}


@benchmark({"pull_columns": "messages/s"})
def pull_columns(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Pull messages of 100 bytes and decode them to Arrow columns."""
    sizes = plan.sizes
    count = sizes.pulled_messages
    for seconds, got in _timed(
        plan, count, sizes.pulled_size, lambda block: len(block.columns().body)
    ):
        assert got == count, f"{got} of {count} messages were pulled"
        yield {"pull_columns": count / seconds}


def _timed(
    plan: Plan, messages: int, size: int, measure: Callable[[PullResult], int]
) -> Iterator[tuple[float, int]]:
    """Time each run, and sum up what it pulled.

    Its broker was started anew, and so checks all that it reads from the disk.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        data = Path(folder) / "broker"
        with spawn_broker(data, 0) as broker, Client(broker.address) as client:
            Admin(client).create_topic(_TOPIC, queues=QUEUES)
            spread(client, _TOPIC, _bodies(messages, size))
        for _ in range(plan.runs):
            with (
                spawn_broker(data, 0) as broker,
                Client(broker.address) as client,
            ):
                yield _pull_all(client, measure)


def _pull_all(client: Client, measure: Callable[[PullResult], int]) -> tuple[float, int]:
    consumer = PullConsumer(client)
    ends = consumer.end_offsets(client.queues(_TOPIC))
    begun = time.monotonic()
    got = sum(
        measure(block) for queue, end in ends.items() for block in consumer.blocks(queue, 0, end)
    )
    return time.monotonic() - begun, got


def _bodies(messages: int, size: int) -> Iterator[pa.BinaryArray]:
    random = np.random.default_rng(42)
    chunk = _CHUNK_BYTES // size
    for begin in range(0, messages, chunk):
        count = min(chunk, messages - begin)
        offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * size)
        yield pa.Array.from_buffers(
            pa.binary(), count, [None, offsets, pa.py_buffer(random.bytes(count * size))]
        )
