"""Holes: stretches of a log without intact entries, and what is known of what stood there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import CorruptLogError
from headrace.protocol.layout import MIN_RECORD
from headrace.store.fences import Loss
from headrace.store.record import fills_its_size, queue_of, queue_offset_of, record_magics

if TYPE_CHECKING:
    from headrace.store.damage.inspection import Stretch
    from headrace.store.index import QueueKey

__all__ = ["Complaint", "Hole", "QueueFact", "salvaged_heads"]

_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")


@dataclass(slots=True, eq=False)
class Hole:
    """A stretch without intact entries, and what was lost in it."""

    stretch: Stretch
    deletes: set[str] = field(default_factory=set)
    #: First lost offset and one past the last.
    lost: dict[QueueKey, tuple[int, int]] = field(default_factory=dict)
    #: Where queues began, as far as it is known; one table for all holes.
    births: dict[QueueKey, int] = field(default_factory=dict)

    @property
    def losses(self) -> list[Loss]:
        """What was lost: deletes first, as offsets count from them."""
        deletes = [Loss.of_topic(topic) for topic in sorted(self.deletes)]
        return deletes + [
            Loss(*key, *span, self.births.get(key, -1) if span[0] == 0 else -1)
            for key, span in sorted(self.lost.items())
        ]

    @property
    def room(self) -> int:
        """Records that fit into what is not accounted for."""
        known = sum(end - first for first, end in self.lost.values())
        return max(self.stretch.size // MIN_RECORD - known, 0)


@dataclass(frozen=True, slots=True)
class Complaint:
    """Intact entries that do not fit to each other: no damage of the disk explains them."""

    position: int
    text: str


class QueueFact(NamedTuple):
    """What is known of a queue at a position of the log."""

    next_offset: int
    #: Log position of its first entry: a topic that was deleted and made again has another.
    birth: int


def salvaged_heads(stretch: Stretch) -> Iterator[tuple[QueueKey, int]]:
    """Find the records in damaged bytes whose head still names the place where it stands."""
    for at in record_magics(stretch.content, stretch.position):
        record = memoryview(stretch.content)[at:]
        try:
            key = queue_of(record)
        except CorruptLogError:
            continue
        # A flipped bit in a name must not make a queue that never was.
        if _TOPIC.fullmatch(key[0]) and key[1] >= 0 and fills_its_size(record):
            yield key, queue_offset_of(record)
