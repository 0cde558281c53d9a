"""Runs a job without Spark over large messages, and prints how its memory grew, in bytes."""

from __future__ import annotations

import gc
import resource
import sys
from pathlib import Path

from headrace import StreamBuilder, serdes
from tests.faults.local_driver import LocalDriver

_KIB = 1024


def peak() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB


def main(namesrv: str, folder: str, source: str, sink: str, max_bytes: str) -> None:
    builder = StreamBuilder(f"memory-{source}-{max_bytes}")
    builder.source(source, serdes.bytes).key_by(len).reduce(
        lambda old, new: new, emit="each"
    ).to_stream().sink(sink, serdes.bytes)
    with LocalDriver(
        namesrv,
        Path(folder),
        1_000_000,
        job=builder.build(),
        max_bytes_per_batch=int(max_bytes),
    ) as driver:
        began, peaks = peak(), []
        while (planned := driver.plan()) is not None:
            driver.commit(driver.process(planned))
            # Spark does so after every task.
            gc.collect()
            peaks.append(peak())
        # Of the first two batches, and of those after them, when all that is lazy has been loaded.
        warm = peaks[min(1, len(peaks) - 1)]
        print(warm - began, peaks[-1] - warm, len(peaks))


if __name__ == "__main__":
    main(*sys.argv[1:])
