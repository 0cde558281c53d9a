"""From a ``PUT`` of a connector until its first row can be read."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.clusters import embedded
from benchmarks.connect_worker import ConnectWorker, await_true, running_connect, stored
from benchmarks.measures import Plan, benchmark
from headrace.client import Client

__all__ = ["connect_first_row"]


@benchmark({"connect_first_row": "s"})
def connect_first_row(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Make a source on a worker that has run one before; its topic is not there yet."""
    patience = plan.sizes.patience
    with embedded() as (address, folder), Client(address) as client:
        lines = folder / "lines.txt"
        lines.write_text("a line\n")
        with running_connect(address, folder / "worker", patience) as worker:
            _seconds(worker, client, lines, "warm-up")
            for run in range(plan.runs):
                yield {"connect_first_row": _seconds(worker, client, lines, f"first-{run}")}


def _seconds(worker: ConnectWorker, client: Client, lines: Path, topic: str) -> float:
    config = {"connector.class": "file-source", "file": str(lines), "topic": topic}
    begin = time.monotonic()
    with worker.connector(topic, config):
        await_true("a row", lambda: stored(client, topic) > 0, worker.patience)
        return time.monotonic() - begin
