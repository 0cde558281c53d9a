"""Measures with 1, 10 and 100 times the data, and draws what comes of it.

At 100 times the sizes are those of ``make bench``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks import compaction, old_data, store_life
from benchmarks.chart import Panel, charts
from benchmarks.growth.compacted import write_amplification
from benchmarks.growth.held import append_and_die, held, memory_of
from benchmarks.growth.served import served
from benchmarks.measures import Plan
from benchmarks.sizes import FULL, Sizes

SCALES = (1, 10, 100)
_RUNS = 3
_WORKS = (
    old_data.pull_bytes,
    old_data.pull_columns,
    compaction.compaction,
    compaction.compaction_memory,
    store_life.recovery_bytes,
    store_life.start_10gb,
    store_life.queues_10k,
)

#: Unit by measure, in the order of the picture.
UNITS = {
    "produce_java": "messages/s, held 100 MB and more",
    "send_async_java": "messages/s, held 100 MB and more",
    "durable": "messages/s, held 100 MB and more",
    "durable_batch": "messages/s, held 100 MB and more",
    "pull_bytes": "MB/s of 10 MB and more",
    "pull_columns": "messages/s of 100,000 and more",
    "compaction_bytes": "MB/s, 3,000 keys and more",
    "compaction_records": "records/s, 3,000 keys and more",
    "compaction_key_bytes": "bytes/key, 3,000 keys and more",
    "write amplification": "bytes written by byte sent",
    "recovery_bytes": "MB/s of 20 MB and more",
    "start_10gb": "s, holding 100 MB and more",
    "start after a kill, 50 MiB behind": "s, holding 100 MB and more",
    "memory after the start": "MiB, holding 100 MB and more",
    "append the last 50 MiB": "MB/s, held 100 MB and more",
    "read 32 KiB anywhere": "ms, in 100 MB and more",
    "find an offset by time": "ms, in 100 MB and more",
    "find a message by key": "ms, in 100 MB and more",
    "queues_10k_sends": "queues/s of 100 and more",
    "queues_10k_pulls": "queues/s of 100 and more",
    "queues_10k_start": "s, 100 queues and more",
    "queues_10k_files": "open files, 100 queues and more",
}


def scaled(scale: int) -> Sizes:
    """Give the sizes at a hundredth of the scale."""

    def part(whole: int) -> int:
        return whole * scale // SCALES[-1]

    return replace(
        FULL,
        pulled_messages=part(FULL.pulled_messages),
        old_messages=part(FULL.old_messages),
        compacted_keys=part(FULL.compacted_keys),
        store_bytes=part(FULL.store_bytes),
        recovered_bytes=part(FULL.recovered_bytes),
        many_queues=part(FULL.many_queues),
    )


def grow(folder: Path, sizes: Sizes) -> dict[str, float]:
    """Measure at some sizes; medians of three."""
    found = {name: statistics.median(values) for name, values in _runs(sizes).items()}
    found["write amplification"] = write_amplification(sizes.compacted_keys)
    found |= held(folder / "store", sizes.store_bytes)
    found |= served(folder, sizes)
    return {name: found[name] for name in UNITS}


def _runs(sizes: Sizes) -> Mapping[str, list[float]]:
    values: dict[str, list[float]] = defaultdict(list)
    for work in _WORKS:
        for run in work(Plan(_RUNS, sizes)):
            for name, value in run.items():
                values[name].append(value)
    return values


def panels(found: Mapping[int, Mapping[str, float]]) -> list[Panel]:
    """Make a panel of each measure."""
    return [
        Panel(name, unit, {f"{scale}×": values[name] for scale, values in found.items()})
        for name, unit in UNITS.items()
    ]


def table(found: Mapping[int, Mapping[str, float]]) -> str:
    """Write the results as Markdown."""
    scales = [f"{scale}×" for scale in found]
    rows = [["measure", "unit", *scales], ["---"] * (len(scales) + 2)]
    for name, unit in UNITS.items():
        rows.append([name, unit, *(_number(values[name]) for values in found.values())])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _each_in_a_process() -> Iterator[tuple[int, dict[str, float]]]:
    """Measure one scale after another: the memory of one must not hide that of the next."""
    for scale in SCALES:
        with tempfile.TemporaryDirectory(prefix="headrace-growth-") as folder:
            command = [sys.executable, "-m", "benchmarks.growth", "--grow", folder, str(scale)]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        values = json.loads(done.stdout)
        load = os.getloadavg()[0]
        print(f"{scale}× (load {load:.2f}):", json.dumps(values), file=sys.stderr, flush=True)
        yield scale, values


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="benchmarks.growth", description=__doc__)
    parser.add_argument("--picture", type=Path, help="draw the result into this SVG file")
    parser.add_argument("--grow", nargs=2, metavar=("DIR", "SCALE"), help=argparse.SUPPRESS)
    parser.add_argument("--die", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--memory", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.die:
        append_and_die(options.die)
    elif options.memory:
        print(memory_of(options.memory))
    elif options.grow:
        folder, scale = options.grow
        print(json.dumps(grow(Path(folder), scaled(int(scale)))))
    else:
        found = dict(_each_in_a_process())
        print(table(found), end="")
        if options.picture:
            options.picture.write_text(charts(panels(found), "Cost as data grows"))


if __name__ == "__main__":
    main()
