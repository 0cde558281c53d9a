"""The memory of the Python workers that Spark started for this process."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

__all__ = ["worker_memory", "workers_of"]


def worker_memory() -> float:
    """Give the highest memory that one worker has had, in MB; 0.0 where ``/proc`` tells nothing."""
    return max(map(_highest, workers_of(os.getpid())), default=0.0)


def workers_of(process: int, module: str = "pyspark.worker") -> set[int]:
    """Find the descendants of a process that run one of Spark's modules."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    pending, found = [process], set[int]()
    while pending:
        mine = children.get(pending.pop(), [])
        pending += mine
        found.update(process for process in mine if module in _command(process))
    return found


def _command(process: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_text()
    return ""


def _highest(process: int) -> float:
    with contextlib.suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
        return int(found[1]) / 1000 if found else 0.0
    return 0.0
