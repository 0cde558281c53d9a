"""When checkpoints are due, and what is in them."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.store.checkpoint import Checkpoint, Checkpointer, Snapshot

if TYPE_CHECKING:
    from headrace.store.catalog import Catalog
    from headrace.store.log import CommitLog
    from headrace.store.settings import StoreSettings

__all__ = ["Saving"]

#: How soon to look again for a checkpointer that is still busy, seconds.
_BUSY_WAIT = 0.05


class Saving:
    """Hands snapshots to the checkpointer in time. Caller: who has the writer's turn."""

    def __init__(
        self, log: CommitLog, catalog: Catalog, checkpointer: Checkpointer, settings: StoreSettings
    ) -> None:
        self._log = log
        self._catalog = catalog
        self._checkpointer = checkpointer
        self._settings = settings
        self._position = checkpointer.position
        self._time = time.monotonic()
        #: Index folders of deleted topics.
        self.dropped: list[Path] = []
        #: Who waits for a checkpoint.
        self.wanted: list[Future[None]] = []
        #: Tells up to where compaction logs have all records of their queues, on disk.
        self.handed_on: Callable[[], int] = lambda: 0

    @property
    def is_dirty(self) -> bool:
        """Whether readers see more than the last checkpoint holds."""
        return self._position < self._catalog.position

    def due(self) -> float:
        """When the next checkpoint is due, by the monotonic clock."""
        due = self._time + self._settings.checkpoint_interval.total_seconds()
        return due if self._checkpointer.is_idle else max(due, time.monotonic() + _BUSY_WAIT)

    def before_change(self) -> None:
        """Start the interval when what was saved is about to become old."""
        if not self.is_dirty:
            self._time = time.monotonic()

    def is_due(self, *, final: bool) -> bool:
        """Whether to save now."""
        written = self._catalog.position - self._position
        soon = written >= self._settings.checkpoint_bytes and self._checkpointer.is_idle
        by_time = self.is_dirty and (final or soon or self.due() <= time.monotonic())
        return by_time or bool(self.wanted)

    def save(self, timestamp: int) -> None:
        """Hand everything over; the log must be on disk up to what readers see."""
        head = Checkpoint(
            self._catalog.position,
            self._settings.index_file_units,
            [],
            begin=self._log.begin,
            timestamp=timestamp,
            compacted=dict(self._catalog.compacted),
            epochs=self._catalog.epochs.rows(),
            handed_on=self.handed_on(),
        )
        changed, indexes = self._catalog.snapshot()
        snapshot = Snapshot(head, changed, indexes, self.dropped, self.wanted)
        self._checkpointer.submit(snapshot)
        # Until it is handed over they wait here, whatever happens.
        self.dropped, self.wanted = [], []
        self._position = head.position
        self._time = time.monotonic()

    def give_up(self) -> None:
        """Let nobody wait for a checkpoint that never comes."""
        for future in self.wanted:
            if not future.done():
                future.set_result(None)
        self.wanted = []
