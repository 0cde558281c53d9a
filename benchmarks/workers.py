"""Processes below a process, such as Spark's Python workers, and the memory that they take."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

__all__ = ["memory_of_tree", "worker_memory", "workers_of"]


def worker_memory() -> float:
    """Give the highest memory that one worker has had, in MB; 0.0 where ``/proc`` tells nothing."""
    return max(map(_highest, workers_of(os.getpid())), default=0.0)


def workers_of(process: int, module: str = "pyspark.worker") -> set[int]:
    """Find the descendants of a process that run one of Spark's modules."""
    return {one for one in _descendants(process) if module in _command(one)}


def memory_of_tree(process: int) -> float:
    """Give what a process and its descendants take, in MB; what they share counts once (PSS)."""
    return sum(map(_proportional, {process, *_descendants(process)}))


def _descendants(process: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    pending, found = [process], set[int]()
    while pending:
        mine = children.get(pending.pop(), [])
        pending += mine
        found.update(mine)
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


def _proportional(process: int) -> float:
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
        found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
        return int(found[1]) / 1000 if found else 0.0
    return 0.0
