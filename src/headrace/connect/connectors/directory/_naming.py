"""Names of a sink's files: they say which offsets of which queue are within."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from headrace.connect import Queue

__all__ = ["file_name", "offsets_of"]

_NAME = re.compile(
    r"(?P<topic>[^+/]+)\+(?P<broker>[^+/]+)\+(?P<queue>\d+)\+\d{19}\+(?P<end>\d{19})\."
)


def file_name(queue: Queue, first: int, end: int, ending: str) -> str:
    """Name the file of a queue's records from ``first`` to before ``end``.

    >>> file_name(Queue("lines", "broker-a", 3), 7, 12, "csv")
    'lines+broker-a+3+0000000000000000007+0000000000000000012.csv'
    """
    return f"{queue.topic}+{queue.broker}+{queue.queue_id}+{first:019d}+{end:019d}.{ending}"


def offsets_of(files: Iterable[Path]) -> dict[Queue, int]:
    """Tell from the names of files where each queue goes on.

    >>> queue = Queue("lines", "broker-a", 3)
    >>> files = [Path(file_name(queue, 0, 7, "csv")), Path(file_name(queue, 7, 12, "csv"))]
    >>> offsets_of(files)[queue]
    12
    """
    offsets: dict[Queue, int] = {}
    for file in files:
        if match := _NAME.match(file.name):
            queue = Queue(match["topic"], match["broker"], int(match["queue"]))
            offsets[queue] = max(int(match["end"]), offsets.get(queue, 0))
    return offsets
