"""Where queues, groups and jobs stand, as the administration shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from headrace.protocol.transactions import CommitRecord, StagedBatch

if TYPE_CHECKING:
    from datetime import datetime

__all__ = ["JobStanding", "QueueProgress", "QueueRange"]


class JobStanding(msgspec.Struct, frozen=True):
    """Where a job stands."""

    commit_topic: str
    #: Names its newest driver.
    driver: str
    #: Its newest commit record.
    record: CommitRecord
    #: Who holds the lease of its driver; empty where nobody does.
    holder: str = ""
    #: What is staged and not committed.
    staged: list[StagedBatch] = []


@dataclass(frozen=True, slots=True)
class QueueRange:
    """What a queue holds."""

    #: First offset.
    begin: int
    #: One past the last offset.
    end: int
    #: When the last message was stored; None for an empty queue.
    updated: datetime | None


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """How far a group has come in a queue."""

    #: Next offset that the group reads; -1 if it has none.
    offset: int
    #: One past the last offset of the queue.
    end: int

    @property
    def lag(self) -> int:
        """Messages that the group has not read."""
        return self.end - max(self.offset, 0)
