"""What a worker of Connect costs that runs many connectors, and how soon all of them run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from functools import partial

import numpy as np

from benchmarks.clusters import embedded
from benchmarks.connect_worker import ConnectWorker, await_true, running_connect, stored
from benchmarks.measures import Plan, benchmark
from benchmarks.workers import memory_of_tree
from headrace.client import Client

__all__ = ["await_rows", "connect_100", "made_up_rows"]

#: Rows per second of all connectors together.
_RATE = 10
#: How often the connectors are listed, and the seconds between.
_LISTED, _PAUSE = 100, 0.1


@benchmark(
    {
        "connect_100_start": "s",
        "connect_100_first_rows": "s",
        "connect_100_memory": "MB",
        "connect_100_list": "s",
    }
)
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
            begin = time.monotonic()
            for topic in topics:
                worker.put(topic, made_up_rows(topic, _RATE / count))
            worker.await_running(count)
            started = time.monotonic() - begin
            await_rows(client, topics, 1, worker.patience)
            first_rows = time.monotonic() - begin
            # Each has committed a second batch: nothing of it is still to be loaded.
            await_rows(client, topics, 2, worker.patience)
            times = [_seconds_to_list(worker, count) for _ in range(_LISTED)]
            yield {
                "connect_100_start": started,
                "connect_100_first_rows": first_rows,
                "connect_100_memory": memory_of_tree(worker.pid),
                "connect_100_list": float(np.percentile(times, 99)),
            }


def made_up_rows(topic: str, rate: float) -> dict[str, str]:
    """Give the config of a source that makes so many rows a second."""
    return {"connector.class": "datagen-source", "topic": topic, "rate": str(rate)}


def await_rows(client: Client, topics: Iterable[str], rows: int, patience: timedelta) -> None:
    """Wait until each topic has so many rows."""
    for topic in topics:
        await_true(
            f"{rows} rows of {topic}", partial(_has, client, topic, rows), patience, pause=0.1
        )


def _has(client: Client, topic: str, rows: int) -> bool:
    return stored(client, topic) >= rows


def _seconds_to_list(worker: ConnectWorker, count: int) -> float:
    time.sleep(_PAUSE)
    begin = time.monotonic()
    found = worker.http.get("/connectors", params={"expand": ["status", "info"]}).json()
    seconds = time.monotonic() - begin
    assert len(found) == count
    assert all({"status", "info"} <= set(one) for one in found.values())
    return seconds
