"""Windows, joins, timers and times to live that are over leave nothing; open ones cost no step."""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.growth.jobs import StoredJob, stored_job
from benchmarks.growth.shapes import LENGTH, SHAPES, Shape
from benchmarks.measures import Plan, benchmark

__all__ = ["Closed", "closed", "closed_windows", "open_windows", "steps"]

_BATCH = 20_000
#: Windows that begin in a second of event time.
_PER_SECOND = 1000
_STEPS = 15
#: Those whose stores differ.
_OPEN = ("tumbling", "session", "sliding", "interval_join", "session_join", "process")


class Closed(NamedTuple):
    """What opening and closing windows left."""

    #: Most entries at the end of a batch.
    most: int
    #: Entries at the end: in RocksDB, and in the state topic once it was compacted.
    local: int
    topic: int
    #: How much longer the last batches took than the first.
    slower: float


def closed(shape: Shape, windows: int, folder: Path, batch: int = _BATCH) -> Closed:
    """Open and close windows, batch by batch."""
    with stored_job(shape.topology(), folder) as job:
        most = 0
        for first in range(0, windows, batch):
            stop = min(first + batch, windows)
            job.send(shape.events(first, stop, per_second=_PER_SECOND))
            most = max(most, job.entries)
        seconds = job.seconds[1:] or job.seconds
        quarter = len(seconds) // 4 or 1
        slower = statistics.median(seconds[-quarter:]) / statistics.median(seconds[:quarter])
        job.send(shape.last(windows, per_second=_PER_SECOND))
        assert job.results >= windows, f"{job.results} results of {windows} windows"
        return Closed(most, job.local_entries, job.topic_entries(), slower)


def steps(shape: Shape, windows: int, folder: Path) -> float:
    """Open windows, and take how long a batch of one record takes then, seconds."""
    with stored_job(shape.topology(), folder) as job:
        for first in range(0, windows, _BATCH):
            # None of them ends: all lie in one tenth of their length.
            stop = min(first + _BATCH, windows)
            job.send(shape.events(first, stop, per_second=windows * 10_000 // LENGTH))
        return statistics.median(_step(job, number) for number in range(_STEPS))


def _step(job: StoredJob, number: int) -> float:
    job.send([("left", f"step-{number}", 1, LENGTH // 10)])
    return job.seconds[-1]


@benchmark({"growth_windows": "entries left", "growth_windows_batch": "ratio"})
def closed_windows(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Close so many windows of every kind, once: what is left is no matter of chance."""
    found: list[Closed] = []
    for name, shape in SHAPES.items():
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            found.append(closed(shape, plan.sizes.closed_windows, Path(folder) / "job"))
        sys.stderr.write(f"  {name}: {found[-1]}\n")
    yield {
        "growth_windows": sum(one.local + one.topic for one in found),
        "growth_windows_batch": max(one.slower for one in found),
    }


@benchmark({"growth_open_step": "ratio"})
def open_windows(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Compare a batch of one record beside very many open windows with one beside few."""
    ratios: list[float] = []
    for name in _OPEN:
        taken: list[float] = []
        for windows in (min(1000, plan.sizes.closed_windows), plan.sizes.closed_windows):
            with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
                taken.append(steps(SHAPES[name], windows, Path(folder) / "job"))
        ratios.append(taken[1] / taken[0])
        sys.stderr.write(f"  {name}: {taken[0] * 1e3:.1f} ms and {taken[1] * 1e3:.1f} ms\n")
    yield {"growth_open_step": max(ratios)}
