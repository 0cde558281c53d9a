"""How cost grows with what is stored: ``python -m benchmarks.growth [--picture FILE.svg]``.

Each measure is taken with 1, 10 and 100 times the data, by work of the same size.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import psutil

from benchmarks.chart import Panel, charts
from headrace.protocol.columns import encode_records
from headrace.store import MessageStore, QueueAppend, StoreSettings

__all__ = ["grow", "main"]

_MIB = 1024 * 1024
#: Bytes of bodies at 1×.
BASE = 100 * _MIB
SCALES = (1, 10, 100)
_BODY = 1024
_BATCH = 200
_QUEUES = 8
_TOPIC = "grown"
_SAMPLES = 300
_CRASH = 17

UNITS = {
    "append, last 50 MiB": "MB/s",
    "read 32 KiB anywhere": "ms",
    "find an offset by time": "ms",
    "start after a clean stop": "s",
    "start after a kill": "s",
    "memory after the start": "MiB",
}


def grow(folder: Path, size: int) -> dict[str, float]:
    """Fill a store with so many bytes of bodies, and measure by the same work at its end."""
    found: dict[str, float] = {}
    with _open(folder) as store:
        tail = min(size, 50 * _MIB)
        _append(store, size - tail)
        found["append, last 50 MiB"] = tail / 1e6 / _seconds(lambda: _append(store, tail))
    before = psutil.Process().memory_info().rss
    begun = time.perf_counter()
    with _open(folder) as store:
        found["start after a clean stop"] = time.perf_counter() - begun
        found["memory after the start"] = (psutil.Process().memory_info().rss - before) / _MIB
        found["read 32 KiB anywhere"] = 1e3 * _median(lambda: _read_anywhere(store))
        found["find an offset by time"] = 1e3 * _median(lambda: _find_by_time(store))
    _crash(folder)
    found["start after a kill"] = _seconds(lambda: _open(folder).close())
    return found


def _open(folder: Path) -> MessageStore:
    return MessageStore.open(folder, StoreSettings(flush="async", retention=timedelta(days=3650)))


def _append(store: MessageStore, size: int) -> None:
    bodies = [os.urandom(_BODY)] * _BATCH
    futures = []
    for number in range(size // (_BODY * _BATCH)):
        queue = number % _QUEUES
        futures.append(
            store.append([QueueAppend(_TOPIC, queue, encode_records(_TOPIC, queue, bodies))])
        )
        if len(futures) == 64:
            for future in futures:
                future.result()
            futures = []
    for future in futures:
        future.result()


def _read_anywhere(store: MessageStore) -> None:
    queue = random.randrange(_QUEUES)
    offset = random.randrange(store.bounds(_TOPIC, queue).max_offset - 64)
    assert store.read(_TOPIC, queue, offset, 32, 32 * 1024).count


def _find_by_time(store: MessageStore) -> None:
    queue = random.randrange(_QUEUES)
    bounds = store.bounds(_TOPIC, queue)
    first = store.store_time(_TOPIC, queue, bounds.min_offset)
    last = store.store_time(_TOPIC, queue, bounds.max_offset - 1)
    store.offset_at(_TOPIC, queue, random.randint(first, last))


def _crash(folder: Path) -> None:
    """Have another process append 50 MiB and die without a word."""
    command = [sys.executable, "-m", "benchmarks.growth", "--crash", str(folder)]
    done = subprocess.run(command, timeout=600, check=False)
    assert done.returncode == _CRASH, f"the process ended with {done.returncode}"


def _seconds(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _median(work: Callable[[], None]) -> float:
    return statistics.median(_seconds(work) for _ in range(_SAMPLES))


def _panels(found: Mapping[int, Mapping[str, float]]) -> list[Panel]:
    return [
        Panel(name, unit, {f"{scale}×": values[name] for scale, values in found.items()})
        for name, unit in UNITS.items()
    ]


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="benchmarks.growth", description=__doc__)
    parser.add_argument("--base", type=int, default=BASE, help="bytes of bodies at 1×")
    parser.add_argument("--picture", type=Path, help="draw the result into this SVG file")
    parser.add_argument("--grow", nargs=2, metavar=("DIR", "BYTES"), help=argparse.SUPPRESS)
    parser.add_argument("--crash", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.crash:
        store = _open(options.crash)
        _append(store, 50 * _MIB)
        os._exit(_CRASH)
    if options.grow:
        print(json.dumps(grow(Path(options.grow[0]), int(options.grow[1]))))
        return
    found: dict[int, dict[str, float]] = {}
    for scale in SCALES:
        # A process of its own: the memory of one scale must not hide that of the next.
        with tempfile.TemporaryDirectory(prefix="headrace-growth-") as folder:
            command = [sys.executable, "-m", "benchmarks.growth", "--grow", folder]
            size = str(scale * options.base)
            done = subprocess.run([*command, size], stdout=subprocess.PIPE, check=True)
        found[scale] = json.loads(done.stdout)
        print(f"{scale}× ({scale * options.base:,} bytes):", json.dumps(found[scale]), flush=True)
    if options.picture:
        options.picture.write_text(charts(_panels(found), "Cost as the store grows"))


if __name__ == "__main__":
    main()
