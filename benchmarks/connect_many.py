"""What a worker of Connect costs that runs many connectors."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import numpy as np

from benchmarks.clusters import embedded
from benchmarks.connect_worker import ConnectWorker, await_true, running_connect, stored
from benchmarks.measures import Plan, benchmark
from benchmarks.workers import memory_of_tree
from headrace.client import Client

__all__ = ["connect_100"]

#: Rows per second of all connectors together.
_RATE = 10
#: How often the connectors are listed, and the seconds between.
_LISTED, _PAUSE = 100, 0.1


@benchmark({"connect_100_memory": "MB", "connect_100_list": "s"})
def connect_100(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Run connectors with a task each, of which each gives a row at times; a worker per run."""
    count = plan.sizes.connectors
    for _ in range(plan.runs):
        with (
            embedded() as (address, folder),
            Client(address) as client,
            running_connect(address, folder / "worker", plan.sizes.patience) as worker,
        ):
            topics = [f"made-{number}" for number in range(count)]
            for topic in topics:
                worker.put(topic, _config(topic, _RATE / count))
            worker.await_running(count)
            for topic in topics:
                # Each has committed a batch: nothing of it is still to be loaded.
                await_true(
                    f"rows of {topic}",
                    lambda topic=topic: stored(client, topic) > 1,  # type: ignore[misc]
                    worker.patience,
                )
            times = [_seconds_to_list(worker, count) for _ in range(_LISTED)]
            yield {
                "connect_100_memory": memory_of_tree(worker.pid),
                "connect_100_list": float(np.percentile(times, 99)),
            }


def _config(topic: str, rate: float) -> dict[str, str]:
    return {"connector.class": "datagen-source", "topic": topic, "rate": str(rate)}


def _seconds_to_list(worker: ConnectWorker, count: int) -> float:
    time.sleep(_PAUSE)
    begin = time.monotonic()
    found = worker.http.get("/connectors", params={"expand": ["status", "info"]}).json()
    seconds = time.monotonic() - begin
    assert len(found) == count
    assert all({"status", "info"} <= set(one) for one in found.values())
    return seconds
