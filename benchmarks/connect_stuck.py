"""A task beside others that are stuck: the rate that it keeps, and how REST answers meanwhile."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from benchmarks.clusters import embedded
from benchmarks.connect_worker import ConnectWorker, await_true, running_connect, stored
from benchmarks.measures import Plan, benchmark
from headrace.client import Client

if TYPE_CHECKING:
    from benchmarks.sizes import Sizes

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
#: Seconds between two questions by REST, and between two looks at the topic.
_PAUSE, _LOOK = 0.05, 0.005


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
                yield _run(worker, client, plan.sizes)


def _run(worker: ConnectWorker, client: Client, sizes: Sizes) -> Mapping[str, float]:
    alone, beside, answers = [], [], []
    seconds = sizes.stuck_seconds
    for _ in range(sizes.stuck_windows):
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
    """Give the rows per second of the task that is well, and the times of REST's answers.

    It begins and ends with a commit: rows come in batches.
    """
    times: list[float] = []
    rows, begin = _next_commit(worker, client, times)
    while True:
        more, now = _next_commit(worker, client, times)
        if now - begin >= seconds:
            return (more - rows) / (now - begin), times


def _next_commit(worker: ConnectWorker, client: Client, times: list[float]) -> tuple[int, float]:
    """Give the rows that are committed, and the time, at once when there are more."""
    before, asked_at = stored(client, "well"), 0.0
    deadline = time.monotonic() + worker.patience.total_seconds()
    while (rows := stored(client, "well")) == before:
        now = time.monotonic()
        assert now < deadline, "the task that is well has stopped"
        if now - asked_at >= _PAUSE:
            asked_at = now
            worker.http.get("/connectors", params={"expand": ["status", "info"]}).raise_for_status()
            times.append(time.monotonic() - now)
        time.sleep(_LOOK)
    return rows, time.monotonic()


def _are_there(worker: ConnectWorker) -> bool:
    """Whether the tasks have started that can."""
    told = {one["name"]: one["tasks"] for one in worker.statuses()}
    running = {name for name, tasks in told.items() if tasks and tasks[0]["state"] == "RUNNING"}
    return running == {"well", *_STUCK} - {"in-start"}


def _hosts(worker: ConnectWorker) -> set[str]:
    """Connectors of which something lives."""
    units = worker.http.get("/admin/tasks").raise_for_status().json()
    return {unit["connector"] for unit in units if unit["pid_alive"]}
