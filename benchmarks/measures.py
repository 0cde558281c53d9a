"""What a measurement is, and how it is run and written down."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import statistics
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.targets import RATIOS, TARGETS

if TYPE_CHECKING:
    from benchmarks.sizes import Sizes

__all__ = [
    "LEAST_RUNS",
    "Benchmark",
    "Plan",
    "Runner",
    "Runs",
    "UnavailableError",
    "benchmark",
    "chosen",
    "discover",
]

#: A median of fewer runs says little.
LEAST_RUNS = 3

Line = dict[str, Any]
"""One result: measure, value, unit, runs, load_average."""

Runs = Iterable[Mapping[str, float]]
"""The values of each run, by measure."""


class UnavailableError(Exception):
    """A benchmark needs something that is not on this machine."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How often a benchmark is to do how much."""

    runs: int
    sizes: Sizes


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One piece of work that gives the values of one or more measures."""

    #: Units by measure.
    units: Mapping[str, str]
    #: Yields the values of each run; set-up happens once, before the first.
    work: Callable[[Plan], Runs]
    #: Whether it runs only when asked for: it measures another system, for minutes.
    peers: bool
    #: Those of one name run in turns, so that what drifts comes to all alike; empty: alone.
    turns: str = ""


_registered: list[Benchmark] = []


def benchmark(
    units: Mapping[str, str], *, peers: bool = False, turns: str = ""
) -> Callable[[Callable[[Plan], Runs]], Callable[[Plan], Runs]]:
    """Register a function as the benchmark of the measures in ``units``."""

    def register(work: Callable[[Plan], Runs]) -> Callable[[Plan], Runs]:
        _registered.append(Benchmark(units, work, peers, turns))
        return work

    return register


def discover() -> list[Benchmark]:
    """Load every benchmark of this package."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)], "benchmarks."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return list(_registered)


def chosen(names: list[str], *, peers: bool) -> list[Benchmark]:
    """Find the benchmarks of some measures, in the order of the targets.

    Without names these are all of ours; with ``peers`` those of other systems, and what they are
    compared with.

    Raises
    ------
    ValueError
        When there is no such measure.
    """
    known = {name for one in _registered for name in one.units}
    if unknown := sorted(set(names) - known):
        message = f"No measure is called {', '.join(unknown)}; there are {', '.join(sorted(known))}"
        raise ValueError(message)
    wanted = set(names)
    if not names:
        wanted = {name for one in _registered if one.peers is peers for name in one.units}
    if peers:
        wanted |= {ratio.numerator for ratio in RATIOS if ratio.denominator in wanted}
    order = list(TARGETS)
    found = [one for one in _registered if wanted & set(one.units)]
    return sorted(found, key=lambda one: min(order.index(name) for name in one.units))


@dataclass(slots=True)
class Runner:
    """Runs benchmarks, prints each result and keeps it in a file."""

    plan: Plan
    #: Folder of the files.
    folder: Path
    #: Why benchmarks gave nothing, by their measures.
    failures: dict[str, str] = field(default_factory=dict)
    _lines: dict[str, Line] = field(default_factory=dict)
    _begun: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def path(self) -> Path:
        """File with one line per result."""
        return self.folder / f"{self._begun:%Y%m%dT%H%M%SZ}.jsonl"

    def run(self, benchmarks: list[Benchmark]) -> None:
        """Run benchmarks one after another or in turns; the failure of one ends no other."""
        for group in _groups(benchmarks):
            begun = time.monotonic()
            measured = [self._measure(one) for one in group]
            while measured:
                measured = [one for one in measured if next(one, None)]
            self._keep_ratios()
            _say(f"  took {time.monotonic() - begun:.1f} s")

    def _measure(self, one: Benchmark) -> Iterator[bool]:
        """Measure a benchmark, and stop behind each of its runs."""
        names = ", ".join(one.units)
        _say(f"{names} ...")
        try:
            values: dict[str, list[float]] = defaultdict(list)
            for number, run in enumerate(one.work(self.plan), 1):
                for name, value in run.items():
                    values[name].append(value)
                shown = ", ".join(
                    f"{name} {value:,.4g} {one.units[name]}" for name, value in run.items()
                )
                _say(f"  run {number} of {self.plan.runs}: {shown}")
                yield True
            for name, unit in one.units.items():
                self._keep(_line(name, unit, values[name]))
        except UnavailableError as error:
            self.failures[names] = str(error)
            _say(f"  left out: {error}")
        except Exception as error:  # noqa: BLE001 - hours of other results must not be lost
            # A failure of Spark fills screens; all of it stands where it happened.
            self.failures[names] = (str(error) or type(error).__name__).splitlines()[0]
            _say(traceback.format_exc())

    def _keep_ratios(self) -> None:
        for ratio in RATIOS:
            above, below = self._lines.get(ratio.numerator), self._lines.get(ratio.denominator)
            if above is not None and below is not None and ratio.name not in self._lines:
                pairs = zip(above["runs"], below["runs"], strict=True)
                line = _line(ratio.name, "ratio", [one / other for one, other in pairs])
                # Runs are paired by chance: the medians' ratio is what the table asks for.
                line["value"] = round(above["value"] / below["value"], 4)
                self._keep(line)

    def _keep(self, line: Line) -> None:
        self._lines[line["measure"]] = line
        text = json.dumps(line)
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(f"{text}\n")
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def _groups(benchmarks: Iterable[Benchmark]) -> list[list[Benchmark]]:
    """Put together what runs in turns."""
    found: dict[object, list[Benchmark]] = defaultdict(list)
    for one in benchmarks:
        found[one.turns or id(one)].append(one)
    return list(found.values())


def _line(name: str, unit: str, values: list[float]) -> Line:
    return {
        "measure": name,
        "value": round(statistics.median(values), 4),
        "unit": unit,
        "runs": [round(value, 4) for value in values],
        "load_average": round(os.getloadavg()[0], 2),
    }


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
