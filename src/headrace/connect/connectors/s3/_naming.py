"""Keys of a sink's objects: each follows from topic, queue and offset alone."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from headrace.connect import Queue

__all__ = ["mark_key", "object_key"]

_MARKS = "_headrace"


def object_key(prefix: str, folder: str, queue: Queue, first: int, ending: str) -> str:
    """Name the object that begins with an offset of a queue.

    >>> from headrace.connect import Queue
    >>> object_key("raw", "lines/day=7", Queue("lines", "broker-a", 3), 12, "csv.gz")
    'raw/lines/day=7/lines+broker-a+3+0000000000000000012.csv.gz'
    """
    return _below(prefix, f"{folder}/{_name(queue)}+{first:019d}.{ending}")


def mark_key(prefix: str, queue: Queue) -> str:
    """Name the object that says how far a queue has been written.

    >>> from headrace.connect import Queue
    >>> mark_key("", Queue("lines", "broker-a", 3))
    '_headrace/lines+broker-a+3.json'
    """
    return _below(prefix, f"{_MARKS}/{_name(queue)}.json")


def _name(queue: Queue) -> str:
    return "+".join((quote(queue.topic, safe="%"), quote(queue.broker, safe=""), str(queue[2])))


def _below(prefix: str, key: str) -> str:
    inner = prefix.strip("/")
    return f"{inner}/{key}" if inner else key
