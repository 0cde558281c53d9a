"""What stands in for broker and disk: staged output and state, in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.protocol.transactions import StagedPart, StateSummary
from headrace.runtime.state.local import Copy
from headrace.runtime.state.store import ChangeSet, MemoryBase

if TYPE_CHECKING:
    from headrace.runtime.commit.transactions import QueueMessages

__all__ = ["BatchCopies", "MemoryCopies", "MemoryWriter", "SavedChanges"]


class MemoryWriter:
    """Keeps what the tasks of a batch stage."""

    def __init__(self) -> None:
        self.staged: list[QueueMessages] = []

    def stage(self, messages: QueueMessages) -> int | None:
        """Keep messages of one queue."""
        self.staged.append(messages)
        return None

    def finish(self) -> StagedPart:
        """End a task."""
        return StagedPart(stage=0, partition=0, attempt=0, chunks=0, records=0)


class MemoryCopies:
    """Every partition of every state store, as of the last batch."""

    def __init__(self) -> None:
        self._bases: dict[tuple[str, int], MemoryBase] = {}

    def base(self, store: str, partition: int) -> MemoryBase:
        """Give one partition of a store."""
        return self._bases.setdefault((store, partition), MemoryBase())


@dataclass(slots=True)
class SavedChanges:
    """What the running batch changed, by store and partition."""

    changes: dict[tuple[str, int], ChangeSet] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BatchCopies:
    """The state copies as one batch sees them."""

    copies: MemoryCopies
    saved: SavedChanges

    def open(
        self, store: str, partition: int, summary: StateSummary | None, lineage: list[list[int]]
    ) -> Copy:
        """Open a store of one partition."""
        del summary, lineage
        return Copy(self.copies.base(store, partition))

    def save(
        self,
        store: str,
        partition: int,
        attempt: tuple[int, int, int],
        base: StateSummary | None,
        changes: ChangeSet,
    ) -> None:
        """Keep the changes until the batch is done."""
        del attempt, base
        self.saved.changes[store, partition] = changes
