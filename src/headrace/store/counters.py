"""What the writer keeps count of, over its life and within one group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.store.index import QueueIndex

__all__ = ["Group", "WriterCounters"]


@dataclass(slots=True)
class WriterCounters:
    """What the writer has done since the store was opened."""

    groups: int = 0
    syncs: int = 0
    units: int = 0
    records: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Group:
    """What is being written, and how to undo it."""

    begin: int
    timestamp: int
    touched: set[QueueIndex] = field(default_factory=set)
    records: int = 0
    units: int = 0
