"""A task beside others that are stuck: the rate that it keeps, and how REST answers meanwhile."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

from benchmarks.clusters import embedded
from benchmarks.connect_worker import ConnectWorker, await_true, running_connect, stored
from benchmarks.measures import Plan, benchmark
from headrace.client import Client

__all__ = ["CHAOS", "connect_beside_stuck"]

CHAOS = "headrace.connect.testing.chaos"
"""The module of the connectors that misbehave."""

#: A connector for each callback in which a task may be stuck, deaf to all signals but SIGKILL.
_STUCK = {
    "in-poll": ("Source", {"chaos.poll": "hang-hard @ 2"}),
    "in-put": ("Sink", {"chaos.put": "hang-hard"}),
    "in-start": ("Source", {"chaos.start": "hang-hard"}),
    "in-stop": ("Source", {"chaos.stop": "hang-hard"}),
}
#: Windows with stuck tasks, and as many without, in each run.
_WINDOWS = 3
_PAUSE = 0.05


@benchmark({"connect_alone": "rows/s", "connect_beside_stuck": "rows/s", "connect_stuck_list": "s"})
def connect_beside_stuck(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Have a task make rows as fast as it can, in windows with and without stuck tasks."""
    with (
        embedded() as (address, folder),
        Client(address) as client,
        running_connect(
            address, folder / "worker", plan.sizes.patience, "--plugins", CHAOS
        ) as worker,
    ):
        config = {"connector.class": "datagen-source", "topic": "well", "rate": "0"}
        with worker.connector("well", config):
            await_true("rows", lambda: stored(client, "well") > 0, worker.patience)
            for _ in range(plan.runs):
                yield _run(worker, client, plan.sizes.stuck_seconds)


def _run(worker: ConnectWorker, client: Client, seconds: int) -> Mapping[str, float]:
    alone, beside, answers = [], [], []
    for _ in range(_WINDOWS):
        rate, _times = _window(worker, client, seconds)
        alone.append(rate)
        with ExitStack() as stack:
            for name, (kind, chaos) in _STUCK.items():
                stack.callback(worker.http.delete, f"/connectors/{name}", params={"force": "true"})
                topics = {"topics": "well"} if kind == "Sink" else {"topic": name}
                worker.put(name, {"connector.class": f"{CHAOS}.Chaos{kind}", **topics, **chaos})
            await_true("stuck tasks", lambda: _are_there(worker), worker.patience)
            worker.http.put("/connectors/in-stop/stop").raise_for_status()
            rate, times = _window(worker, client, seconds)
            beside.append(rate)
            answers += times
        await_true("their end", lambda: _hosts(worker) == {"well"}, worker.patience)
    return {
        "connect_alone": statistics.median(alone),
        "connect_beside_stuck": statistics.median(beside),
        "connect_stuck_list": max(answers),
    }


def _window(worker: ConnectWorker, client: Client, seconds: int) -> tuple[float, list[float]]:
    """Give the rows per second of the task that is well, and the times of REST's answers."""
    rows, begin, times = stored(client, "well"), time.monotonic(), []
    while time.monotonic() < begin + seconds:
        asked = time.monotonic()
        found = worker.http.get("/connectors", params={"expand": ["status", "info"]})
        times.append(time.monotonic() - asked)
        found.raise_for_status()
        time.sleep(_PAUSE)
    return (stored(client, "well") - rows) / (time.monotonic() - begin), times


def _are_there(worker: ConnectWorker) -> bool:
    """Whether the tasks have started that can."""
    told = {one["name"]: one["tasks"] for one in worker.statuses()}
    running = {name for name, tasks in told.items() if tasks and tasks[0]["state"] == "RUNNING"}
    return running == {"well", *_STUCK} - {"in-start"}


def _hosts(worker: ConnectWorker) -> set[str]:
    """Connectors of which something lives."""
    units = worker.http.get("/admin/tasks").raise_for_status().json()
    return {unit["connector"] for unit in units if unit["pid_alive"]}
