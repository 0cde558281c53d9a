"""A pipeline's longest pause between two commits beside busy connectors, and beside hung ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from benchmarks.clusters import embedded
from benchmarks.connect_stuck import CHAOS
from benchmarks.connect_worker import ConnectWorker, await_true, running_connect, stored
from benchmarks.lines import send_lines
from benchmarks.measures import Plan, benchmark
from benchmarks.sizes import Sizes
from headrace.client import Client

__all__ = ["connect_neighbours"]

#: Rows per second of the pipeline that is watched.
_RATE = 50
#: Seconds between two looks at what the pipeline has done.
_LOOK = 0.01


@benchmark(
    {"connect_pause_alone": "s", "connect_pause_beside_busy": "s", "connect_pause_beside_hung": "s"}
)
def connect_neighbours(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Watch a source and a sink behind it, alone, beside busy sinks, and beside hung ones."""
    sizes = plan.sizes
    with (
        embedded() as (address, folder),
        Client(address) as client,
        running_connect(address, folder / "worker", sizes.patience, "--plugins", CHAOS) as worker,
    ):
        send_lines(client, "load", sizes.connect_lines, sizes.few_words)
        copy = folder / "copy.txt"
        source = {"connector.class": "datagen-source", "topic": "steady", "rate": str(_RATE)}
        sink = {"connector.class": "file-sink", "file": str(copy), "topics": "steady"}
        with worker.connector("steady-in", source), worker.connector("steady-out", sink):
            await_true("rows", lambda: _size(copy) > 0, worker.patience)
            for run in range(plan.runs):
                yield _run(worker, client, copy, sizes, folder / str(run))


def _run(
    worker: ConnectWorker, client: Client, copy: Path, sizes: Sizes, folder: Path
) -> Mapping[str, float]:
    done = (lambda: stored(client, "steady"), lambda: _size(copy))
    folder.mkdir()
    found = {"alone": _longest_pause(done, sizes.stuck_seconds)}
    busy = {
        f"busy-{number}": _busy(folder / str(number)) for number in range(sizes.busy_neighbours)
    }
    hung = {f"hung-{number}": _HUNG for number in range(sizes.hung_neighbours)}
    for kind, configs in {"busy": busy, "hung": hung}.items():
        with ExitStack() as stack:
            for name, config in configs.items():
                stack.callback(worker.http.delete, f"/connectors/{name}", params={"force": "true"})
                worker.put(name, config)
            found[f"beside_{kind}"] = _longest_pause(done, 3 * sizes.stuck_seconds)
    return {f"connect_pause_{name}": seconds for name, seconds in found.items()}


_HUNG = {"connector.class": f"{CHAOS}.ChaosSink", "topics": "steady", "chaos.put": "hang-hard"}


def _busy(file: Path) -> dict[str, str]:
    return {"connector.class": "file-sink", "file": str(file), "topics": "load"}


def _longest_pause(done: tuple[Callable[[], int], ...], seconds: float) -> float:
    """Watch what grows; give the longest time for which one of them did not."""
    counts, longest, grown = [one() for one in done], 0.0, False
    since = [begin := time.monotonic()] * len(done)
    while not grown or time.monotonic() - begin < seconds:
        time.sleep(_LOOK)
        now = time.monotonic()
        for place, one in enumerate(done):
            longest = max(longest, now - since[place])
            if (count := one()) > counts[place]:
                counts[place], since[place], grown = count, now, True
    return longest


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
