"""From the end of a send until the count that it causes can be read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta

import numpy as np

from benchmarks.clusters import embedded
from benchmarks.measures import Plan, benchmark
from benchmarks.sizes import QUEUES, Sizes
from benchmarks.word_count import job_settings, word_count
from headrace.client import (
    Admin,
    AsyncClient,
    AsyncProducer,
    AsyncPullConsumer,
    Client,
    Message,
    MessageQueue,
)
from headrace.keys import KEYS
from headrace.settings import Executor
from headrace.spark import StreamJob

__all__ = ["latency", "resident_latency"]

_WAIT = timedelta(seconds=1)


@benchmark({"latency_p50": "s", "latency_p99": "s"}, turns="latency")
def latency(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Send lines at a steady rate, each with a word of its own, to a job that is warm."""
    yield from _measured(plan, "micro-batch", "latency")


@benchmark({"resident_latency_p50": "s", "resident_latency_p99": "s"}, turns="latency")
def resident_latency(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Send the same lines to the same job, whose tasks are resident."""
    yield from _measured(plan, "resident", "resident_latency")


def _measured(plan: Plan, executor: Executor, measure: str) -> Iterator[Mapping[str, float]]:
    for _ in range(plan.runs):
        with embedded() as (address, folder):
            with Client(address) as client:
                for topic in ("lines", "counts"):
                    Admin(client).create_topic(topic, queues=QUEUES)
            topology = word_count("latency", "lines", "counts")
            settings = replace(job_settings(address, folder, plan.sizes), executor=executor)
            with StreamJob(topology, settings).start():
                times = asyncio.run(_latencies(address, plan.sizes))
        yield {
            f"{measure}_p50": float(np.percentile(times, 50)),
            f"{measure}_p99": float(np.percentile(times, 99)),
        }


async def _latencies(address: str, sizes: Sizes) -> list[float]:
    warm_up = sizes.latency_warm_up * sizes.latency_rate
    words = [f"line{n}" for n in range(warm_up + sizes.latency_seconds * sizes.latency_rate)]
    watch = _Watch()
    async with AsyncClient(address) as client:
        consumer, producer = AsyncPullConsumer(client), AsyncProducer(client)
        async with asyncio.timeout(sizes.patience.total_seconds()), asyncio.TaskGroup() as tasks:
            readers = [
                tasks.create_task(_read(consumer, queue, watch))
                for queue in await client.queues("counts")
            ]
            # The job is warm when it keeps up: the first lines wait for its start.
            await _send(producer, words[:1], sizes.latency_rate)
            await watch.until(1)
            await _send(producer, words[1:warm_up], sizes.latency_rate)
            await watch.until(warm_up)
            sent = await _send(producer, words[warm_up:], sizes.latency_rate)
            await watch.until(len(words))
            for reader in readers:
                reader.cancel()
    return [watch.read[word] - moment for word, moment in sent.items()]


class _Watch:
    """When each word's count was read."""

    def __init__(self) -> None:
        self.read: dict[str, float] = {}
        self._changed = asyncio.Condition()

    async def see(self, words: Iterable[str]) -> None:
        now = time.monotonic()
        for word in words:
            self.read.setdefault(word, now)
        async with self._changed:
            self._changed.notify_all()

    async def until(self, words: int) -> None:
        """Wait until so many words were read."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.read) >= words)


async def _send(producer: AsyncProducer, words: list[str], rate: int) -> dict[str, float]:
    sent: dict[str, float] = {}
    begun = time.monotonic()
    for number, word in enumerate(words):
        await asyncio.sleep(max(0.0, begun + number / rate - time.monotonic()))
        await producer.send(Message(topic="lines", body=f"{word} to be or not".encode()))
        sent[word] = time.monotonic()
    return sent


async def _read(consumer: AsyncPullConsumer, queue: MessageQueue, watch: _Watch) -> None:
    offset = 0
    while True:
        result = await consumer.pull(queue, offset, wait=_WAIT)
        words = result.columns().property(KEYS).to_pylist()
        await watch.see(word.decode() for word in words if word.startswith(b"line"))
        offset = result.next_offset
