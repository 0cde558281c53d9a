"""From the end of a send until the count that it causes can be read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta

import numpy as np

from benchmarks.lines import QUEUES
from benchmarks.measures import benchmark
from benchmarks.word_count import cluster, word_count
from headrace.client import (
    Admin,
    AsyncClient,
    AsyncProducer,
    AsyncPullConsumer,
    Message,
    MessageQueue,
)
from headrace.keys import KEYS
from headrace.spark import StreamJob

_RATE = 100
_SECONDS = 20
_WARM_UP = 5
_WAIT = timedelta(seconds=1)


@benchmark({"latency_p50": "s", "latency_p99": "s"})
def latency(runs: int) -> Iterator[Mapping[str, float]]:
    """One hundred lines a second for twenty seconds, each with a word of its own."""
    for _ in range(runs):
        with cluster() as (client, settings):
            for topic in ("lines", "counts"):
                Admin(client).create_topic(topic, queues=QUEUES)
            with StreamJob(word_count("latency", "lines", "counts"), settings).start():
                assert settings.namesrv is not None
                times = asyncio.run(_latencies(settings.namesrv))
        yield {
            "latency_p50": float(np.percentile(times, 50)),
            "latency_p99": float(np.percentile(times, 99)),
        }


async def _latencies(address: str) -> list[float]:
    words = [f"line{number}" for number in range((_WARM_UP + _SECONDS) * _RATE)]
    watch = _Watch(words)
    async with AsyncClient(address) as client:
        consumer = AsyncPullConsumer(client)
        queues = await client.queues("counts")
        readers = [asyncio.create_task(_read(consumer, queue, watch)) for queue in queues]
        sent = await _send(AsyncProducer(client), words)
        await watch.complete.wait()
        for reader in readers:
            reader.cancel()
    return [watch.read[word] - sent[word] for word in words[_WARM_UP * _RATE :]]


class _Watch:
    """When each word's count was read."""

    def __init__(self, words: Iterable[str]) -> None:
        self._missing = set(words)
        self.read: dict[str, float] = {}
        self.complete = asyncio.Event()

    def see(self, word: str) -> None:
        self.read.setdefault(word, time.monotonic())
        self._missing.discard(word)
        if not self._missing:
            self.complete.set()


async def _send(producer: AsyncProducer, words: list[str]) -> dict[str, float]:
    sent: dict[str, float] = {}
    begun = time.monotonic()
    for number, word in enumerate(words):
        await asyncio.sleep(max(0.0, begun + number / _RATE - time.monotonic()))
        await producer.send(Message("lines", f"{word},to,be,or,not".encode()))
        sent[word] = time.monotonic()
    return sent


async def _read(consumer: AsyncPullConsumer, queue: MessageQueue, watch: _Watch) -> None:
    offset = 0
    while True:
        result = await consumer.pull(queue, offset, wait=_WAIT)
        for word in result.columns().property(KEYS).to_pylist():
            watch.see(word.decode())
        offset = result.next_offset
