"""Copies of state that follow a job which runs elsewhere, so that a takeover finds them warm."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.protocol.transactions import CommitRecord
    from headrace.runtime.state.home import StateHome

__all__ = ["StateFollower"]


class StateFollower:
    """Brings all copies below a folder to the job's last commit, again and again.

    Parameters
    ----------
    home
        The job's committed state.
    stores
        Names of the stores.
    root
        Folder of the copies; nobody else may use it meanwhile.
    """

    def __init__(self, home: StateHome, stores: list[str], root: Path) -> None:
        self._home = home
        self._copies = home.copies(stores, root)
        self._stores = frozenset(stores)
        self._batch = 0

    def follow(self) -> int:
        """Read what was committed since the last call; give the number of state messages."""
        record = self._home.transactions.plan([], {}, 0, 0).record
        if record is None or record.batch == self._batch:
            return 0
        read = self._bring_up(record)
        self._batch = record.batch
        return read

    def _bring_up(self, record: CommitRecord) -> int:
        read = 0
        for state in record.states:
            if state.store in self._stores:
                copy = self._copies.open(state.store, state.partition, state, record.lineage)
                read += copy.restored
                copy.close()
        return read
