"""Runs a job without Spark over large messages, and prints how its memory grew, in bytes."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

from headrace import StreamBuilder, serdes
from headrace.topology import Topology
from tests.faults.local_driver import LocalDriver

_KIB = 1024


def peak() -> int:
    """The most memory that this program has had; a process's maximum counts its parent's, too."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * _KIB


def job(name: str, source: str, sink: str) -> Topology:
    """The last message of each length."""
    builder = StreamBuilder(name)
    builder.source(source, serdes.bytes).key_by(len).reduce(
        lambda old, new: new, emit="each"
    ).to_stream().sink(sink, serdes.bytes)
    return builder.build()


def main(namesrv: str, folder: str, source: str, sink: str, max_bytes: str) -> None:
    where = namesrv, Path(folder)
    name = f"memory-{source}-{max_bytes}"
    # All that is lazy is loaded before anything is measured.
    with LocalDriver(*where, 1, job=job(f"{name}-first", source, sink)) as driver:
        driver.commit(driver.process())
    began, peaks = peak(), []
    with LocalDriver(
        *where,
        1_000_000,
        job=job(name, source, sink),
        max_bytes_per_batch=int(max_bytes),
    ) as driver:
        while (planned := driver.plan()) is not None:
            driver.commit(driver.process(planned))
            # Spark does so after every task.
            gc.collect()
            peaks.append(peak())
        # Of the first two batches, and of those after them.
        second = peaks[min(1, len(peaks) - 1)]
        print(second - began, peaks[-1] - second, len(peaks))


if __name__ == "__main__":
    main(*sys.argv[1:])
