"""From the end of a send until the count that it causes can be read."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.clusters import embedded, real
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

__all__ = ["latency", "resident_latency", "resident_latency_10k", "rocketmq_latency"]

_WAIT = timedelta(seconds=1)


@benchmark({"latency_p50": "s", "latency_p99": "s"}, turns="latency")
def latency(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Send lines at a steady rate, each with a word of its own, to a job that is warm."""
    yield from _measured(plan, "micro-batch", "latency")


@benchmark({"resident_latency_p50": "s", "resident_latency_p99": "s"}, turns="latency")
def resident_latency(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Send the same lines to the same job, whose tasks are resident."""
    yield from _measured(plan, "resident", "resident_latency")


@benchmark({"resident_latency_10k_p50": "s", "resident_latency_10k_p99": "s"})
def resident_latency_10k(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Send a hundred times as many lines, in batches of a hundred, each with a word to look for."""
    yield from _measured(plan, "resident", "resident_latency_10k", lines=100)


def _measured(
    plan: Plan, executor: Executor, measure: str, lines: int = 1
) -> Iterator[Mapping[str, float]]:
    for _ in range(plan.runs):
        with embedded() as (address, folder):
            times = _job_latencies(address, folder, "latency", plan.sizes, executor, lines)
        yield {
            f"{measure}_p50": float(np.percentile(times, 50)),
            f"{measure}_p99": float(np.percentile(times, 99)),
        }


@benchmark({"rocketmq_latency_p50": "s", "rocketmq_resident_latency_p50": "s"})
def rocketmq_latency(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Send lines to a job on RocketMQ, by either executor in turn."""
    executors: dict[str, Executor] = {
        "rocketmq_latency_p50": "micro-batch",
        "rocketmq_resident_latency_p50": "resident",
    }
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder, real() as address:
        for run in range(plan.runs):
            yield {
                measure: float(
                    np.median(
                        _job_latencies(
                            address, Path(folder), f"{executor}-{run}", plan.sizes, executor
                        )
                    )
                )
                for measure, executor in executors.items()
            }


def _job_latencies(
    address: str, folder: Path, name: str, sizes: Sizes, executor: Executor, lines: int = 1
) -> list[float]:
    """Run a job of its own, on topics of its own."""
    with Client(address) as client:
        for topic in (f"{name}-lines", f"{name}-counts"):
            Admin(client).create_topic(topic, queues=QUEUES)
    topology = word_count(name, f"{name}-lines", f"{name}-counts")
    settings = replace(job_settings(address, folder, sizes), executor=executor)
    with StreamJob(topology, settings).start():
        return asyncio.run(_latencies(address, name, sizes, lines))


async def _latencies(address: str, name: str, sizes: Sizes, lines: int) -> list[float]:
    warm_up = sizes.latency_warm_up * sizes.latency_rate
    words = [f"line{n}" for n in range(warm_up + sizes.latency_seconds * sizes.latency_rate)]
    watch = _Watch()
    async with AsyncClient(address) as client:
        consumer = AsyncPullConsumer(client, committed=True)
        producer = AsyncProducer(client)
        async with asyncio.timeout(sizes.patience.total_seconds()), asyncio.TaskGroup() as tasks:
            readers = [
                tasks.create_task(_read(consumer, queue, watch))
                for queue in await client.queues(f"{name}-counts")
            ]
            send = partial(_send, producer, f"{name}-lines", rate=sizes.latency_rate, lines=lines)
            # The job is warm when it keeps up: the first lines wait for its start.
            await send(words[:1])
            await watch.until(1)
            await send(words[1:warm_up])
            await watch.until(warm_up)
            sent = await send(words[warm_up:])
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


async def _send(
    producer: AsyncProducer, topic: str, words: list[str], *, rate: int, lines: int
) -> dict[str, float]:
    """Send so many words a second, each in the last of so many lines."""
    sent: dict[str, float] = {}
    more = [Message(topic=topic, body=b"to be or not") for _ in range(lines - 1)]
    begun = time.monotonic()
    for number, word in enumerate(words):
        await asyncio.sleep(max(0.0, begun + number / rate - time.monotonic()))
        told = Message(topic=topic, body=f"{word} to be or not".encode())
        if more:
            await producer.send_batch([*more, told])
        else:
            await producer.send(told)
        sent[word] = time.monotonic()
    return sent


async def _read(consumer: AsyncPullConsumer, queue: MessageQueue, watch: _Watch) -> None:
    offset = 0
    while True:
        result = await consumer.pull(queue, offset, wait=_WAIT)
        words = result.columns().property(KEYS).to_pylist()
        await watch.see(word.decode() for word in words if word.startswith(b"line"))
        offset = result.next_offset
