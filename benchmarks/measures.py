"""What a measurement is, and how it is run and written down."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path("bench-results")
DEFAULT_RUNS = 3

Runs = Iterable[Mapping[str, float]]
"""The values of each run, by measure."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One piece of work that gives the values of one or more measures."""

    #: Units by measure.
    units: Mapping[str, str]
    #: Does the work so many times and yields the values of each; set-up happens once, before.
    work: Callable[[int], Runs]
    #: Whether it needs a real RocketMQ.
    peers: bool


BENCHMARKS: list[Benchmark] = []


def benchmark(
    units: Mapping[str, str], *, peers: bool = False
) -> Callable[[Callable[[int], Runs]], Callable[[int], Runs]]:
    """Register a function as the benchmark of the measures in ``units``.

    The function takes the number of runs and yields one mapping of values per run.
    """

    def register(work: Callable[[int], Runs]) -> Callable[[int], Runs]:
        BENCHMARKS.append(Benchmark(units, work, peers))
        return work

    return register


def chosen(names: list[str], *, peers: bool) -> list[Benchmark]:
    """Find the benchmarks of some measures; of all that need no peer, when none is named.

    Raises
    ------
    ValueError
        When there is no such measure.
    """
    if not names:
        return [one for one in BENCHMARKS if peers or not one.peers]
    known = {name for one in BENCHMARKS for name in one.units}
    if unknown := sorted(set(names) - known):
        message = f"No measure is called {', '.join(unknown)}; there are {', '.join(sorted(known))}"
        raise ValueError(message)
    return [one for one in BENCHMARKS if set(names) & set(one.units)]


def measure(one: Benchmark, runs: int) -> Iterator[dict[str, object]]:
    """Run a benchmark and give one line per measure: the median and every run."""
    values: dict[str, list[float]] = defaultdict(list)
    for number, run in enumerate(one.work(runs), 1):
        for name, value in run.items():
            values[name].append(value)
        shown = ", ".join(f"{name} {value:,.4g} {one.units[name]}" for name, value in run.items())
        sys.stderr.write(f"  run {number} of {runs}: {shown}\n")
    for name, unit in one.units.items():
        yield {
            "measure": name,
            "value": round(statistics.median(values[name]), 4),
            "unit": unit,
            "runs": [round(value, 4) for value in values[name]],
            "load_average": round(os.getloadavg()[0], 2),
        }


def run_all(benchmarks: list[Benchmark], runs: int) -> Path:
    """Run benchmarks; print each line and keep it in a file, whose path is given back."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.jsonl"
    for one in benchmarks:
        begun = time.monotonic()
        sys.stderr.write(f"{', '.join(one.units)} ...\n")
        for line in measure(one, runs):
            text = json.dumps(line)
            with path.open("a") as file:
                file.write(f"{text}\n")
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
        sys.stderr.write(f"  took {time.monotonic() - begun:.1f} s\n")
    return path
