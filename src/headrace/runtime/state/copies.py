"""The engine's own stores: over copies that some place keeps, on disk or in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace.runtime.state.store import LayeredStore

if TYPE_CHECKING:
    from headrace.protocol.transactions import StateSummary
    from headrace.runtime.state.interface import Attempted
    from headrace.runtime.state.local import Copy
    from headrace.runtime.state.store import ChangeSet, StateBase

__all__ = ["CopiedStore", "StateCopies"]


class StateCopies(Protocol):
    """Opens state as of the last commit, and keeps what an attempt changed."""

    def open(
        self, store: str, partition: int, summary: StateSummary | None, lineage: list[list[int]]
    ) -> Copy:
        """Open a store of one partition."""

    def save(
        self,
        store: str,
        partition: int,
        attempt: tuple[int, int, int],
        base: StateSummary | None,
        changes: ChangeSet,
    ) -> None:
        """Keep the changes of an attempt."""


class CopiedStore(LayeredStore):
    """A store over a copy.

    Parameters
    ----------
    copies
        Where the copy is.
    operator
        Name of the operator.
    partition
        Number of the partition.
    """

    def __init__(self, copies: StateCopies, operator: str, partition: int) -> None:
        super().__init__()
        self._copies = copies
        self._operator = operator
        self._partition = partition
        self._copy: Copy | None = None

    def opened(self, commit: StateSummary | None, lineage: list[list[int]]) -> StateBase:
        """Open the copy."""
        self._copy = self._copies.open(self._operator, self._partition, commit, lineage)
        self.restored = self._copy.restored
        return self._copy.base

    def kept(self, attempt: Attempted, base: StateSummary | None, changes: ChangeSet) -> None:
        """Leave the changes beside the copy."""
        self._copies.save(self._operator, self._partition, attempt, base, changes)

    def close(self) -> None:
        """Let other processes open the copy."""
        if self._copy is not None:
            self._copy.close()
            self._copy = None
