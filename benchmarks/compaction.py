"""One queue of a compacted topic: four versions of each key, of which one stays."""

from __future__ import annotations

import gc
import tempfile
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.measures import Plan, benchmark
from headrace.protocol.records import encode_records
from headrace.protocol.stamps import stamp_records
from headrace.store import FileOps
from headrace.store.compaction import CompactionReport, CompactionSettings, QueueLog, StoreClock

__all__ = ["append_keys", "compaction", "compaction_memory"]

_VERSIONS = 4
_BODY = 1000
#: Memory does not depend on the bodies.
_SMALL_BODY = 100
_BATCH = 10_000


@benchmark({"compaction_bytes": "MB/s", "compaction_records": "records/s"})
def compaction(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Compact closed files with records of 1 KB; all of them are read and checked."""
    for _ in range(plan.runs):
        with _filled(plan.sizes.compacted_keys, _BODY) as log:
            report = _checked(log.compact(force=True), plan.sizes.compacted_keys)
        yield {
            "compaction_bytes": report.bytes_in / report.seconds / 1e6,
            "compaction_records": report.records_in / report.seconds,
        }


@benchmark({"compaction_key_bytes": "bytes/key"})
def compaction_memory(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Take the highest memory of a compaction, whatever for, by dirty key."""
    keys = plan.sizes.compacted_keys
    for _ in range(plan.runs):
        with _filled(keys, _SMALL_BODY) as log:
            highest = _highest_memory(log, keys)
        yield {"compaction_key_bytes": highest / keys}


def _highest_memory(log: QueueLog, keys: int) -> int:
    gc.collect()
    arrow = pa.total_allocated_bytes()
    highest = 0

    def look(_: int) -> None:
        # Python's peak since the last look, beside what Arrow has now.
        nonlocal highest
        python = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        highest = max(highest, python + pa.total_allocated_bytes() - arrow)

    tracemalloc.start()
    try:
        _checked(log.compact(force=True, throttle=look), keys)
        look(0)
    finally:
        tracemalloc.stop()
    return highest


def _checked(report: CompactionReport, keys: int) -> CompactionReport:
    assert report.records_in == _VERSIONS * keys, report
    assert report.records_out == keys, report
    return report


@contextmanager
def _filled(keys: int, size: int) -> Iterator[QueueLog]:
    """Make a log of closed files in which the versions of a key lie far apart."""
    random = np.random.default_rng(42)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        settings = CompactionSettings(map_bytes=1 << 30)
        log = QueueLog.open(
            Path(folder) / "queue", settings, FileOps(), secret=b"bench", clock=StoreClock()
        )
        for _ in range(_VERSIONS):
            order = random.permutation(keys)
            for first in range(0, keys, _BATCH):
                append_keys(log, order[first : first + _BATCH].tolist(), size)
        log.roll()
        yield log
        log.close()


def append_keys(log: QueueLog, keys: list[int], size: int) -> int:
    """Append a message of each key with bodies of one size; give the bytes of all."""
    properties = [b"KEYS\x01key-%d\x02" % key for key in keys]
    records = encode_records("table", 0, [bytes(size)] * len(keys), properties, 0)
    stamp_records(records, log.next_offset, 0, 0, ("127.0.0.1", 0))
    log.append(records)
    return len(records.data)
