"""One key with very many records that wait in a join: what a batch of it writes."""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.growth.jobs import stored_job
from benchmarks.measures import Plan, benchmark
from headrace import StreamBuilder, Topology, serdes, session, tumbling

__all__ = ["BOUNDS", "Hot", "hot", "hot_keys"]

_HOUR = timedelta(hours=1)
_BATCHES = 100

#: Joins by time, all of whose records meet.
BOUNDS: dict[str, Callable[[Any], Any]] = {
    "interval": lambda join: join.within(_HOUR),
    "window": lambda join: join.window(tumbling(_HOUR)),
    "session": lambda join: join.window(session(_HOUR)),
}


class Hot(NamedTuple):
    """What the last batches took more than the first."""

    #: Bytes of state messages.
    written: float
    seconds: float


def hot(bound: str, records: int, folder: Path) -> Hot:
    """Give a key so many left records, batch by batch; then one right record meets all."""
    size = max(records // _BATCHES, 1)
    with stored_job(_topology(bound), folder) as job:
        for first in range(0, records, size):
            job.send(
                ("left", "hot", n, 3_000_000 * n // records) for n in range(first, first + size)
            )
        found = Hot(_rise(job.written), _rise(job.seconds))
        job.send([("right", "hot", 0, 3_000_000)])
        assert job.results == records, f"{job.results} pairs of {records} records"
    return found


def _topology(bound: str) -> Topology:
    builder = StreamBuilder("hot")
    serde = serdes.with_key(serdes.json(int), of=str)
    left, right = (builder.source(topic, serde) for topic in ("left", "right"))
    join = BOUNDS[bound](left.left_join(right))
    join.apply(lambda one, other: [one, other]).sink("results", serdes.json)
    return builder.build()


def _rise(values: list[float] | list[int]) -> float:
    quarter = len(values) // 4
    return statistics.median(values[-quarter:]) / statistics.median(values[:quarter])


@benchmark({"growth_hot_key": "ratio", "growth_hot_key_batch": "ratio"})
def hot_keys(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Compare bytes and time of the last quarter of batches with those of the first."""
    for _ in range(plan.runs):
        found: list[Hot] = []
        for bound in BOUNDS:
            with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
                found.append(hot(bound, plan.sizes.hot_records, Path(folder) / "job"))
            sys.stderr.write(f"  {bound}: {found[-1]}\n")
        yield {
            "growth_hot_key": max(one.written for one in found),
            "growth_hot_key_batch": max(one.seconds for one in found),
        }
