"""What compaction writes for each byte that is appended, as keys are overwritten at random."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from benchmarks.compaction import append_keys
from headrace.store import FileOps
from headrace.store.compaction import CompactionSettings, QueueLog, StoreClock

__all__ = ["write_amplification"]

_BODY = 1000
_BATCH = 500
_FILE = 1024 * 1024
#: So many times the keys are overwritten.
_VERSIONS = 6


def write_amplification(keys: int) -> float:
    """Overwrite keys and compact when it pays; give bytes written by compactions by byte sent."""
    random = np.random.default_rng(42)
    settings = CompactionSettings(file_size=_FILE)
    appended = written = 0
    with tempfile.TemporaryDirectory(prefix="headrace-growth-") as folder:
        path = Path(folder) / "queue"
        log = QueueLog.open(path, settings, FileOps(), secret=b"growth", clock=StoreClock())
        for first in range(0, keys, _BATCH):
            append_keys(log, list(range(first, min(first + _BATCH, keys))), _BODY)
        for _ in range(0, _VERSIONS * keys, _BATCH):
            appended += append_keys(log, random.integers(0, keys, _BATCH).tolist(), _BODY)
            if log.is_due():
                written += log.compact().bytes_out
        log.close()
    return written / appended
