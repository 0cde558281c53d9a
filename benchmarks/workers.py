"""Processes below a process, such as Spark's Python workers, and the memory that they take."""

from __future__ import annotations

import contextlib
import os
import re
from collections import defaultdict
from pathlib import Path

__all__ = ["memory_by_program", "memory_of_tree", "worker_memory", "workers_of"]


def worker_memory() -> float:
    """Give the highest memory that one worker has had, in MB; 0.0 where ``/proc`` tells nothing."""
    return max(map(_highest, workers_of(os.getpid())), default=0.0)


def workers_of(process: int, module: str = "pyspark.worker") -> set[int]:
    """Find the descendants of a process that run one of Spark's modules."""
    return {one for one in _descendants(process) if module in _command(one)}


def memory_of_tree(process: int) -> float:
    """Give what a process and its descendants take, in MB; what they share counts once (PSS)."""
    return sum(memory_by_program(process).values())


def memory_by_program(process: int) -> dict[str, float]:
    """Give what a process and its descendants take, by what they run; see :func:`memory_of_tree`.

    Forks count as what they were forked from.
    """
    found: defaultdict[str, float] = defaultdict(float)
    for one in {process, *_descendants(process)}:
        found[_program(one)] += _proportional(one)
    return dict(found)


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


def _program(process: int) -> str:
    """Name the module that a process runs, or its program.

    >>> _program(os.getpid()) != ""
    True
    """
    words = _command(process).split("\0")
    name = words[words.index("-m") + 1] if "-m" in words[:-1] else words[0]
    return Path(name).name


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
